"""The functions of an operator in a table, and the variants and dtypes that share them.

A dtype without data takes the function of bfloat16, else of the first dtype with data, if at each measured shape some
measured config is legal for it; otherwise the operator's default config is launched. A wider dtype takes configs that
were not measured in it only of an operator that knows itself which ones fit (`checks_resources`). A dtype with data
takes bfloat16's function if that is legal for it, nowhere slower than the baseline, and its mean regret on the dtype's
own data exceeds that of the best tree of as many leaves by at most `SHARING_COST`. A variant takes a function within
the same bound: first the plain operator's function of its dtype, to which dispatch falls back, then the variant's
function of bfloat16. A variant measured on a smaller range of sizes than the plain operator takes the plain function at
any cost. A variant's function is also used for the variant's dtypes without data if the plain function of both dtypes
is the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting import figures
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.function import figures_of, fit_function, least_measured
from normtune.heuristics.fitting.result import FittedFunction, Shared
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.legality import is_known_to_fit
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import answers, bins, losses
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.tablefile.tree import Tree, configs_of

SHARING_COST = 10_000  # log_ppm: 1 %


class Offer(NamedTuple):
    """Result of trying to share a function across dtypes or variants.

    Attributes:
        shared: the function with its cost; None if it may not be shared.
        leaves: the most leaves of a separate function instead; None if no legal tree exists.
        refused: what would be shared, were it not slower than the baseline; None if that is not the reason.
    """

    shared: Shared | None
    leaves: int | None
    refused: Shared | None = None


def offer(case: Case, donor: FittedFunction) -> Offer:
    """Cost for a case of sharing the donor's function, against the best tree of as many leaves.

    A search may have left the donor's config untimed where the baseline was timed: there the donor's own data decide,
    on which it was compared with its baseline. Counting such a config as slower refused a function that loses 0.8 % in
    float16 on the recorded H100, for one of its own that loses 14 %.

    Returns:
        Without a shared function if that is not legal everywhere, has a time on less than half of the problems, or,
        unless an earlier fit decided, exceeds the bound on a problem's slowdown.
    """
    matrix, legality, decision = case.matrix, case.legality, case.decision
    cap = None if decision else case.options.cap
    in_bins = bins(matrix, legality)
    optima = case.solver.optima(in_bins, donor.figures.leaves)
    count = least_legal(optima, leaves_of_its_own(matrix, donor), donor.figures.leaves)
    loss = figures.of_tree(matrix, donor.tree)
    is_measured = {*configs_of(donor.tree)} <= {*matrix.configs}
    if not is_measured and not is_known_to_fit(case.spec, matrix.key.dtype, [donor.key.dtype]):
        return Offer(None, count)
    if count is None or loss is None or (cap is not None and loss.worst > cap) or any(legality.breaches(donor.tree)):
        return Offer(None, count)
    best, optimum = optima.tree(count), least_measured(matrix, optima, count)
    if best is None or optimum is None or 2 * loss.problems < len(matrix.problems):
        return Offer(None, count)
    scored = figures_of(matrix, donor.tree, optimum, in_bins.joins(matrix.problems))
    scored = case.against_baseline(scored, donor.tree)
    shared = Shared(matrix.key, donor.key, extra(matrix, donor.tree, best), scored)
    if decision or not scored.slower:
        return Offer(shared, count)
    if shared.cost > SHARING_COST:
        return Offer(None, count)
    if case.guarded is not None:
        optima = Optima(*bins(case.guarded, legality), case.options.leaves or optima.most)
    return Offer(None, leaves_as_good(matrix, optima, count, loss.mean), shared)


def leaves_of_its_own(matrix: TimingMatrix, donor: FittedFunction) -> int:
    """Bound on the leaves of a separate function: as many problems a leaf as the donor's, or ten.

    A variant is often measured on fewer shapes than the plain operator. With as many leaves its function would follow
    the noise of each: 62 problems in 32 leaves lost up to 22 % against sharing; 302 problems in 41 leaves lost 12 %
    at a hidden size between two measured ones, in 26 leaves nothing.
    """
    most, problems = donor.figures.leaves, len(matrix.problems)
    return max(1, min(most, max(most * problems // donor.figures.loss.problems, problems // 10)))


def leaves_as_good(matrix: TimingMatrix, optima: Optima, count: int, mean: int) -> int:
    """The least number of leaves from `count` on with which a tree loses at most `mean`, else all.

    A function that stands in for a refused one may have them. With `leaves_of_its_own` alone it loses many times as
    much: on the recorded H100, 62 shapes in float16 lose 14 % in 6 leaves, 0.6 % in 24; cross-validated 34 and 7 %.
    """
    means = ((leaves, least_measured(matrix, optima, leaves)) for leaves in range(count, optima.most + 1))
    return next((leaves for leaves, least in means if least is not None and least <= mean), optima.most)


def least_legal(optima: Optima, count: int, most: int) -> int | None:
    """The least number of leaves from `count` to `most` with which a tree is legal everywhere."""
    return next((leaves for leaves in range(count, most + 1) if optima.least(leaves) is not None), None)


def extra(matrix: TimingMatrix, tree: Tree, other: Tree) -> int:
    """Mean excess of one tree's loss over another's where both have a time, log_ppm; 0 without such problems."""
    pairs = zip(losses(matrix, tree), losses(matrix, other), strict=True)
    mean = matrix.mean(
        [None if loss is None or other_loss is None else loss - other_loss for loss, other_loss in pairs]
    )
    return mean or 0


def functions_of(cases: Sequence[Case], notes: list[str]) -> tuple[list[FittedFunction], list[Shared]]:
    """The functions of an operator in the order of the code, and the variants and dtypes that share them.

    `cases` has the plain ones first. If no legal function exists under the conditions, `notes` gets the reason.

    Raises:
        NormtuneError: a function of an earlier fit is impossible.
    """
    functions: list[FittedFunction] = []
    shared: list[Shared] = []
    matrices = [case.matrix for case in cases]
    for case in cases:
        matrix, decision, options = case.matrix, case.decision, case.options
        by_donor = {
            index: offer(case, functions[index])
            for index in donors(functions, matrix.key)
            if not decision or decision.donor == functions[index].key
        }
        offers = [(index, offered.shared) for index, offered in by_donor.items() if offered.shared]
        wider = {index for index, _ in offers if not decision and _is_narrower(matrix, functions[index], matrices)}
        accepted = next((pair for pair in offers if decision or pair[0] in wider or pair[1].cost <= SHARING_COST), None)
        if accepted is None and decision and decision.donor:
            raise NormtuneError(f"{case.key} cannot take the function of {decision.donor}")
        if accepted is None:
            takers = _takers(case.spec, matrices, functions, matrix)
            able = [dtype for dtype in takers if answers(matrix, case.serving((dtype,)).legality)]
            own_case = case.serving((matrix.key.dtype, *able))
            most = [offered.leaves for offered in by_donor.values() if offered.leaves is not None]
            fewest = min([options.leaves, *most]) if options.leaves else None
            try:
                fitted = fit_function(own_case, fewest)
            except NormtuneError as error:
                if decision:
                    raise
                notes.append(f"left out {case.key}: {error}")
                continue
            # Within its tie a tree of its own may lose more than a shared one.
            if not decision:
                accepted = next(
                    (pair for pair in offers if extra(matrix, functions[pair[0]].tree, fitted.tree) <= 0), None
                )
            if accepted is None:
                functions.append(fitted)
                notes += [_refusal(offered.refused, fitted) for offered in by_donor.values() if offered.refused]
                continue
        index, share = accepted
        shared.append(share)
        donor = functions[index]
        if donor.key.modes == matrix.key.modes:
            takers = sorted((*donor.dtypes[1:], matrix.key.dtype), key=case.spec.dtypes.index)
            functions[index] = replace(donor, dtypes=(donor.key.dtype, *takers))
    return functions, shared


def _refusal(refused: Shared, fitted: FittedFunction) -> str:
    """The note on a function that is not shared because it is slower than the baseline, with the losses of both."""
    other, own_loss = refused.figures, fitted.figures.loss
    count, most = other.slower or (0, 0)
    return (
        f"{refused.key} could share the function of {refused.donor}, which loses {percent(other.loss.mean)}, but is up "
        f"to {percent(most, 1)} slower than the baseline at {count} shape{'s' * (count != 1)}; its own function loses "
        f"{percent(own_loss.mean)}; --baseline none shares"
    )


def _is_narrower(matrix: TimingMatrix, donor: FittedFunction, matrices: Sequence[TimingMatrix]) -> bool:
    """Whether a variant was measured on a smaller range of sizes than the plain operator, which is the donor.

    Beyond its range a separate function would have configs that were never measured there: measured up to hidden 16384,
    one took 6.5 times as long as the plain one at 32768.
    """
    if not matrix.key.modes or donor.key.modes:
        return False
    plain_matrix = next(candidate for candidate in matrices if candidate.key == donor.key)
    for axis in (0, 1):
        sizes, plain_sizes = ({shape[axis] for shape in candidate.problems} for candidate in (matrix, plain_matrix))
        if min(sizes) > min(plain_sizes) or max(sizes) < max(plain_sizes):
            return True
    return False


def donors(functions: Sequence[FittedFunction], key: Key) -> list[int]:
    """Indices of the functions that a key may share, in the order in which they are tried."""
    plain_index = _serving(functions, key.without_modes) if key.modes else None
    first = next((index for index, function in enumerate(functions) if function.key.modes == key.modes), None)
    return [index for index in (plain_index, first) if index is not None]


def _serving(functions: Sequence[FittedFunction], key: Key) -> int | None:
    return next((index for index, function in enumerate(functions) if key in function.served), None)


def _takers(
    spec: OperatorSpec, matrices: Sequence[TimingMatrix], functions: Sequence[FittedFunction], matrix: TimingMatrix
) -> list[str]:
    """The dtypes without data that use the function of a matrix."""

    def served(dtype: str) -> int | None:
        return _serving(functions, key.without_modes._replace(dtype=dtype)) if key.modes else None

    key = matrix.key
    measured = [other.key.dtype for other in matrices if other.key.modes == key.modes]
    alike = [dtype for dtype in measured if served(dtype) == served(key.dtype)]
    if key.dtype != alike[0]:
        return []
    unmeasured = [dtype for dtype in spec.dtypes if dtype not in measured and served(dtype) == served(key.dtype)]
    return [dtype for dtype in unmeasured if is_known_to_fit(spec, dtype, [key.dtype])]
