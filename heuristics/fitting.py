"""From evidence to a table: which functions it has, what they serve, and how good they are.

In: evidence of one device. Out: `Fit`: a tree with figures for each operator variant and dtype that gets a function of
its own, and what shares another's. How it is written down is in `emit`.

Sharing. A dtype without data takes the function of bfloat16, else of the first dtype that has data. A variant gets
functions of its own where sharing the plain operator's costs over `SHARING_COST` of mean regret on the variant's data,
against the best tree of as many leaves; else it is left out of the table, and dispatch falls back to the plain name.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics import figures
from normtune.heuristics.figures import Figures
from normtune.heuristics.fitted import Fit, Function, Shared
from normtune.heuristics.header import Known
from normtune.heuristics.legality import Legality, all_variants
from normtune.heuristics.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.optimum import MAX_BINS, Optima
from normtune.heuristics.rules import liger
from normtune.heuristics.selection import (
    MAX_LEAVES,
    WEIGHT,
    chosen_leaves,
    cross_validated,
    least_leaves,
    losses,
    solve,
)
from normtune.heuristics.tree import Tree, leaves
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import split_key
from normtune.kernels.target import Target, target_for
from normtune.results.records import Device

if TYPE_CHECKING:
    from normtune.results.frame import Evidence

SHARING_COST = 10_000  # millionths: 1 %


def fit(
    evidence: "Evidence",
    *,
    leaves: int | None = None,
    operators: Sequence[str] = (),
    known: "dict[tuple[str, str], Known] | None" = None,
) -> Fit:
    """The best table for the evidence.

    Args:
        evidence: measurements of one device.
        leaves: the most leaves a function may have; None chooses each number by cross-validation, up to 16.
        operators: plain names or names with a variant to be fitted; empty means all that were measured.
        known: (key, dtype) to what an earlier fit chose, which then is not chosen again.

    Raises:
        UsageError: there are two devices in the evidence, an operator has no data, or `leaves` is below 1.
        NormtuneError: there is no data, only one problem, or no legal table of so few leaves.
    """
    if leaves is not None and leaves < 1:
        raise UsageError(f"leaves is {leaves}: expected a positive number")
    selected = evidence.select(operators)
    if operators:
        _check_operators(evidence, operators)
    if selected.frame.empty:
        raise NormtuneError("there are no measurements to fit: run `normtune sweep` first")
    device = _one_device(selected.devices())
    used = selected.current()
    stale = len(selected.frame) - len(used.frame)
    notes = [f"left out {stale} measurements of older kernels: `normtune sweep --stale` repeats them"] if stale else []
    target = target_for(device.target, device.sms)

    functions: list[Function] = []
    shared: list[Shared] = []
    shapes: list[tuple[int, int]] = []
    for name in sorted(set(used.frame["operator"])):
        matrices = _matrices(used, operator(name), target, notes)
        found = _fit_operator(operator(name), target, matrices, leaves, known)
        functions += found[0]
        shared += found[1]
        shapes += [shape for matrix in matrices for shape in matrix.problems]
    if not functions:
        raise NormtuneError(
            "a table needs times of at least two problems of an operator and dtype: " + "; ".join(notes)
        )
    newest = used.runs[-1]
    return Fit(
        device=device,
        software=newest.software,
        date=newest.started[:10],
        digest=used.digest(),
        measurements=len(used.frame),
        fingerprints=used.fingerprints(),
        measured=(
            min(rows for rows, _ in shapes),
            max(rows for rows, _ in shapes),
            min(hidden for _, hidden in shapes),
            max(hidden for _, hidden in shapes),
        ),
        functions=tuple(functions),
        shared=tuple(shared),
        notes=tuple(notes),
    )


def _check_operators(evidence: "Evidence", operators: Sequence[str]) -> None:
    for key in operators:
        name, variant = split_key(key)
        mine = evidence.frame["operator"] == name
        if not (mine & (evidence.frame["variant"] == variant) if variant else mine).any():
            measured = ", ".join(sorted(set(evidence.frame["operator"]))) or "none"
            raise UsageError(f"no measurements of operator {key!r}: measured are {measured}")


def _one_device(devices: Sequence[Device]) -> Device:
    if len(devices) > 1:
        named = "; ".join(f"{device.label} with {device.sms} SMs" for device in devices)
        raise UsageError(f"a table is for one device, but there are measurements of {len(devices)}: {named}")
    return devices[0]


def _matrices(evidence: "Evidence", spec: OperatorSpec, target: Target, notes: list[str]) -> list[TimingMatrix]:
    """The matrices of an operator that have at least two problems: plain ones first, dtypes in the spec's order."""
    mine = evidence.frame[evidence.frame["operator"] == spec.name]
    pairs = set(zip(mine["variant"], mine["dtype"], strict=True))
    order = [(variant, dtype) for variant in all_variants(spec) for dtype in _donors_first(spec.dtypes)]
    found = []
    for variant, dtype in (pair for pair in order if pair in pairs):
        matrix = timing_matrix(evidence, spec, variant, dtype, target)
        problems = len(matrix.problems) if matrix else 0
        if matrix is None or problems < 2:
            name = f"{spec.name}:{variant}" if variant else spec.name
            notes.append(f"left out {name} {dtype}: it has times of {problems or 'no'} problem{'s' * (not problems)}")
        else:
            found.append(matrix)
    return found


def _donors_first(dtypes: Sequence[str]) -> list[str]:
    """The dtypes in the order in which they lend their data: bfloat16, then as the spec lists them."""
    return sorted(dtypes, key=lambda dtype: dtype != "bfloat16")


def _fit_operator(
    spec: OperatorSpec,
    target: Target,
    matrices: Sequence[TimingMatrix],
    given: int | None,
    known: dict[tuple[str, str], Known] | None,
) -> tuple[list[Function], list[Shared]]:
    functions: list[Function] = []
    shared: list[Shared] = []
    plain_dtypes = [matrix.dtype for matrix in matrices if not matrix.variant]
    for matrix in matrices:
        own_dtypes = [other.dtype for other in matrices if other.variant == matrix.variant]
        takers = [
            dtype
            for dtype in spec.dtypes
            if dtype not in own_dtypes and dtype not in (plain_dtypes if matrix.variant else ())
        ]
        dtypes = (matrix.dtype, *(takers if matrix.dtype == own_dtypes[0] else ()))
        # The plain function is also what every variant falls back to.
        variants = (matrix.variant,) if matrix.variant else all_variants(spec)
        legality = Legality(spec, target, dtypes, variants)
        plain = next((one for one in functions if not one.variant and matrix.dtype in one.dtypes), None)
        sharing = _sharing(matrix, legality, plain) if matrix.variant and plain else None
        decided = (known or {}).get((matrix.key, matrix.dtype))
        if sharing and (sharing.cost <= SHARING_COST or (known and not decided)):
            shared.append(sharing)
            continue
        function = _fit_one(matrix, legality, given, decided)
        # Too few problems to tell leaves apart give trees of few leaves, which may lose more than sharing does.
        if sharing and plain and not known and _extra(matrix, plain.tree, function.tree)[0] <= 0:
            shared.append(sharing)
            continue
        functions.append(function)
    return functions, shared


def _fit_one(matrix: TimingMatrix, legality: Legality, given: int | None, known: Known | None) -> Function:
    sizes = [len({shape[place] for shape in matrix.problems}) for place in (0, 1)]
    if (sizes[0] + 1) * (sizes[1] + 1) > MAX_BINS:  # a bin more on each axis, for what lies beyond
        raise NormtuneError(
            f"{matrix.key} {matrix.dtype} has {sizes[0]} row counts x {sizes[1]} hidden sizes: an exact fit takes "
            f"up to {MAX_BINS} pairs; fit measurements of a coarser grid"
        )
    validated: tuple[int | None, ...] = ()
    stored = known.cross_validated if known else None
    most = known.leaves if known else given or MAX_LEAVES
    optima = solve(matrix, legality, most)
    if known is None and given is None:
        left_out = cross_validated(matrix, legality, MAX_LEAVES)
        validated = left_out.everywhere
        enough = chosen_leaves(left_out.inside, [_optimum(matrix, optima, n) for n in range(1, MAX_LEAVES + 1)])
        stored = validated[enough - 1] if enough else None
        most = _with_legality(matrix, optima, enough)
    tree = optima.tree(most)
    if tree is None:
        raise NormtuneError(
            f"no table of at most {most} leaves covers {matrix.key} {matrix.dtype}: too few configs were measured "
            "everywhere; allow more leaves, or sweep the default space"
        )
    count = leaves(tree)
    loss = figures.of_tree(matrix, tree)
    optimum = _optimum(matrix, optima, count)
    if loss is None or optimum is None:
        raise AssertionError("a fitted tree has a time on every problem")
    return Function(
        operator=matrix.operator,
        variant=matrix.variant,
        dtype=matrix.dtype,
        tree=tree,
        figures=Figures(
            leaves=count,
            loss=loss,
            cross_validated=stored,
            optimum=optimum,
            rule=figures.of_rule(matrix, liger.choose),
        ),
        dtypes=legality.dtypes,
        cross_validated=validated,
    )


def _with_legality(matrix: TimingMatrix, optima: Optima, enough: int | None) -> int:
    """The number of leaves of a table that is legal at all sizes.

    Cross-validation compares trees that are legal at the measured sizes. What lies beyond them may take further leaves:
    as many as bring the table within the tolerance of the best tree of `enough` leaves for the measured sizes. A grid
    too small to be cross-validated (`enough` is None) takes the least leaves within the tolerance of the most.
    """
    target = None if enough is None else _optimum(matrix, optima, enough)
    trees = [optima.tree(count) for count in range(1, MAX_LEAVES + 1)]
    found = [None if tree is None else figures.of_tree(matrix, tree) for tree in trees]
    means = [None if loss is None else max(loss.mean, loss.mean if target is None else target) for loss in found]
    return least_leaves(means) or MAX_LEAVES


def _optimum(matrix: TimingMatrix, optima: Optima, count: int) -> int | None:
    """Mean regret of the best tree of at most so many leaves for the measured sizes alone, millionths."""
    least = optima.least_measured(count)
    return None if least is None else least // (WEIGHT * len(matrix.problems))


def _sharing(matrix: TimingMatrix, legality: Legality, plain: Function) -> Shared | None:
    """What sharing costs a variant; None where the plain function has a time on none of its problems."""
    own = solve(matrix, legality, plain.figures.leaves).tree(plain.figures.leaves)
    if own is None:
        return None
    cost, problems = _extra(matrix, plain.tree, own)
    return Shared(matrix.key, matrix.dtype, cost, problems, leaves(own)) if problems else None


def _extra(matrix: TimingMatrix, left: Tree, right: Tree) -> tuple[int, int]:
    """What one tree loses more than another: mean over the problems where both have a time, and their number."""
    pairs = zip(losses(matrix, left), losses(matrix, right), strict=True)
    extra = [one - other for one, other in pairs if one is not None and other is not None]
    return (sum(extra) // len(extra) if extra else 0), len(extra)
