"""What it costs when a variant or a dtype takes a function that was fitted on other data.

In: the case that would share, and a function. Out: `Shared`, or nothing where the function cannot serve.
Whether the cost is low enough is decided in `serving`.
"""

from typing import NamedTuple

from normtune.heuristics.fitting import figures
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.function import figures_of, least_measured
from normtune.heuristics.fitting.guard import slower
from normtune.heuristics.fitting.result import Function, Shared
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, losses
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.tablefile.tree import Tree, choose


class Offer(NamedTuple):
    """Result of trying to share a function with another dtype or variant.

    Attributes:
        shared: what that costs; None where it may not.
        leaves: the most that a function of its own may have beside this one; None where there is no legal one.
    """

    shared: Shared | None
    leaves: int | None


def offer(case: Case, donor: Function) -> Offer:
    """What a case loses by a function, against the best tree of as many leaves.

    Args:
        case: the variant and dtype that would share.
        donor: the function, left as it is.

    Returns:
        Nothing shared where the function is not legal everywhere, has a time on less than half of the problems, or,
        unless an earlier fit decided, breaks the bound of a problem's slowdown or is slower than the baseline.
    """
    matrix, legality = case.matrix, case.legality
    cap, baseline = (None, None) if case.known else (case.options.cap, case.baseline)
    in_bins = bins(matrix, legality)
    optima = case.solver.optima(in_bins, donor.figures.leaves)
    count = least_legal(optima, leaves_of_its_own(matrix, donor), donor.figures.leaves)
    loss = figures.of_tree(matrix, donor.tree)
    if count is None or loss is None or (cap is not None and loss.worst > cap) or any(legality.breaches(donor.tree)):
        return Offer(None, count)
    if baseline and slower(matrix, lambda rows, hidden: choose(donor.tree, rows, hidden), baseline.choice):
        return Offer(None, count)
    own, optimum = optima.tree(count), least_measured(matrix, optima, count)
    if own is None or optimum is None or 2 * loss.problems < len(matrix.problems):
        return Offer(None, count)
    found = figures_of(matrix, donor.tree, optimum, in_bins.joins(matrix.problems))
    cost = extra(matrix, donor.tree, own)
    return Offer(Shared(matrix.key, matrix.dtype, (donor.key, donor.dtype), cost, found), count)


def leaves_of_its_own(matrix: TimingMatrix, donor: Function) -> int:
    """The leaves that a function of its own may have: for as many problems each as the donor's, or for ten.

    A variant is often measured on fewer shapes than the plain operator. With as many leaves its function would follow
    the noise of each, and answer badly between them: 62 problems in 32 leaves lost up to 22 % against sharing, and 302
    in 41 leaves 12 % at a hidden size between two that were measured, in 26 leaves nothing.
    """
    most, problems = donor.figures.leaves, len(matrix.problems)
    return max(1, min(most, max(most * problems // donor.figures.loss.problems, problems // 10)))


def least_legal(optima: Optima, count: int, most: int) -> int | None:
    """The least number of leaves from `count` to `most` with which a tree is legal everywhere."""
    return next((leaves for leaves in range(count, most + 1) if optima.least(leaves) is not None), None)


def extra(matrix: TimingMatrix, left: Tree, right: Tree) -> int:
    """What one tree loses more than another, millionths: mean over the problems where both have a time, 0 for none."""
    pairs = zip(losses(matrix, left), losses(matrix, right), strict=True)
    found = matrix.mean([None if one is None or other is None else one - other for one, other in pairs])
    return found or 0
