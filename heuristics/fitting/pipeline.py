"""From evidence to a table: which functions it has, what they serve, and how good they are.

In: evidence of one device. Out: `Fit`: a tree with figures for each operator variant and dtype that gets a function of
its own, and what shares another's: `serving` decides that. How it is written down is in `emit`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import Incumbents
from normtune.heuristics.fitting.case import Asked
from normtune.heuristics.fitting.forward_backward import Side, sides_of, together
from normtune.heuristics.fitting.invariant_functions import invariant_functions
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.parallel import in_order, processes_for
from normtune.heuristics.fitting.result import Fit, FromData, Function, Shared
from normtune.heuristics.fitting.serving import functions_of
from normtune.heuristics.regret.build import check_times, older
from normtune.heuristics.regret.legality import all_variants
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import Weighting
from normtune.heuristics.rules import liger
from normtune.heuristics.tablefile.header import Known
from normtune.heuristics.tablefile.tree import Tree
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import join_key, split_key
from normtune.kernels.target import Target, target_for
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

Part = TypeVar("Part")

# No function is fitted to what is left of so few.
MOST_UNUSED = 0.5


def fit(
    evidence: "Evidence",
    options: FitOptions | None = None,
    *,
    incumbents: Incumbents | None = None,
    known: Mapping[tuple[str, str], Known] | None = None,
    given: Mapping[tuple[str, str], Tree] | None = None,
) -> Fit:
    """The best table for the evidence.

    Args:
        evidence: measurements of one device.
        options: what is asked for; None for the defaults.
        incumbents: what is in use, than which no leaf may be slower.
        known: (key, dtype) to what an earlier fit chose, which then is not chosen again.
        given: (key, dtype) to the trees of an earlier fit, which then are judged and not sought.

    Raises:
        UsageError: there are several devices or regimes in the evidence, an operator has no data, or weights are none.
        NormtuneError: there is no data, or no legal function under these conditions. One function that there is not
            costs no other: it is left out, and a note says why.
    """
    options = options or FitOptions()
    check_operators(evidence, options.operators)
    selected = evidence.select(options.operators)
    if selected.frame.empty:
        raise NormtuneError("there are no measurements to fit: run `normtune sweep` first")
    device, regime = _one_device(selected.devices()), _one_regime(selected.regimes())
    data = used(evidence, options.operators)
    notes = older(selected, data)
    target = target_for(device.target, device.sms)
    asked = Asked(target, options, incumbents, known or {}, given or {})
    parts, weighting = of_operators(data, options, lambda spec, weighting: _part(data, spec, asked, weighting))
    functions = [function for part in parts for function in part.functions]
    notes += [note for part in parts for note in part.notes]
    if not functions:
        raise NormtuneError("there is no table: " + "; ".join(notes))
    shapes = [shape for part in parts for shape in part.shapes]
    return Fit(
        **vars(FromData.of(data, shapes, regime, (*notes, *weighting.notes()))),
        device=device,
        functions=tuple(functions),
        shared=tuple(share for part in parts for share in part.shared),
        weights=options.weights,
        together=tuple(together([side for part in parts for side in part.sides], liger.choose)),
    )


def of_operators(
    data: "Evidence", options: FitOptions, part: Callable[[OperatorSpec, Weighting], Part]
) -> tuple[list[Part], Weighting]:
    """What `part` finds of each operator by name, and the weights with what they have met.

    Large data are looked at in processes of their own.
    """
    weighting = Weighting(options.weights)

    def weighed(name: str) -> tuple[Part, Weighting]:
        return part(operator(name), weighting), weighting

    names = sorted({name for name, _, _ in data.kinds()})
    pairs = list(in_order(weighed, names, processes_for(len(data.frame))))
    for _, met in pairs:
        weighting.join(met)
    return [found for found, _ in pairs], weighting


class _Part(NamedTuple):
    """What is found of one operator.

    Attributes:
        functions, shared, notes: as in `Fit`.
        sides: for figures of two operators together.
        shapes: that were measured.
    """

    functions: list[Function]
    shared: list[Shared]
    notes: list[str]
    sides: list[Side]
    shapes: list[tuple[int, int]]


def _part(data: "Evidence", spec: OperatorSpec, asked: Asked, weighting: Weighting) -> _Part:
    notes: list[str] = []
    matrices = [weighting.weighted(spec, matrix) for matrix in _matrices(data, spec, asked.target, notes)]
    cases = [asked.case(spec, matrix) for matrix in matrices]
    functions, shared = functions_of(cases, notes)
    plain = {(one.operator, dtype): one.tree for one in functions if not one.variant for dtype in one.dtypes}
    sides = sides_of(data, matrices, plain)
    if asked.options.batch_invariant:
        invariant = invariant_functions(data, cases, functions, shared, notes)
        functions, shared = [*functions, *invariant[0]], [*shared, *invariant[1]]
    shapes = [shape for matrix in matrices for shape in matrix.problems]
    return _Part(functions, shared, notes, sides, shapes)


def used(evidence: "Evidence", operators: Sequence[str] = ()) -> "Evidence":
    """The measurements that a fit uses: of these operators, taken with the newest kernels of each."""
    return evidence.select(operators).current()


def check_operators(evidence: "Evidence", operators: Sequence[str]) -> None:
    """Refuse what a fit is asked for and nobody measured.

    Args:
        evidence: of all operators.
        operators: plain names, or names with a variant, which its plain operator's measurements do for.

    Raises:
        UsageError: there are no measurements of one of them.
    """
    for key in operators:
        name, variant = split_key(key)
        kinds = evidence.kinds()
        if not any(name == own and variant in ("", of_it) for own, of_it, _ in kinds):
            measured = ", ".join(sorted({own for own, _, _ in kinds})) or "none"
            raise UsageError(f"no measurements of operator {key!r}: measured are {measured}")


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
    pairs = {(variant, dtype) for name, variant, dtype in evidence.kinds() if name == spec.name}
    found = []
    for variant, dtype in (pair for pair in donors_first(spec) if pair in pairs):
        matrix = timing_matrix(evidence, spec, variant, dtype, target)
        if matrix is None:
            notes.append(f"left out {join_key(spec.name, variant)} {dtype}: it has no times that can be compared")
            continue
        check_times(evidence, matrix)
        unused, measured = matrix.unused
        if unused:
            too_many = unused > MOST_UNUSED * measured
            notes.append(
                f"{'left out ' * too_many}{matrix.key} {dtype}: {unused} of {measured} measurements share no round "
                "with the others, or their run no config, and only times of a round are compared: time configs in turns"
            )
            if too_many:
                continue
        found.append(matrix)
    return found


def donors_first(spec: OperatorSpec) -> list[tuple[str, str]]:
    """The variants and dtypes in the order in which they lend: plain first, then bfloat16, then as the spec lists."""
    dtypes = sorted(spec.dtypes, key=lambda dtype: dtype != "bfloat16")
    return [(variant, dtype) for variant in all_variants(spec) for dtype in dtypes]
