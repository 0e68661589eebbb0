"""The fit of one device's table: its functions, their dtypes and variants, and their figures.

`function` fits one function, `sharing` decides which variants and dtypes share one, `writing.emit` writes the table.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import Incumbents
from normtune.heuristics.fitting.batch_invariant import invariant_functions
from normtune.heuristics.fitting.case import FitArguments, TableEntry
from normtune.heuristics.fitting.in_use import Compared, InUse
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.result import Fit, FittedFunction, Shared, box_around, by_function, data_of
from normtune.heuristics.fitting.searched import searched
from normtune.heuristics.fitting.sharing import functions_of
from normtune.heuristics.regret.build import check_times, older
from normtune.heuristics.regret.legality import all_variants
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.measurements import Alignment
from normtune.heuristics.regret.specs import spec_of, undeclared_note
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Shape
from normtune.kernels.target import Target, target_for
from normtune.results.parallel.maps import in_order
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Receives the number of fitted functions and the number of all, after each operator.
Progress: TypeAlias = Callable[[int, int], None]

# Seconds for the matrix of a measurement, the least part of a fit.
_SECONDS = 1e-4
# No function is fitted if more than this share of the measurements is unused.
MOST_UNUSED = 0.5
# Number of shapes that a note names.
_NAMED = 3


def fit(
    evidence: "Evidence",
    options: FitOptions | None = None,
    *,
    incumbents: Incumbents | None = None,
    replaced: Incumbents | None = None,
    decisions: Mapping[Key, TableEntry] | None = None,
    progress: Progress | None = None,
) -> Fit:
    """The best table for the evidence.

    Args:
        evidence: measurements of one device.
        options: of the fit; None for the defaults.
        incumbents: the baseline; no leaf may be slower.
        replaced: the table that the new one replaces, which it is compared with in place of a baseline.
        decisions: by key decisions of an earlier fit, which are kept.
        progress: receives how many functions of how many are fitted; None for nobody.

    Raises:
        UsageError: the evidence has several devices or cache modes, an operator has no data, or weights are invalid.
        NormtuneError: there is no data, or no legal function under these conditions. If only some functions are
            impossible, they are left out, with a note.
    """
    options = options or FitOptions()
    check_operators(evidence, options.operators)
    selected = evidence.select(options.operators)
    if selected.frame.empty:
        raise NormtuneError("there are no measurements to fit: sweep first")
    device, regime = _one_device(selected.devices()), _one_regime(selected.regimes())
    weighting = Weighting(options.weights)
    current = used(evidence, options.operators)
    data = weighting.weighed(current)
    notes = older(selected, current) + weighting.notes(current)
    target = target_for(device.target, device.sms)
    arguments = FitArguments(target, options, incumbents, decisions or {})
    in_use = InUse(incumbents or replaced, options.baseline or "the table that it replaces", device, target)

    def part_of(name: str) -> _OperatorFit:
        return _part(data, spec_of(data, name), arguments, weighting, in_use)

    counts = Counter(key.operator for key in data.function_keys())
    names, parts, done = sorted(counts), [], 0
    for name, part in zip(names, in_order(part_of, names, _SECONDS * len(data.frame)), strict=True):
        parts.append(part)
        done += counts[name]
        if progress:
            progress(done, counts.total())
    functions = [function for part in parts for function in part.functions]
    notes += [note for part in parts for note in part.notes]
    if not functions:
        raise NormtuneError("there is no table: " + "; ".join(notes))
    shared = tuple(share for part in parts for share in part.shared)
    shapes = {key: of_key for part in parts for key, of_key in part.shapes.items()}
    keys = [*(function.key for function in functions), *(share.key for share in shared)]
    return Fit(
        device=device,
        functions=tuple(functions),
        shared=shared,
        measured={key: box_around(key, shapes[key.usual]) for key in keys},
        data=data_of(data, regime),
        software=data.runs[-1].software,
        fingerprints=by_function(data.fingerprints()),
        notes=tuple(notes),
        weights=options.weights,
        searched=tuple(line for part in parts for line in part.searched),
        compared={key: compared for part in parts for key, compared in part.compared.items()},
    )


class _OperatorFit(NamedTuple):
    """Result for one operator, as in `Fit`."""

    functions: list[FittedFunction]
    shared: list[Shared]
    notes: list[str]
    shapes: dict[Key, tuple[Shape, ...]]
    searched: list[str]
    compared: dict[Key, Compared]


def _part(
    data: "Evidence", spec: OperatorSpec, arguments: FitArguments, weighting: Weighting, in_use: InUse
) -> _OperatorFit:
    notes = undeclared_note(spec)
    matrices = [weighting.weighted(matrix) for matrix in _matrices(data, spec, arguments.target, notes)]
    cases = [arguments.case(spec, matrix) for matrix in matrices]
    functions, shared = functions_of(cases, notes)
    trees = {function.key: function.tree for function in functions}
    trees |= {share.key: trees[share.donor] for share in shared}
    lines = [searched(data, matrix.key) for matrix in matrices if matrix.key in trees]
    compared = {
        matrix.key: in_use.compared(spec, matrix, trees[matrix.key]) for matrix in matrices if matrix.key in trees
    }
    if arguments.options.batch_invariant:
        invariant = invariant_functions(cases, functions, shared, notes)
        functions, shared = [*functions, *invariant[0]], [*shared, *invariant[1]]
    shapes = {matrix.key: matrix.problems for matrix in matrices}
    return _OperatorFit(functions, shared, notes, shapes, [line for line in lines if line], compared)


def used(evidence: "Evidence", operators: Sequence[str] = (), weights: str | None = None) -> "Evidence":
    """The measurements that a fit uses: of the newest kernels of these operators, at the shapes that have weights."""
    return Weighting(weights).weighed(evidence.select(operators).current())


def check_operators(evidence: "Evidence", operators: Sequence[str]) -> None:
    """Refuse operators without measurements; for a variant, measurements of the plain operator suffice.

    Raises:
        UsageError: one of them was not measured.
    """
    for text in operators:
        key, keys = Key.parse(text, ""), evidence.measured_keys()
        if not any(
            key.operator in (other.operator, other.family) and key.variant in ("", other.variant) for other in keys
        ):
            measured = ", ".join(sorted({other.operator for other in keys})) or "none"
            raise UsageError(f"no measurements of operator {text!r}: measured are {measured}")


def _one_device(devices: Sequence[Device]) -> Device:
    if len(devices) > 1:
        named = "; ".join(f"{device.label} with {device.sms} SMs" for device in devices)
        raise UsageError(
            f"a table is for one device, but there are measurements of {len(devices)}: {named}; "
            "--out DIR/ writes a table for each, --install alone installs each"
        )
    return devices[0]


def _one_regime(regimes: Sequence[str]) -> str:
    if len(regimes) > 1:
        raise UsageError(f"times of regimes {', '.join(regimes)} are never compared: a table is fitted to one of them")
    return regimes[0]


def _matrices(evidence: "Evidence", spec: OperatorSpec, target: Target, notes: list[str]) -> list[TimingMatrix]:
    """The matrices of an operator that have times: plain ones first, dtypes in the spec's order."""
    matrices = []
    for key in donors_first(evidence, spec):
        matrix = timing_matrix(evidence, spec, key, target)
        if matrix is None:
            notes.append(f"left out {key}: it has no times that can be compared")
            continue
        check_times(matrix)
        alignment = matrix.alignment
        too_many = alignment.unused > MOST_UNUSED * alignment.measured
        notes += [f"{'left out ' * too_many}{key}: {note}" for note in _doubts(alignment)]
        if too_many:
            continue
        matrices.append(matrix)
    return matrices


def _doubts(alignment: Alignment) -> list[str]:
    """Notes on times that cannot be compared, or that contradict one another."""
    notes = []
    if alignment.unused:
        notes.append(
            f"{alignment.unused} of {alignment.measured} measurements share no round with the others, or their run no "
            "config; only times of one round are compared: time configs in turns (a sweep with --stale does)"
        )
    if alignment.doubtful:
        notes.append(
            f"{alignment.doubtful} of {alignment.joins} alignments of two visits to a shape disagree, by over 10 % "
            "between configs or 5 % between halves of the rounds"
        )
    if alignment.impossible:
        where = ", ".join(" x ".join(map(str, shape)) for shape in alignment.impossible[:_NAMED])
        count = len(alignment.impossible)
        notes.append(
            f"at {count} shape{'s' * (count > 1)} a config is faster than the best by over 3 times its error: visits "
            f"to the shape contradict one another ({where}{', ...' * (count > _NAMED)})"
        )
    return notes


def donors_first(evidence: "Evidence", spec: OperatorSpec) -> list[Key]:
    """The measured keys of an operator, possible donors first: plain ones, then bfloat16, then as the spec lists."""
    measured, dtypes = {*evidence.function_keys()}, sorted(spec.dtypes, key=lambda dtype: dtype != "bfloat16")
    every = (spec.key(dtype, variant) for variant in all_variants(spec) for dtype in dtypes)
    return [key for key in every if key in measured]
