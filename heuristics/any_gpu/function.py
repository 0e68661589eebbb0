"""One function of the table for any GPU: its number of leaves and its loss.

Each GPU has the same weight, however much was measured on it. Mean regret on GPUs left out of the fit decides on the
number of leaves. With a single GPU, the regret on its own data decides, and the fewest leaves within `ENOUGH` of the
least regret are taken: a table for unmeasured GPUs need not follow one GPU closely.
"""

from collections.abc import Sequence
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.any_gpu.joint import Joint, Part
from normtune.heuristics.any_gpu.legality import EveryGpu
from normtune.heuristics.fitting.figures import DeviceLoss, Lost
from normtune.heuristics.regret.legality import served_variants
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.relative_tree import RelativeTree, choose_on
from normtune.kernels.tablefile.tree import counted_leaves

MAX_LEAVES = 24
ENOUGH = 5000  # log_ppm: 0.5 %


class KeyData(NamedTuple):
    """The data of one key.

    Attributes:
        spec: of the operator.
        key: of the data.
        parts: the data of each GPU.
        labels: names of these GPUs.
    """

    spec: OperatorSpec
    key: Key
    parts: tuple[Part, ...]
    labels: tuple[str, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants that use a function of this key."""
        return served_variants(self.spec, self.key)

    def shapes(self) -> list[Shape]:
        """The shapes of all problems."""
        return [shape for part in self.parts for shape in part.matrix.problems]


class FittedOnEach(NamedTuple):
    """A function's tree, and for each of several GPUs the tree fitted without it."""

    tree: RelativeTree
    without: tuple[RelativeTree | None, ...]


def chosen(kind: KeyData, legal: EveryGpu, leaves: int | None) -> FittedOnEach:
    """The function of a key, with at most `leaves` leaves; None for as many as the data support.

    Raises:
        NormtuneError: no legal tree has so few leaves.
    """
    most = leaves or MAX_LEAVES
    joint = Joint(kind.parts, legal, most)
    others = [kind.parts[:index] + kind.parts[index + 1 :] for index in range(len(kind.parts))]
    without = [Joint(other, legal, most) for other in others if other]
    figures = enumerate((_left_out(kind, joint, without, count) for count in range(1, most + 1)), 1)
    scores = [(figure, count) for count, figure in figures if figure is not None]
    # More leaves than the data support are taken only if fewer have no legal tree.
    scores = [pair for pair in scores if pair[1] <= most_leaves(kind, leaves)] or scores[:1]
    if not scores:
        raise NormtuneError(
            f"no table of at most {counted_leaves(most)} covers {kind.key}: too few configs were measured "
            "everywhere; allow more leaves, or sweep the default space"
        )
    enough = min(scores)[0] + ENOUGH
    count = scores[-1][1] if leaves else next(count for figure, count in scores if figure <= enough)
    tree = joint.tree(count)
    if tree is None:
        raise AssertionError("a tree that was scored exists")
    return FittedOnEach(tree, tuple(left_out_fit.tree(count) for left_out_fit in without))


def most_leaves(kind: KeyData, leaves: int | None) -> int:
    """The most leaves: the user's number, else one per five problems, so that the tree does not follow noise."""
    return leaves or max(1, min(MAX_LEAVES, min(len(part.matrix.problems) for part in kind.parts) // 5))


def _left_out(kind: KeyData, joint: Joint, without: Sequence[Joint], count: int) -> int | None:
    """Score of a number of leaves: mean regret on left-out GPUs, or on the only GPU; None without a tree."""
    on_data = joint.least(count)
    if on_data is None or not without:
        return on_data
    means = []
    for part, fitted in zip(kind.parts, without, strict=True):
        tree = fitted.tree(count)
        if tree is None:
            return None
        means.append(lost_on(kind.spec, part, tree).mean)
    return sum(means) // len(means)


def gain_over_default(kind: KeyData, choice: FittedOnEach) -> int:
    """How much less a function loses than the operator's default config on GPUs left out of the fit, log_ppm.

    The mean over these GPUs, at shapes where both have times; 0 without any.
    """
    gains = []
    for part, tree in zip(kind.parts, choice.without, strict=False):
        target, matrix = part
        saved: list[int | None] = []
        for index, shape in enumerate(matrix.problems):
            default = kind.spec.default_config(Problem.at(kind.key, shape), target)
            config = default if tree is None else choose_on(tree, shape, target.sms, target.l2_bytes)
            before, after = matrix.loss(index, default), matrix.loss(index, config)
            saved.append(None if before is None or after is None else before - after)
        gains.append(matrix.mean(saved) or 0)
    return sum(gains) // len(gains) if gains else 0


def figures_on(kind: KeyData, choice: FittedOnEach, source: Sequence[DeviceLoss] = ()) -> tuple[DeviceLoss, ...]:
    """Losses of a function on each GPU of a key's data.

    For a function of another key, `source` has its figures, whose GPUs are in the order of `choice.without`.
    """
    order = [figure.device for figure in source] or list(kind.labels)
    without = dict(zip(order, choice.without, strict=False)) if choice.without else {}
    figures = []
    for label, part in zip(kind.labels, kind.parts, strict=True):
        tree = without.get(label)
        left_out = lost_on(kind.spec, part, tree) if tree else None
        figures.append(DeviceLoss(label, lost_on(kind.spec, part, choice.tree), left_out))
    return tuple(figures)


def lost_on(spec: OperatorSpec, part: Part, tree: RelativeTree) -> Lost:
    """Loss of a tree on a GPU; where its config has no time, the default config's loss, else the slowest's."""
    target, matrix = part
    losses = []
    for index, shape in enumerate(matrix.problems):
        loss = matrix.loss(index, choose_on(tree, shape, target.sms, target.l2_bytes))
        if loss is None:
            problem = Problem(matrix.key, *shape)
            loss = matrix.loss(index, spec.default_config(problem, target))
        losses.append(int(matrix.regret[index].max()) if loss is None else loss)
    mean = matrix.mean(losses)
    if mean is None:
        raise AssertionError("a timing matrix has problems with a weight")
    return Lost(mean, max(losses))
