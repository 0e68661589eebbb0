"""The functions of a table for the batch-invariant mode: one for each function that looks at rows.

In: an operator's cases and the functions fitted to them. Out: further `Function`s and `Shared`s, under the
names that `kernels.problem.batch_invariant_key` gives, which serve the same dtypes and variants as those that look at
rows. How one is fitted is in `batch_invariant`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normtune.heuristics.fitting.batch_invariant import bounded, fit_batch_invariant
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.figures import of_tree
from normtune.heuristics.fitting.function import figures_of, least_measured
from normtune.heuristics.fitting.result import Function, Shared
from normtune.heuristics.fitting.sharing import extra
from normtune.heuristics.regret.best_times import best_times
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.tablefile.tree import leaves
from normtune.kernels.problem import batch_invariant_key, split_key

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Ends the sentence that says of which trees one is the best.
LIMITS = " of hidden alone"


def invariant_functions(
    evidence: "Evidence",
    cases: Sequence[Case],
    functions: Sequence[Function],
    shared: Sequence[Shared],
    notes: list[str],
) -> tuple[list[Function], list[Shared]]:
    """The functions that do not look at rows, and what shares them.

    Args:
        evidence: that the matrices were made of.
        cases: of the operator.
        functions: of the operator, which look at rows.
        shared: variants and dtypes of the operator that take one of these.
        notes: added to where there is no such function.
    """
    by_key = {(case.matrix.key, case.matrix.dtype): case for case in cases}
    found: list[Function] = []
    takers: list[Shared] = []
    for one in functions:
        case = by_key[one.key, one.dtype].serving(one.dtypes)
        times = best_times(evidence, case.matrix)
        # Without a number of leaves there may be as many as there are sizes.
        fitted = fit_batch_invariant(case.matrix, times, case.legality, one.tree, case.options.leaves)
        key = batch_invariant_key(one.key)
        if fitted is None:
            notes.append(f"no config of {one.key} {one.dtype} was measured for all numbers of rows: no {key}")
            continue
        optimum = least_measured(fitted.matrix, fitted.optima, leaves(fitted.tree))
        if optimum is None:
            raise AssertionError("where there is a tree there is a best one")
        figures = figures_of(fitted.matrix, fitted.tree, optimum)._replace(
            limits=LIMITS,
            cross_validated=fitted.validated.inside(1),
            plain_validated=fitted.validated.plain_inside(1),
        )
        variant = split_key(key)[1]
        found.append(Function(one.operator, variant, one.dtype, fitted.tree, one.dtypes, figures, beside=fitted.cost))
        for other in shared:
            if other.donor == (one.key, one.dtype):
                takers += _taker(evidence, by_key[other.key, other.dtype], found[-1])
    return found, takers


def _taker(evidence: "Evidence", case: Case, donor: Function) -> list[Shared]:
    """What a variant or dtype loses that shares a function; nothing where it has no time of its configs."""
    matrix = case.matrix
    times = best_times(evidence, matrix)
    legality = Legality(case.spec, case.legality.target, (matrix.dtype,), (matrix.variant,))
    filled = bounded(matrix, times, legality)
    own = fit_batch_invariant(matrix, times, legality, donor.tree, donor.figures.leaves)
    if own is None or of_tree(filled, donor.tree) is None:
        return []
    optimum = least_measured(filled, own.optima, leaves(own.tree))
    if optimum is None:
        raise AssertionError("where there is a tree there is a best one")
    figures = figures_of(filled, donor.tree, optimum)
    key = batch_invariant_key(matrix.key)
    return [Shared(key, matrix.dtype, (donor.key, donor.dtype), extra(filled, donor.tree, own.tree), figures)]
