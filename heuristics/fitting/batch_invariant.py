"""The batch-invariant function of a table: a row has the same bits in every batch.

Only the order of the sum over a row must not depend on the batch; the rest of a row is computed element by element. So
few and many rows may have different configs of one class (`row_classes`). The tree divides hidden first; each strip of
hidden sizes then has intervals of rows, all in one class (`strips`). On the recorded H200 this costs the backward in
bfloat16 6 %; one config for all rows of a hidden size cost 37 %. The weight gradient is a sum over rows: it depends on
the batch by definition, and the order of its sum is free.

Sweeps do not time every config at every shape; the default space omits fixed grids at few rows. To keep such a config
as a candidate, its missing time at a shape is bounded by its time at the next larger number of rows: less work in the
same launch takes no longer. The fit uses these bounds, the figures do not: what a function loses and costs is told over
the shapes at which its configs were timed. (On the recorded H100 the forward in float16 costs 0.2 % at 49 of 62 shapes;
with bounds at the others, up to 77 times the time, it would be 20 %.)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.figures import Cost, Figures, of_tree
from normtune.heuristics.fitting.function import figures_of, least_measured
from normtune.heuristics.fitting.options import MOST_LEAVES
from normtune.heuristics.fitting.result import FittedFunction, Shared
from normtune.heuristics.fitting.sharing import extra
from normtune.heuristics.regret.fixed_log import log_ppm
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, losses
from normtune.heuristics.solver.cross_validation import validated
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.row_classes import RowClasses
from normtune.heuristics.solver.strips import Strips
from normtune.kernels.problem import AXES, Problem
from normtune.kernels.tablefile.tree import Tree, leaves

# The conditions on a tree, as the end of a sentence.
LIMITS = " of hidden, then rows, with one order of a row's sum a hidden size"
# log_ppm: leaves that together gain less than 0.1 % are dropped.
TOLERANCE = 1000
# log_ppm, a factor of 2.7: the largest regret at a shape. The mean alone chose a config that is 27 times slower at
# 262144 rows (hidden 96, backward in bfloat16 on the H200). If every class exceeds the cap at a hidden size, the cap
# there is the least worst-case regret of a class.
CAP = 1_000_000
_NEVER = np.iinfo(np.int64).max


class Invariant(NamedTuple):
    """A batch-invariant function.

    Attributes:
        tree: with one class at each hidden size.
        matrix: the timing matrix, with bounds of missing times, that the tree was fitted to.
        strips: the best trees of all numbers of leaves.
        cost: relative to the usual function.
        between: computes the figures of trees with as many leaves on held-out hidden sizes.
    """

    tree: Tree
    matrix: TimingMatrix
    strips: Strips
    cost: Cost
    between: Callable[[], dict[str, Any]]


def fit_batch_invariant(
    matrix: TimingMatrix, legality: Legality, usual: Tree, most: int | None = None
) -> Invariant | None:
    """The function of least regret with one order of a row's sum at each hidden size.

    Args:
        matrix: the measured matrix of one key, with its times.
        legality: for all dtypes and variants that use the function.
        usual: the tree without batch invariance.
        most: the most leaves; None for as many as gain more than `TOLERANCE`.

    Returns:
        None if at some hidden size no class of configs is legal and has a time or bound at every number of rows.
    """
    filled, classes = bounded(matrix, legality), RowClasses(legality)
    measured = {shape[1] for shape in matrix.problems}

    def solved(allowed: TimingMatrix, most: int, held_out: NDArray[np.bool_] | None = None) -> Strips:
        in_bins = bins(allowed, legality, held_out)
        return Strips(in_bins, classes.of(in_bins, measured), most)

    in_bins = bins(filled, legality)
    capped = _capped(filled, in_bins.axes[1], classes.of(in_bins, measured))
    for allowed in (capped, filled):  # with few leaves no tree may be within the cap
        strips = solved(allowed, most or MOST_LEAVES)
        best = strips.least(strips.most)
        if best is not None:
            break
    else:
        return None
    count = strips.fewest(best + TOLERANCE * int(matrix.weight.sum()))
    tree = strips.tree(count) if count else None
    if tree is None or count is None:
        raise AssertionError("a tree of that cost exists")
    if any(legality.breaches(tree)):  # no measured config is legal for all rows, and no default is of its class
        return None

    def without(held_out: NDArray[np.bool_], count: int = count) -> Tree | None:
        return solved(allowed, count, held_out).tree(count)

    cost = cost_of(matrix, tree, usual)
    return Invariant(tree, filled, strips, cost, lambda: validated(filled, without, ("hidden",), count))


def _capped(filled: TimingMatrix, axis: Axis, classes: NDArray[np.int64]) -> TimingMatrix:
    """The matrix without entries above the cap of their size; `classes`: int64 (C, H), the matrix's configs first."""
    cells, sizes = np.zeros(filled.usable.shape, np.bool_), np.array([shape[1] for shape in filled.problems])
    regret = np.where(filled.usable, filled.regret, _NEVER)
    for size in np.unique(sizes).tolist():
        at_size, of_size = sizes == size, classes[: len(filled.configs), axis.bin(size)]
        worst = (regret[at_size][:, of_size == number].min(axis=1).max() for number in np.unique(of_size[of_size >= 0]))
        cells[at_size] = filled.regret[at_size] > max(CAP, min(worst, default=_NEVER))
    return filled.without(cells)


def cost_of(matrix: TimingMatrix, tree: Tree, usual: Tree) -> Cost:
    """Cost of a tree relative to `usual`, over the problems of a matrix on which both have a time."""
    pairs = [*zip(losses(matrix, tree), losses(matrix, usual), strict=True)]
    excess = [None if loss is None or usual_loss is None else loss - usual_loss for loss, usual_loss in pairs]
    compared = [loss for loss in excess if loss is not None]
    return Cost(
        mean=matrix.mean(excess) or 0,
        worst=max(compared, default=0),
        problems=len(compared),
        bounded=sum(loss is None and usual_loss is not None for loss, usual_loss in pairs),
    )


def bounded(matrix: TimingMatrix, legality: Legality) -> TimingMatrix:
    """The matrix in which a missing time is bounded by the config's time at more rows of the same hidden size.

    A config that failed on a problem, or has the same launch as a failed one, has no bound there.
    """
    if (times := matrix.times) is None:
        raise AssertionError("measurements have times")
    absolute = np.where(matrix.usable, matrix.regret + log_ppm(times.best)[:, None], _NEVER)
    regret, usable = matrix.regret.copy(), matrix.usable.copy()
    broken = _broken(matrix, times.failed, legality)
    for size in {shape[1] for shape in matrix.problems}:
        indices = [index for index, shape in enumerate(matrix.problems) if shape[1] == size]
        least = np.full(len(matrix.configs), _NEVER)
        for index in sorted(indices, key=lambda index: -matrix.problems[index][0]):
            least = np.minimum(least, absolute[index])
            has_bound = (least < _NEVER) & ~matrix.usable[index] & ~broken[index]
            # A bound below the best time only shows that the config is as fast as the best.
            above = np.maximum(least - log_ppm(times.best[index : index + 1])[0], 0)
            regret[index, has_bound] = above[has_bound]
            usable[index] |= has_bound
    return replace(matrix, regret=regret, usable=usable, untimed=None)


def _broken(matrix: TimingMatrix, failed: NDArray[np.bool_], legality: Legality) -> NDArray[np.bool_]:
    """Bool (problems, configs): failed configs, and configs with the same launch."""
    broken = failed.copy()
    for index in np.flatnonzero(failed.any(axis=1)).tolist():
        problem = Problem.at(matrix.key, matrix.problems[index])
        launches = [legality.spec.launch_of(config, problem, legality.target) for config in matrix.configs]
        failed_launches = {launches[column] for column in np.flatnonzero(failed[index]).tolist()} - {None}
        broken[index] |= [launch in failed_launches for launch in launches]
    return broken


def invariant_functions(
    cases: Sequence[Case],
    functions: Sequence[FittedFunction],
    shared: Sequence[Shared],
    notes: list[str],
) -> tuple[list[FittedFunction], list[Shared]]:
    """The batch-invariant functions of one operator, and the variants and dtypes that share them.

    `functions` and `shared` are those without batch invariance. If a function is impossible, `notes` gets the reason.
    """
    by_key = {case.key: case for case in cases}
    invariant: list[FittedFunction] = []
    takers: list[Shared] = []
    for function in functions:
        case = by_key[function.key].serving(function.dtypes, True)
        if (axes := case.spec.whole.axes) != AXES:
            notes.append(
                f"{function.key} has the sizes {', '.join(axes)}: only functions of rows and hidden can be "
                "batch-invariant"
            )
            continue
        fitted = fit_batch_invariant(case.matrix, case.legality, function.tree, case.options.leaves)
        key = function.key.batch_invariant
        if fitted is None:
            notes.append(
                f"no {key.text}: at some hidden size no configs of {function.key} with one order of a row's sum were "
                "measured at all numbers of rows"
            )
            continue
        figures = _scored(case.matrix, fitted, fitted.tree)._replace(**fitted.between(), limits=LIMITS)
        invariant.append(FittedFunction(key, fitted.tree, function.dtypes, figures, beside=fitted.cost))
        for share in shared:
            if share.donor == function.key:
                takers += _shares(by_key[share.key], invariant[-1])
    return invariant, takers


def _shares(case: Case, donor: FittedFunction) -> list[Shared]:
    """A variant or dtype that shares a function, with its loss; empty if the function's configs have no time."""
    matrix = case.matrix
    legality = case.legality.serving((matrix.key.dtype,), (matrix.key.variant,))
    fitted = fit_batch_invariant(matrix, legality, donor.tree, donor.figures.leaves)
    if fitted is None or of_tree(matrix, donor.tree) is None:
        return []
    figures = _scored(matrix, fitted, donor.tree)
    return [Shared(matrix.key.batch_invariant, donor.key, extra(matrix, donor.tree, fitted.tree), figures)]


def _scored(matrix: TimingMatrix, fitted: Invariant, tree: Tree) -> Figures:
    """The figures of a tree: its gap to the fitted one with bounds of missing times, its loss without them."""
    optimum = least_measured(fitted.matrix, fitted.strips, leaves(fitted.tree))
    if optimum is None:
        raise AssertionError("where there is a tree there is a best one")
    figures = figures_of(fitted.matrix, tree, optimum)
    return figures._replace(loss=of_tree(matrix, tree) or figures.loss)
