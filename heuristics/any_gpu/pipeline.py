"""From the evidence of several GPUs to one table that serves any GPU.

In: evidence of any number of devices. Out: `AnyGpuFit`: functions of normalised sizes for each operator variant and
dtype, what they lose on each GPU, and on each GPU when they are fitted without it. How it is written is in `emit_any`.

Each function is chosen as `any_gpu_function` says. A dtype or variant takes the function of another by the same bound
as in `serving`, one dtype in its own table.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.any_gpu.function import Choice, Kind, chosen, figures_on, lost_on, most_leaves
from normtune.heuristics.any_gpu.joint import Joint, Part
from normtune.heuristics.any_gpu.legality import EveryGpu, targets_of
from normtune.heuristics.any_gpu.result import AnyGpuFit, AnyGpuFunction, AnyGpuShared
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.parallel import in_order, processes_for
from normtune.heuristics.fitting.pipeline import check_operators
from normtune.heuristics.fitting.serving import SHARING_COST
from normtune.heuristics.regret.build import older
from normtune.heuristics.regret.legality import all_variants
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.regret.weights import Weighting
from normtune.heuristics.tablefile.relative_tree import leaves_of
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.target import Target, target_for
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


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


def _kinds(data: "Evidence", devices: Sequence[Device], spec: OperatorSpec, weighting: Weighting) -> list[Kind]:
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
                    parts.append(Part(target, weighting.weighted(spec, matrix)))
                    labels.append(device.label)
            if parts:
                found.append(Kind(spec, variant, dtype, tuple(parts), tuple(labels)))
    return found


def _fit_operator(
    kinds: Sequence[Kind], targets: Sequence[Target], leaves: int | None
) -> tuple[list[AnyGpuFunction], list[AnyGpuShared]]:
    functions: list[AnyGpuFunction] = []
    choices: dict[tuple[str, str], Choice] = {}
    shared: list[AnyGpuShared] = []
    for kind in kinds:
        donors = _donors(functions, kind)
        taken = _taken(kind, donors, targets, leaves)
        if taken:
            donor, cost = taken
            figures = figures_on(kind, choices[donor.key, donor.dtype], donor.figures)
            shared.append(AnyGpuShared(kind.key, kind.dtype, (donor.key, donor.dtype), cost, figures))
            if donor.variant == kind.variant:
                place = functions.index(donor)
                functions[place] = replace(donor, dtypes=(*donor.dtypes, kind.dtype))
            continue
        measured = {other.dtype for other in kinds if other.variant == kind.variant}
        first = not any(one.variant == kind.variant for one in functions)
        rest = [dtype for dtype in kind.spec.dtypes if dtype not in measured] if first else []
        dtypes = (kind.dtype, *rest)
        choice = chosen(kind, EveryGpu(kind.spec, targets, dtypes, kind.variants), leaves)
        choices[kind.key, kind.dtype] = choice
        count = len(list(leaves_of(choice.tree)))
        figures = figures_on(kind, choice)
        functions.append(AnyGpuFunction(kind.spec.name, kind.variant, kind.dtype, choice.tree, dtypes, count, figures))
    return functions, shared


def _donors(functions: Sequence[AnyGpuFunction], kind: Kind) -> list[AnyGpuFunction]:
    """The functions that may serve in its place, in the order in which they are asked."""
    plain = [one for one in functions if not one.variant and kind.dtype in one.dtypes] if kind.variant else []
    return [*plain, *[one for one in functions if one.variant == kind.variant][:1]]


def _taken(
    kind: Kind, donors: Sequence[AnyGpuFunction], targets: Sequence[Target], leaves: int | None
) -> tuple[AnyGpuFunction, int] | None:
    """The first function that does in its place, and what that costs on average, every GPU alike."""
    legal = EveryGpu(kind.spec, targets, (kind.dtype,), kind.variants)
    for donor in donors:
        if any(legal.breaches(donor.tree)):
            continue
        own = Joint(kind.parts, legal, donor.leaves).least(min(most_leaves(kind, leaves), donor.leaves))
        lost = [lost_on(kind.spec, part, donor.tree).mean for part in kind.parts]
        cost = sum(lost) // len(lost) - own if own is not None else 0
        if cost <= SHARING_COST:
            return donor, cost
    return None
