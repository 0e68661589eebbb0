"""The fit of one table for any GPU to measurements of several GPUs: functions of relative sizes.

`function` fits each function and scores it on each GPU, also when it is fitted without that GPU. A function that loses
more there than the operator's default config is left out: calls then take the default. A dtype or variant shares the
function of another within the same bound as in `fitting.sharing`.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.any_gpu.function import (
    FittedOnEach,
    KeyData,
    chosen,
    figures_on,
    gain_over_default,
    lost_on,
    most_leaves,
)
from normtune.heuristics.any_gpu.joint import Joint, Part
from normtune.heuristics.any_gpu.legality import EveryGpu, targets_of
from normtune.heuristics.any_gpu.result import AnyGpuFit, AnyGpuFunction, AnyGpuShared
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import check_operators, donors_first, of_operators
from normtune.heuristics.fitting.result import FromData
from normtune.heuristics.fitting.sharing import SHARING_COST, donors
from normtune.heuristics.regret.build import older
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.regret.specs import undeclared_note
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, find
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.tablefile.tree import configs_of
from normtune.kernels.target import Target
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


def fit_all(evidence: "Evidence", options: FitOptions | None = None) -> AnyGpuFit:
    """The best table for any GPU from measurements of several GPUs.

    Args:
        evidence: measurements of any number of devices.
        options: `leaves`, `operators`, `weights` and `regime`; the others must have their defaults.

    Raises:
        UsageError: another option is set, an operator has no data, or weights are invalid.
        NormtuneError: there is no data, only one problem of each, or no legal function of so few leaves. If only some
            functions are missing, they are left out, with a note that says why.
    """
    options = options or FitOptions()
    _check(options)
    check_operators(evidence, options.operators)
    selected = evidence.select(options.operators).regime(options.regime)
    data = selected.current()
    devices = data.devices()
    specs = {key: find(key.operator) for key in data.function_keys()}
    axes = {key: spec.whole.axes for key, spec in specs.items() if spec}
    if named := [key for key, names in axes.items() if len(names) > len(AXES)]:
        sizes = ", ".join(axes[named[0]])
        raise UsageError(f"a table for any GPU has functions of rows and hidden: {named[0]} has {sizes}")
    if not devices:
        raise NormtuneError("there are no measurements to fit: sweep first")
    targets = targets_of([device.target for device in devices])
    parts, weighting = of_operators(
        data, options, lambda spec, weighting: _part(*_kinds(data, devices, spec, weighting), targets, options.leaves)
    )
    functions = [function for part in parts for function in part.functions]
    left_out = [note for part in parts for note in part.notes]
    if not functions:
        raise NormtuneError("there is no table: " + "; ".join(left_out))
    shared = tuple(share for part in parts for share in part.shared)
    shapes = {key: of_key for part in parts for key, of_key in part.shapes.items()}
    keys = [*(function.key for function in functions), *(share.key for share in shared)]
    notes = (*older(selected, data), *_earlier(data, devices), *left_out, *weighting.notes(), *_few(devices))
    return AnyGpuFit(
        **vars(FromData.of(data, {key: shapes[key] for key in keys}, options.regime, notes)),
        devices=tuple(devices),
        functions=tuple(functions),
        shared=shared,
    )


class _JointFit(NamedTuple):
    functions: list[AnyGpuFunction]
    shared: list[AnyGpuShared]
    notes: list[str]
    shapes: dict[Key, Collection[Shape]]


def _check(options: FitOptions) -> None:
    kept = FitOptions(
        leaves=options.leaves, operators=options.operators, weights=options.weights, regime=options.regime
    )
    if options != kept:
        other = " ".join(word for word in options.words() if word not in kept.words())
        raise UsageError(
            f"{other} is for the table of one GPU: --all-devices takes --leaves, --operator, --weights and --regime"
        )


def _earlier(data: "Evidence", devices: Sequence[Device]) -> list[str]:
    """Notes on devices that were measured with other kernels than the newest."""
    notes, newest = [], data.fingerprints()
    for device in devices:
        found = data.of(device).fingerprints().items()
        if names := [name for name, one in found if one != newest[name]]:
            advice = "a sweep with --stale repeats them"
            notes.append(f"{device.label} has times of earlier kernels of {', '.join(names)}: {advice}")
    return notes


def _few(devices: Sequence[Device]) -> list[str]:
    if len(devices) > 1:
        return []
    return [f"{devices[0].label} is the only device: what the table loses on one that was left out is unknown"]


def _kinds(
    data: "Evidence", devices: Sequence[Device], spec: OperatorSpec, weighting: Weighting
) -> tuple[list[KeyData], list[str]]:
    """The data of each measured key, possible donors first, and notes on those that are left out."""
    kinds, notes = [], undeclared_note(spec)
    evidences = [(device, data.of(device)) for device in devices]
    for key in donors_first(data, spec):
        parts, labels = [], []
        for device, evidence in evidences:
            target = device.as_target()
            matrix = timing_matrix(evidence, spec, key, target)
            if matrix and len(matrix.problems) > 1:
                parts.append(Part(target, weighting.weighted(spec, matrix)))
                labels.append(device.label)
        if parts:
            # Only of configs that all GPUs have timed is it known what they lose on a GPU that is left out.
            common = set.intersection(*(set(matrix.configs) for _, matrix in parts))
            parts = [Part(target, matrix.of_configs(common)) for target, matrix in parts] if common else parts
            kinds.append(KeyData(spec, key, tuple(parts), tuple(labels)))
        else:
            notes.append(f"left out {key}: a function needs comparable times of two problems on one device")
    return kinds, notes


def _part(kinds: Sequence[KeyData], notes: list[str], targets: Sequence[Target], leaves: int | None) -> _JointFit:
    functions: list[AnyGpuFunction] = []
    choices: list[FittedOnEach] = []
    shared: list[AnyGpuShared] = []
    for kind in kinds:
        taken = _taken(kind, functions, targets, leaves)
        if taken:
            index, cost = taken
            donor = functions[index]
            figures = figures_on(kind, choices[index], donor.figures)
            shared.append(AnyGpuShared(kind.key, donor.key, cost, figures))
            if donor.key.modes == kind.key.modes:
                functions[index] = replace(donor, dtypes=(*donor.dtypes, kind.key.dtype))
            continue
        measured = {other.key.dtype for other in kinds if other.key.modes == kind.key.modes}
        first = not any(function.key.modes == kind.key.modes for function in functions)
        rest = [dtype for dtype in kind.spec.dtypes if dtype not in measured] if first else []
        dtypes = (kind.key.dtype, *rest)
        try:
            choice = chosen(kind, EveryGpu(kind.spec, targets, dtypes, kind.variants), leaves)
        except NormtuneError as error:
            notes.append(f"left out {kind.key}: {error}")
            continue
        if (gain := gain_over_default(kind, choice)) < 0:
            notes.append(
                f"left out {kind.key}: on GPUs left out of the fit it is {percent(-gain)} slower than the default "
                "config"
            )
            continue
        choices.append(choice)
        count = len(list(configs_of(choice.tree)))
        figures = figures_on(kind, choice)
        functions.append(AnyGpuFunction(kind.key, choice.tree, dtypes, count, figures))
    return _JointFit(functions, shared, notes, {kind.key: kind.shapes() for kind in kinds})


def _taken(
    kind: KeyData, functions: Sequence[AnyGpuFunction], targets: Sequence[Target], leaves: int | None
) -> tuple[int, int] | None:
    """Index of the first function that can be shared, and the mean cost, every GPU with the same weight."""
    legal = EveryGpu(kind.spec, targets, (kind.key.dtype,), kind.variants)
    for index in donors(functions, kind.key):
        donor = functions[index]
        if any(legal.breaches(donor.tree)):
            continue
        least = Joint(kind.parts, legal, donor.leaves).least(min(most_leaves(kind, leaves), donor.leaves))
        lost = [lost_on(kind.spec, part, donor.tree).mean for part in kind.parts]
        cost = sum(lost) // len(lost) - least if least is not None else 0
        if cost <= SHARING_COST:
            return index, cost
    return None
