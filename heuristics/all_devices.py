"""From the evidence of several GPUs to one table that serves any GPU.

In: evidence of any number of devices. Out: `AnyGpuFit`: functions of normalised sizes for each operator variant and
dtype, what they lose on each GPU, and on each GPU when they are fitted without it. How it is written is in `emit_any`.

Each GPU has the same weight, whatever was measured on it. Beside hidden a function cuts rows per multiprocessor, or
bytes of x per byte of L2 cache where that loses over `ENOUGH` less; so one function has thresholds of one kind. What
decides, between the two and for the number of leaves, is the mean regret on GPUs left out of the fit. One GPU leaves
nothing to be left out; then it is the regret on its own data, and the fewest leaves within `ENOUGH` of the most are
taken: a table for GPUs that nobody measured need not follow one GPU closely. A dtype or variant takes the function of
another by the same bound as in `serving`, one dtype in its own table.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.every_gpu import EveryGpu, targets_of
from normtune.heuristics.fitted_any import AnyGpuFit, AnyGpuFunction, AnyGpuShared, Lost, OnDevice
from normtune.heuristics.fitting import check_operators
from normtune.heuristics.joint import Joint, Part
from normtune.heuristics.legality import all_variants
from normtune.heuristics.matrices import older
from normtune.heuristics.matrix import timing_matrix
from normtune.heuristics.normalised import BYTES_PER_L2, ROWS_PER_SM, NormalisedTree, choose_on, leaves_of
from normtune.heuristics.options import FitOptions
from normtune.heuristics.parallel import in_order, processes_for
from normtune.heuristics.serving import SHARING_COST
from normtune.heuristics.tree import counted_leaves
from normtune.heuristics.weights import Weighting
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import join_key
from normtune.kernels.target import Target, target_for
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.frame import Evidence

MAX_LEAVES = 24
ENOUGH = 5000  # millionths: 0.5 %


class _Kind(NamedTuple):
    """The data of one operator variant and dtype."""

    spec: OperatorSpec
    variant: str
    dtype: str
    parts: tuple[Part, ...]
    labels: tuple[str, ...]

    @property
    def key(self) -> str:
        return join_key(self.spec.name, self.variant)

    @property
    def variants(self) -> tuple[str, ...]:
        """What a function of it serves: the plain one is what every variant falls back to."""
        return (self.variant,) if self.variant else all_variants(self.spec)

    def box(self) -> tuple[int, int, int, int]:
        """Least and most rows, least and most hidden."""
        shapes = [shape for part in self.parts for shape in part.matrix.problems]
        rows, hidden = zip(*shapes, strict=True)
        return min(rows), max(rows), min(hidden), max(hidden)


class _Choice(NamedTuple):
    """A function's tree, and the trees that are fitted in the same way without one GPU each."""

    tree: NormalisedTree
    without: tuple[NormalisedTree | None, ...]


def fit_all(evidence: "Evidence", options: FitOptions | None = None) -> AnyGpuFit:
    """The best shared table for the evidence of all of its devices.

    Args:
        evidence: measurements of any number of devices.
        options: `leaves`, `operators`, `weights` and `regime` of them are asked for, the others stay at their defaults.

    Raises:
        UsageError: another option is set, an operator has no data, or weights are none.
        NormtuneError: there is no data, only one problem of each, or no legal table of so few leaves.
    """
    options = options or FitOptions()
    _check(options)
    check_operators(evidence, options.operators)
    selected = evidence.select(options.operators).regime(options.regime)
    data = selected.current()
    devices = data.devices()
    if not devices:
        raise NormtuneError("there are no measurements to fit: run `normtune sweep` first")
    targets = targets_of([device.target for device in devices])
    weighting = Weighting(options.weights)
    names = sorted(set(data.frame["operator"]))
    parts = list(
        in_order(
            lambda name: _part(data, devices, operator(name), weighting, targets, options.leaves),
            names,
            processes_for(len(data.frame)),
        )
    )
    for part in parts:
        weighting.join(part.weighting)
    functions = [one for part in parts for one in part.functions]
    boxes = [box for part in parts for box in part.boxes]
    if not functions:
        raise NormtuneError("a table needs times of at least two problems of an operator and dtype on one device")
    newest = data.runs[-1]
    return AnyGpuFit(
        devices=tuple(devices),
        software=newest.software,
        date=newest.started[:10],
        digest=data.digest(),
        measurements=len(data.frame),
        fingerprints=data.fingerprints(),
        measured=(
            min(box[0] for box in boxes),
            max(box[1] for box in boxes),
            min(box[2] for box in boxes),
            max(box[3] for box in boxes),
        ),
        functions=tuple(functions),
        shared=tuple(one for part in parts for one in part.shared),
        notes=(*older(selected, data), *weighting.notes(), *_few(devices)),
        regime=options.regime,
    )


class _Part(NamedTuple):
    """What is found of one operator.

    Attributes:
        functions, shared: as in `AnyGpuFit`.
        boxes: least and most rows, least and most hidden of what was measured.
        weighting: with what it has met.
    """

    functions: list[AnyGpuFunction]
    shared: list[AnyGpuShared]
    boxes: list[tuple[int, int, int, int]]
    weighting: Weighting


def _part(
    data: "Evidence",
    devices: Sequence[Device],
    spec: OperatorSpec,
    weighting: Weighting,
    targets: Sequence[Target],
    leaves: int | None,
) -> _Part:
    kinds = _kinds(data, devices, spec, weighting)
    return _Part(*_fit_operator(kinds, targets, leaves), [kind.box() for kind in kinds], weighting)


def _check(options: FitOptions) -> None:
    """Refuse what a shared table cannot be asked for.

    Raises:
        UsageError: an option is set that it does not know.
    """
    kept = FitOptions(options.leaves, options.operators, weights=options.weights, regime=options.regime)
    if options != kept:
        other = " ".join(word for word in options.words() if word not in kept.words())
        raise UsageError(
            f"{other} is for the table of one GPU: --all-devices takes --leaves, --operator, --weights and --regime"
        )


def _few(devices: Sequence[Device]) -> list[str]:
    if len(devices) > 1:
        return []
    return [f"{devices[0].label} is the only device: what the table loses on one that was left out is unknown"]


def _kinds(data: "Evidence", devices: Sequence[Device], spec: OperatorSpec, weighting: Weighting) -> list[_Kind]:
    """What was measured of an operator: plain ones first, bfloat16 first, then as the spec lists dtypes."""
    found = []
    evidences = [(device, data.of(device)) for device in devices]
    for variant in all_variants(spec):
        for dtype in sorted(spec.dtypes, key=lambda dtype: dtype != "bfloat16"):
            parts, labels = [], []
            for device, evidence in evidences:
                target = target_for(device.target, device.sms)._replace(l2_bytes=device.l2_bytes)
                matrix = timing_matrix(evidence, spec, variant, dtype, target)
                if matrix and len(matrix.problems) > 1:
                    weights = weighting.of(spec, variant, dtype, matrix.problems)
                    parts.append(Part(target, replace(matrix, weights=weights)))
                    labels.append(device.label)
            if parts:
                found.append(_Kind(spec, variant, dtype, tuple(parts), tuple(labels)))
    return found


def _fit_operator(
    kinds: Sequence[_Kind], targets: Sequence[Target], leaves: int | None
) -> tuple[list[AnyGpuFunction], list[AnyGpuShared]]:
    functions: list[AnyGpuFunction] = []
    choices: dict[tuple[str, str], _Choice] = {}
    shared: list[AnyGpuShared] = []
    for kind in kinds:
        donors = _donors(functions, kind)
        taken = _taken(kind, donors, targets, leaves)
        if taken:
            donor, cost = taken
            figures = _figures(kind, choices[donor.key, donor.dtype], donor.figures)
            shared.append(AnyGpuShared(kind.key, kind.dtype, (donor.key, donor.dtype), cost, figures))
            if donor.variant == kind.variant:
                place = functions.index(donor)
                functions[place] = replace(donor, dtypes=(*donor.dtypes, kind.dtype))
            continue
        measured = {other.dtype for other in kinds if other.variant == kind.variant}
        first = not any(one.variant == kind.variant for one in functions)
        rest = [dtype for dtype in kind.spec.dtypes if dtype not in measured] if first else []
        dtypes = (kind.dtype, *rest)
        choice = _chosen(kind, EveryGpu(kind.spec, targets, dtypes, kind.variants), leaves)
        choices[kind.key, kind.dtype] = choice
        count = len(list(leaves_of(choice.tree)))
        figures = _figures(kind, choice)
        functions.append(AnyGpuFunction(kind.spec.name, kind.variant, kind.dtype, choice.tree, count, figures, dtypes))
    return functions, shared


def _donors(functions: Sequence[AnyGpuFunction], kind: _Kind) -> list[AnyGpuFunction]:
    """The functions that may serve in its place, in the order in which they are asked."""
    plain = [one for one in functions if not one.variant and kind.dtype in one.dtypes] if kind.variant else []
    return [*plain, *[one for one in functions if one.variant == kind.variant][:1]]


def _taken(
    kind: _Kind, donors: Sequence[AnyGpuFunction], targets: Sequence[Target], leaves: int | None
) -> tuple[AnyGpuFunction, int] | None:
    """The first function that does in its place, and what that costs on average, every GPU alike."""
    legal = EveryGpu(kind.spec, targets, (kind.dtype,), kind.variants)
    for donor in donors:
        if any(legal.breaches(donor.tree)):
            continue
        own = Joint(kind.parts, legal, donor.leaves).least(min(_most(kind, leaves), donor.leaves))
        lost = [_lost(kind.spec, part, donor.tree).mean for part in kind.parts]
        cost = sum(lost) // len(lost) - own if own is not None else 0
        if cost <= SHARING_COST:
            return donor, cost
    return None


def _chosen(kind: _Kind, legal: EveryGpu, leaves: int | None) -> _Choice:
    """The function of a kind's own.

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
        known = [pair for pair in known if pair[1] <= _most(kind, leaves)] or known[:1]
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
    return _Choice(tree, tuple(one.tree(count) for one in without))


def _most(kind: _Kind, leaves: int | None) -> int:
    """The most leaves: as asked for, else for five problems each, or a function would follow the noise of each."""
    return leaves or max(1, min(MAX_LEAVES, min(len(part.matrix.problems) for part in kind.parts) // 5))


def _left_out(kind: _Kind, joint: Joint, without: Sequence[Joint], count: int) -> int | None:
    """What decides on the number of leaves: mean regret on GPUs left out, or on the only one; None without a tree."""
    on_data = joint.least(count)
    if on_data is None or not without:
        return on_data
    lost = []
    for part, one in zip(kind.parts, without, strict=True):
        tree = one.tree(count)
        if tree is None:
            return None
        lost.append(_lost(kind.spec, part, tree).mean)
    return sum(lost) // len(lost)


def _figures(kind: _Kind, choice: _Choice, given: Sequence[OnDevice] = ()) -> tuple[OnDevice, ...]:
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
        left_out = _lost(kind.spec, part, tree) if tree else None
        found.append(OnDevice(label, _lost(kind.spec, part, choice.tree), left_out))
    return tuple(found)


def _lost(spec: OperatorSpec, part: Part, tree: NormalisedTree) -> Lost:
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
