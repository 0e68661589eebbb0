"""Cost of sharing a function with a variant or a dtype that has other data.

In: the case that would share, and a function. Out: `Shared`, or None if the function cannot serve. `serving` decides
whether the cost is low enough.
"""

from typing import NamedTuple

from normtune.heuristics.fitted import figures
from normtune.heuristics.fitted.result import Function, Shared
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.function import figures_of, least_measured
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, losses
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.tablefile.tree import Tree


class Offer(NamedTuple):
    """Result of trying to share a function across dtypes or variants.

    Attributes:
        shared: the function with its cost; None if it may not be shared.
        leaves: the most leaves of a function of its own beside this one; None if no legal tree exists.
    """

    shared: Shared | None
    leaves: int | None


def offer(case: Case, donor: Function) -> Offer:
    """Loss of a case with a function, against the best tree of as many leaves.

    Args:
        case: the variant and dtype that would share.
        donor: the function, left as it is.

    Returns:
        Nothing shared if the function is not legal everywhere, has a time on less than half of the problems, or, unless
        an earlier fit decided, exceeds the bound on a problem's slowdown or is slower than the baseline.
    """
    matrix, legality = case.matrix, case.legality
    cap, guard = (None, None) if case.known else (case.options.cap, case.guard)
    in_bins = bins(matrix, legality)
    optima = case.solver.optima(in_bins, donor.figures.leaves)
    count = least_legal(optima, leaves_of_its_own(matrix, donor), donor.figures.leaves)
    loss = figures.of_tree(matrix, donor.tree)
    if count is None or loss is None or (cap is not None and loss.worst > cap) or any(legality.breaches(donor.tree)):
        return Offer(None, count)
    if guard and guard.refuses(donor.tree):
        return Offer(None, count)
    own, optimum = optima.tree(count), least_measured(matrix, optima, count)
    if own is None or optimum is None or 2 * loss.problems < len(matrix.problems):
        return Offer(None, count)
    own_figures = figures_of(matrix, donor.tree, optimum, in_bins.joins(matrix.problems))
    cost = extra(matrix, donor.tree, own)
    return Offer(Shared(matrix.key, matrix.dtype, (donor.key, donor.dtype), cost, own_figures), count)


def leaves_of_its_own(matrix: TimingMatrix, donor: Function) -> int:
    """Bound on the leaves of a function of its own: as many problems a leaf as the donor's, or ten.

    A variant is often measured on fewer shapes than the plain operator. With as many leaves its function would follow
    the noise of each, and answer badly between them: 62 problems in 32 leaves lost up to 22 % against sharing, and 302
    in 41 leaves 12 % at a hidden size between two measured ones, in 26 leaves nothing.
    """
    most, problems = donor.figures.leaves, len(matrix.problems)
    return max(1, min(most, max(most * problems // donor.figures.loss.problems, problems // 10)))


def least_legal(optima: Optima, count: int, most: int) -> int | None:
    """The least number of leaves from `count` to `most` with which a tree is legal everywhere."""
    return next((leaves for leaves in range(count, most + 1) if optima.least(leaves) is not None), None)


def extra(matrix: TimingMatrix, left: Tree, right: Tree) -> int:
    """Excess of one tree's loss over another's, millionths: mean where both have a time, 0 for none."""
    pairs = zip(losses(matrix, left), losses(matrix, right), strict=True)
    mean = matrix.mean(
        [None if left_loss is None or right_loss is None else left_loss - right_loss for left_loss, right_loss in pairs]
    )
    return mean or 0
