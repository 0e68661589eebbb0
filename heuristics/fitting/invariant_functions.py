"""The batch-invariant functions of a table: one for each usual function.

In: an operator's cases and the functions fitted to them. Out: further `Function`s and `Shared`s, under the names from
`kernels.problem.batch_invariant_key`. They serve the same dtypes and variants as those that depend on rows.
`batch_invariant` fits one of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normtune.heuristics.fitted.batch_invariant import bounded, fit_batch_invariant
from normtune.heuristics.fitted.figures import of_tree
from normtune.heuristics.fitted.result import Function, Shared
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.function import figures_of, least_measured
from normtune.heuristics.fitting.sharing import extra
from normtune.heuristics.regret.best_times import best_times
from normtune.heuristics.regret.legality import Legality
from normtune.kernels.problem import batch_invariant_key, split_key
from normtune.kernels.tablefile.tree import leaves

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# End of the sentence that names the trees compared.
LIMITS = " of hidden, then rows, with one order of a row's sum a hidden size"


def invariant_functions(
    evidence: "Evidence",
    cases: Sequence[Case],
    functions: Sequence[Function],
    shared: Sequence[Shared],
    notes: list[str],
) -> tuple[list[Function], list[Shared]]:
    """The batch-invariant functions, and the variants and dtypes that share them.

    Args:
        evidence: the source of the matrices.
        cases: of the operator.
        functions: of the operator, which depend on rows.
        shared: variants and dtypes of the operator that take one of these.
        notes: extended if there is no such function.
    """
    by_key = {(case.matrix.key, case.matrix.dtype): case for case in cases}
    invariant: list[Function] = []
    takers: list[Shared] = []
    for function in functions:
        case = by_key[function.key, function.dtype].serving(function.dtypes, True)
        times = best_times(evidence, case.matrix)
        fitted = fit_batch_invariant(case.matrix, times, case.legality, function.tree, case.options.leaves)
        key = batch_invariant_key(function.key)
        if fitted is None:
            notes.append(
                f"at some hidden size no configs of {function.key} {function.dtype} that sum a row in one order were "
                f"measured for all numbers of rows: no {key}"
            )
            continue
        optimum = least_measured(fitted.matrix, fitted.strips, leaves(fitted.tree))
        if optimum is None:
            raise AssertionError("where there is a tree there is a best one")
        validated = fitted.validated()
        figures = figures_of(fitted.matrix, fitted.tree, optimum)._replace(
            limits=LIMITS,
            cross_validated=validated.inside(1),
            plain_validated=validated.plain_inside(1),
        )
        variant = split_key(key)[1]
        invariant.append(
            Function(
                function.operator, variant, function.dtype, fitted.tree, function.dtypes, figures, beside=fitted.cost
            )
        )
        for taker in shared:
            if taker.donor == (function.key, function.dtype):
                takers += _taker(evidence, by_key[taker.key, taker.dtype], invariant[-1])
    return invariant, takers


def _taker(evidence: "Evidence", case: Case, donor: Function) -> list[Shared]:
    """Loss of a variant or dtype that shares a function; empty if its configs have no time."""
    matrix = case.matrix
    times = best_times(evidence, matrix)
    legality = Legality(case.spec, case.legality.target, (matrix.dtype,), (matrix.variant,))
    filled = bounded(matrix, times, legality)
    own = fit_batch_invariant(matrix, times, legality, donor.tree, donor.figures.leaves)
    if own is None or of_tree(filled, donor.tree) is None:
        return []
    optimum = least_measured(filled, own.strips, leaves(own.tree))
    if optimum is None:
        raise AssertionError("where there is a tree there is a best one")
    figures = figures_of(filled, donor.tree, optimum)
    key = batch_invariant_key(matrix.key)
    return [Shared(key, matrix.dtype, (donor.key, donor.dtype), extra(filled, donor.tree, own.tree), figures)]
