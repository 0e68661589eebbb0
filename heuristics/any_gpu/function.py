"""One function of the table for any GPU: its number of leaves, the kind of its thresholds, and what it loses.

In: the timing matrices of an operator variant and dtype on several GPUs. Out: `Choice`, and figures on each GPU. The
trees are found by `joint`; who takes the function of another is decided in `pipeline`.

Each GPU has the same weight, whatever was measured on it. Beside hidden a function cuts rows per multiprocessor, or
bytes of x per byte of L2 cache where that loses over `ENOUGH` less; so one function has thresholds of one kind. What
decides, between the two and for the number of leaves, is the mean regret on GPUs left out of the fit. One GPU leaves
nothing to be left out; then it is the regret on its own data, and the fewest leaves within `ENOUGH` of the most are
taken: a table for GPUs that nobody measured need not follow one GPU closely.
"""

from collections.abc import Sequence
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.any_gpu.joint import Joint, Part
from normtune.heuristics.any_gpu.legality import EveryGpu
from normtune.heuristics.any_gpu.result import Lost, OnDevice
from normtune.heuristics.regret.legality import served_variants
from normtune.heuristics.tablefile.relative_tree import BYTES_PER_L2, ROWS_PER_SM, NormalisedTree, choose_on
from normtune.heuristics.tablefile.tree import counted_leaves
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import join_key

MAX_LEAVES = 24
ENOUGH = 5000  # millionths: 0.5 %


class Kind(NamedTuple):
    """The data of one operator variant and dtype.

    Attributes:
        spec, variant, dtype: whose data these are.
        parts: of each GPU that has such data.
        labels: of these GPUs.
    """

    spec: OperatorSpec
    variant: str
    dtype: str
    parts: tuple[Part, ...]
    labels: tuple[str, ...]

    @property
    def key(self) -> str:
        """The operator's name in the table."""
        return join_key(self.spec.name, self.variant)

    @property
    def variants(self) -> tuple[str, ...]:
        """What a function of it serves."""
        return served_variants(self.spec, self.variant)

    def shapes(self) -> list[tuple[int, int]]:
        """Rows and hidden of all problems."""
        return [shape for part in self.parts for shape in part.matrix.problems]


class Choice(NamedTuple):
    """A function's tree, and the trees that are fitted in the same way without one GPU each; none of a single GPU."""

    tree: NormalisedTree
    without: tuple[NormalisedTree | None, ...]


def chosen(kind: Kind, legal: EveryGpu, leaves: int | None) -> Choice:
    """The function of a kind's own.

    Args:
        kind: the data.
        legal: where its configs are to be legal.
        leaves: the most that it may have; None for as many as the data bear.

    Raises:
        NormtuneError: there is no legal tree of so few leaves.
    """
    most = leaves or MAX_LEAVES
    found: list[tuple[int, int, Joint, list[Joint]]] = []
    for size in (ROWS_PER_SM, BYTES_PER_L2):
        joint = Joint(kind.parts, legal, most, size)
        others = [kind.parts[:place] + kind.parts[place + 1 :] for place in range(len(kind.parts))]
        without = [Joint(other, legal, most, size) for other in others if other]
        decides = enumerate((_left_out(kind, joint, without, count) for count in range(1, most + 1)), 1)
        known = [(figure, count) for count, figure in decides if figure is not None]
        # More leaves than the data bear are taken only where fewer have no legal tree.
        known = [pair for pair in known if pair[1] <= most_leaves(kind, leaves)] or known[:1]
        if known:
            enough = min(known)[0] + ENOUGH
            figure, count = known[-1] if leaves else next(pair for pair in known if pair[0] <= enough)
            found.append((figure, count, joint, without))
    if not found:
        raise NormtuneError(
            f"no table of at most {counted_leaves(most)} covers {kind.key} {kind.dtype}: too few configs were measured "
            "everywhere; allow more leaves, or sweep the default space"
        )
    by_rows, by_bytes = found[0], found[-1]
    figure, count, joint, without = by_bytes if by_bytes[0] + ENOUGH < by_rows[0] else by_rows
    tree = joint.tree(count)
    if tree is None:
        raise AssertionError("a tree that was scored is there")
    return Choice(tree, tuple(one.tree(count) for one in without))


def most_leaves(kind: Kind, leaves: int | None) -> int:
    """The most leaves: as asked for, else for five problems each, or a function would follow the noise of each."""
    return leaves or max(1, min(MAX_LEAVES, min(len(part.matrix.problems) for part in kind.parts) // 5))


def _left_out(kind: Kind, joint: Joint, without: Sequence[Joint], count: int) -> int | None:
    """What decides on the number of leaves: mean regret on GPUs left out, or on the only one; None without a tree."""
    on_data = joint.least(count)
    if on_data is None or not without:
        return on_data
    lost = []
    for part, one in zip(kind.parts, without, strict=True):
        tree = one.tree(count)
        if tree is None:
            return None
        lost.append(lost_on(kind.spec, part, tree).mean)
    return sum(lost) // len(lost)


def figures_on(kind: Kind, choice: Choice, given: Sequence[OnDevice] = ()) -> tuple[OnDevice, ...]:
    """What a function loses on each GPU of a kind.

    Args:
        kind: whose data.
        choice: of the function.
        given: figures of the function's own kind, which say in which order `without` has the GPUs.
    """
    order = [one.device for one in given] or list(kind.labels)
    without = dict(zip(order, choice.without, strict=False)) if choice.without else {}
    found = []
    for label, part in zip(kind.labels, kind.parts, strict=True):
        tree = without.get(label)
        left_out = lost_on(kind.spec, part, tree) if tree else None
        found.append(OnDevice(label, lost_on(kind.spec, part, choice.tree), left_out))
    return tuple(found)


def lost_on(spec: OperatorSpec, part: Part, tree: NormalisedTree) -> Lost:
    """What a tree loses on a GPU; where its choice has no time the default config answers, else the slowest."""
    target, matrix = part
    losses = []
    for index, (rows, hidden) in enumerate(matrix.problems):
        found = matrix.loss(index, choose_on(tree, rows, hidden, target.sms, target.l2_bytes))
        if found is None:
            problem = spec.problem(rows, hidden, matrix.dtype, matrix.variant)
            found = matrix.loss(index, spec.default_config(problem, target))
        losses.append(int(matrix.regret[index].max()) if found is None else found)
    mean = matrix.mean(losses)
    if mean is None:
        raise AssertionError("a timing matrix has problems that count")
    return Lost(mean, max(losses))
