"""From evidence to a table: which functions it has, what they serve, and how good they are.

In: evidence of one device. Out: `Fit`: a tree with figures for each operator variant and dtype that gets a function of
its own, and what shares another's. How it is written down is in `emit`.

Sharing. A dtype without data takes the function of bfloat16, else of the first dtype that has data. A dtype with data
takes bfloat16's where that costs at most `SHARING_COST` of mean regret on its own data, against the best tree of as
many leaves, and is legal for it; else it gets a function of its own. A variant is held to the same bound, first against
the plain operator's function of its dtype, to which dispatch falls back where the table has no entry, and then against
the variant's function of bfloat16; one that was measured on a smaller range of sizes than the plain operator takes its
function whatever that costs. A variant's function also serves the dtypes without data of the variant whose plain
function is the same as its own dtype's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitted import Fit, Function, Shared
from normtune.heuristics.function import fit_function
from normtune.heuristics.header import Known
from normtune.heuristics.incumbent import Incumbent, Incumbents
from normtune.heuristics.invariant_functions import invariant_functions
from normtune.heuristics.legality import Legality, all_variants
from normtune.heuristics.matrices import older
from normtune.heuristics.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.optimum import MAX_BINS
from normtune.heuristics.options import FitOptions
from normtune.heuristics.parallel import in_order, processes_for
from normtune.heuristics.rules import liger
from normtune.heuristics.sharing import extra, offer
from normtune.heuristics.solving import Solver
from normtune.heuristics.together import Side, sides_of, together
from normtune.heuristics.tree import Tree
from normtune.heuristics.weights import Weighting
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import join_key, split_key
from normtune.kernels.target import Target, target_for
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.frame import Evidence

SHARING_COST = 10_000  # millionths: 1 %


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
        NormtuneError: there is no data, only one problem, or no legal table under these conditions.
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
    weighting = Weighting(options.weights)
    asked = _Asked(target, options, incumbents, known or {}, given or {})

    names = sorted({name for name, _, _ in data.kinds()})
    processes = processes_for(len(data.frame))
    parts = list(in_order(lambda name: _part(data, operator(name), asked, weighting), names, processes))
    for part in parts:
        weighting.join(part.weighting)
    functions = [one for part in parts for one in part.functions]
    shapes = [shape for part in parts for shape in part.shapes]
    notes += [note for part in parts for note in part.notes]
    if not functions:
        raise NormtuneError(
            "a table needs times of at least two problems of an operator and dtype: " + "; ".join(notes)
        )
    newest = data.runs[-1]
    return Fit(
        device=device,
        software=newest.software,
        date=newest.started[:10],
        digest=data.digest(),
        measurements=len(data.frame),
        fingerprints=data.fingerprints(),
        measured=(
            min(rows for rows, _ in shapes),
            max(rows for rows, _ in shapes),
            min(hidden for _, hidden in shapes),
            max(hidden for _, hidden in shapes),
        ),
        functions=tuple(functions),
        shared=tuple(one for part in parts for one in part.shared),
        notes=(*notes, *weighting.notes()),
        weights=options.weights,
        together=tuple(together([side for part in parts for side in part.sides], liger.choose)),
        regime=regime,
    )


class _Asked(NamedTuple):
    """What the functions of all operators have in common.

    Attributes:
        target: of the device.
        options, incumbents, known, given: as for `fit`.
    """

    target: Target
    options: FitOptions
    incumbents: Incumbents | None
    known: Mapping[tuple[str, str], Known]
    given: Mapping[tuple[str, str], Tree]

    def incumbent(self, matrix: TimingMatrix) -> Incumbent | None:
        """What is in use for a matrix."""
        if self.incumbents is None:
            return None
        return self.incumbents.of(matrix.operator, matrix.variant, matrix.dtype, self.target)


class _Part(NamedTuple):
    """What is found of one operator.

    Attributes:
        functions, shared, notes: as in `Fit`.
        sides: for figures of two operators together.
        shapes: that were measured.
        weighting: with what it has met.
    """

    functions: list[Function]
    shared: list[Shared]
    notes: list[str]
    sides: list[Side]
    shapes: list[tuple[int, int]]
    weighting: Weighting


def _part(data: "Evidence", spec: OperatorSpec, asked: _Asked, weighting: Weighting) -> _Part:
    notes: list[str] = []
    matrices = [
        replace(matrix, weights=weighting.of(spec, matrix.variant, matrix.dtype, matrix.problems))
        for matrix in _matrices(data, spec, asked.target, notes)
    ]
    functions, shared = _fit_operator(spec, matrices, asked)
    plain = {(one.operator, dtype): one.tree for one in functions if not one.variant for dtype in one.dtypes}
    sides = sides_of(data, matrices, plain)
    if asked.options.batch_invariant:
        invariant = invariant_functions(
            data, spec, asked.target, matrices, functions, shared, asked.options.leaves, notes
        )
        functions, shared = [*functions, *invariant[0]], [*shared, *invariant[1]]
    shapes = [shape for matrix in matrices for shape in matrix.problems]
    return _Part(functions, shared, notes, sides, shapes, weighting)


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
    """The matrices of an operator that have at least two problems: plain ones first, dtypes in the spec's order."""
    pairs = {(variant, dtype) for name, variant, dtype in evidence.kinds() if name == spec.name}
    order = [(variant, dtype) for variant in all_variants(spec) for dtype in _donors_first(spec.dtypes)]
    found = []
    for variant, dtype in (pair for pair in order if pair in pairs):
        matrix = timing_matrix(evidence, spec, variant, dtype, target)
        problems = len(matrix.problems) if matrix else 0
        if matrix is None or problems < 2:
            times = f"times of {problems or 'no'} problem{'s' * (not problems)}"
            notes.append(f"left out {join_key(spec.name, variant)} {dtype}: it has {times}")
            continue
        found.append(matrix)
        sizes = [len({shape[place] for shape in matrix.problems}) for place in (0, 1)]
        if (sizes[0] + 1) * (sizes[1] + 1) > MAX_BINS:  # a bin more on each axis, for what lies beyond
            notes.append(
                f"{matrix.key} {dtype} has {sizes[0]} row counts x {sizes[1]} hidden sizes, "
                f"more than {MAX_BINS} pairs: the nearest sizes are not told apart"
            )
    return found


def _donors_first(dtypes: Sequence[str]) -> list[str]:
    """The dtypes in the order in which they lend their data: bfloat16, then as the spec lists them."""
    return sorted(dtypes, key=lambda dtype: dtype != "bfloat16")


def _fit_operator(
    spec: OperatorSpec, matrices: Sequence[TimingMatrix], asked: _Asked
) -> tuple[list[Function], list[Shared]]:
    functions: list[Function] = []
    shared: list[Shared] = []
    options = asked.options
    for matrix in matrices:
        # The plain function is also what every variant falls back to.
        variants = (matrix.variant,) if matrix.variant else all_variants(spec)
        decided = asked.known.get((matrix.key, matrix.dtype))
        incumbent = asked.incumbent(matrix)
        legality = Legality(spec, asked.target, (matrix.dtype,), variants)
        cap = None if decided else options.cap
        in_use = None if decided or incumbent is None else incumbent.choice
        solver = Solver()
        asked_of = {
            place: offer(matrix, legality, functions[place], cap, in_use, solver)
            for place in _donors(functions, matrix)
        }
        offers = [(place, found.shared) for place, found in asked_of.items() if found.shared]
        wider = {place for place, _ in offers if not decided and _is_narrower(matrix, functions[place], matrices)}
        taken = next((one for one in offers if one[0] in wider or _is_taken(one[1], decided)), None)
        if taken is None and decided and decided.donor:
            raise NormtuneError(f"{matrix.key} {matrix.dtype} cannot take the function of {' '.join(decided.donor)}")
        if taken is None:
            dtypes = (matrix.dtype, *_takers(spec, matrices, functions, matrix))
            own_options = options
            most = [found.leaves for found in asked_of.values() if found.leaves is not None]
            if options.leaves and not decided:
                own_options = replace(options, leaves=min([options.leaves, *most]))
            own = fit_function(
                matrix,
                Legality(spec, asked.target, dtypes, variants),
                own_options,
                decided,
                incumbent,
                asked.given.get((matrix.key, matrix.dtype)),
                solver,
            )
            # Too few problems to tell leaves apart give trees of few leaves, which may lose more than sharing does.
            if not decided:
                taken = next((one for one in offers if extra(matrix, functions[one[0]].tree, own.tree) <= 0), None)
            if taken is None:
                functions.append(own)
                continue
        place, found = taken
        shared.append(found)
        donor = functions[place]
        if donor.variant == matrix.variant:
            takers = sorted((*donor.dtypes[1:], matrix.dtype), key=spec.dtypes.index)
            functions[place] = replace(donor, dtypes=(donor.dtype, *takers))
    return functions, shared


def _is_narrower(matrix: TimingMatrix, donor: Function, matrices: Sequence[TimingMatrix]) -> bool:
    """Whether a variant was measured on a smaller range of sizes than the plain operator, whose function may serve it.

    A function of its own would answer beyond its range with what was never measured there: seen to take 6.5 times as
    long as the plain one at hidden 32768, measured to 16384.
    """
    if not matrix.variant or donor.variant:
        return False
    plain = next(one for one in matrices if (one.variant, one.dtype) == ("", donor.dtype))
    for axis in (0, 1):
        own, other = ({shape[axis] for shape in one.problems} for one in (matrix, plain))
        if min(own) > min(other) or max(own) < max(other):
            return True
    return False


def _is_taken(offered: Shared, decided: Known | None) -> bool:
    return offered.donor == decided.donor if decided else offered.cost <= SHARING_COST


def _donors(functions: Sequence[Function], matrix: TimingMatrix) -> list[int]:
    """The places of the functions that a matrix may share, in the order in which they are asked."""
    plain = _serving(functions, "", matrix.dtype) if matrix.variant else None
    first = next((place for place, one in enumerate(functions) if one.variant == matrix.variant), None)
    return [place for place in (plain, first) if place is not None]


def _serving(functions: Sequence[Function], variant: str, dtype: str) -> int | None:
    """The place of the variant's function that serves a dtype."""
    found = (place for place, one in enumerate(functions) if one.variant == variant and dtype in one.dtypes)
    return next(found, None)


def _takers(
    spec: OperatorSpec, matrices: Sequence[TimingMatrix], functions: Sequence[Function], matrix: TimingMatrix
) -> list[str]:
    """The dtypes without data that take the function of a matrix."""

    def served(dtype: str) -> int | None:
        return _serving(functions, "", dtype) if matrix.variant else None

    measured = [other.dtype for other in matrices if other.variant == matrix.variant]
    alike = [dtype for dtype in measured if served(dtype) == served(matrix.dtype)]
    if matrix.dtype != alike[0]:
        return []
    return [dtype for dtype in spec.dtypes if dtype not in measured and served(dtype) == served(matrix.dtype)]
