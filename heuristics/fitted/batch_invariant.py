"""The batch-invariant function of a table: it ignores rows, so that a row gets the same bits in every batch.

In: a timing matrix with its times, legality, and the function that depends on rows. Out: `Invariant`: the tree on
hidden alone of least regret, proved by the same program as any other on one bin of rows, and its cost.

A config is a candidate if it is legal at any number of rows and its launch works on each row in the same way at all of
them (`Launch.of_a_row`). The weight gradient sums over rows: it depends on the batch by nature, and the order of its
sum is free.

Sweeps do not time every config at every shape: with few rows the backward's fixed grids lose to programs of columns and
are left out of the default space, but programs of columns cannot serve many rows. To keep such a config as a candidate,
its missing time at a shape is bounded by its time at the next larger number of rows: less work in the same launch takes
no longer. A bound is never below the truth, so the printed figure is the most that the function can lose. On the
recorded H200 the backward in bfloat16 loses at most 36 % with bounds, and 60 % with the configs that were timed
everywhere, with one config per hidden size and all shapes weighted equally.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.best_times import BestTimes
from normtune.heuristics.regret.fixed_log import micrologs
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import Bins, bins, losses
from normtune.heuristics.solver.cross_validation import Validated, validated
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.tablefile.tree import Split, Tree
from normtune.kernels.config import Config
from normtune.kernels.problem import MAX_ROWS, Problem

# Millionths: leaves that together gain less than a tenth of a percent are dropped.
TOLERANCE = 1000
# Millionths: 2.7 times. One config for all rows is a compromise, and the mean alone would trade few rows for many: at
# hidden 96 of the H200's backward in bfloat16 it took a config that loses 27 times at 262144 rows. Of a size at which
# none stays within the cap, the least that a config loses at worst is the cap.
CAP = 1_000_000
# Numbers of rows at which launches are compared: the operators of normtune are tested at all of them.
_ROWS = (1, 2, 16, 100, 4096, 65536, 1 << 24, MAX_ROWS)
_NEVER = np.iinfo(np.int64).max


class Cost(NamedTuple):
    """Cost of a batch-invariant function against the usual one.

    Attributes:
        mean: weighted mean over the problems, millionths of a logarithm; as a slowdown it is the geometric mean.
        worst: largest cost on one problem.
        problems: number of problems compared.
        bounded: number of them with a bound, because the config was not timed there.
    """

    mean: int
    worst: int
    problems: int
    bounded: int


class Invariant(NamedTuple):
    """A batch-invariant function.

    Attributes:
        tree: has thresholds in hidden only.
        matrix: the timing matrix with bounds, on which it was fitted.
        optima: of all numbers of leaves.
        cost: against the function that depends on rows.
        validated: regret of as many leaves on hidden sizes that were left out of the fit.
    """

    tree: Tree
    matrix: TimingMatrix
    optima: Optima
    cost: Cost
    validated: Validated


def fit_batch_invariant(
    matrix: TimingMatrix, times: BestTimes, legality: Legality, usual: Tree, most: int | None = None
) -> Invariant | None:
    """The function of hidden alone of least regret.

    Args:
        matrix: of one operator variant and dtype, as measured.
        times: of the matrix.
        legality: for all that the function will serve.
        usual: the tree that serves outside of the mode.
        most: the most leaves; None for as many as there are sizes.

    Returns:
        None if no config that works on rows alike has a time, or a bound, at every size.
    """
    filled = bounded(matrix, times, legality)
    sizes = {size for _, size in matrix.problems}
    alike = [config for config in _serving_a_size(filled) if works_alike(config, legality, sizes)]
    if not alike:
        return None
    capped = _capped(filled.of_configs(alike))
    optima = _optima(capped, legality, most)
    best = optima.least(optima.most)
    if best is None:
        return None
    count = optima.fewest(best + TOLERANCE * int(matrix.weight.sum()))
    tree = optima.tree(count) if count else None
    if tree is None or count is None:
        raise AssertionError("a tree of that cost exists")
    fewest: int = count

    def without(held_out: NDArray[np.bool_]) -> list[Tree | None]:
        return [_optima(capped, legality, fewest, held_out).tree(fewest)]

    return Invariant(tree, filled, optima, cost_of(matrix, filled, tree, usual), validated(filled, without, (1,)))


def _capped(filled: TimingMatrix) -> TimingMatrix:
    """The matrix without entries beyond the cap of their size."""
    cells, hidden = np.zeros(filled.usable.shape, np.bool_), np.array([size for _, size in filled.problems])
    for size in np.unique(hidden):
        worst = np.where(filled.usable, filled.regret, _NEVER)[hidden == size].max(axis=0)
        cells[hidden == size] = filled.regret[hidden == size] > max(CAP, int(worst.min()))
    return filled.without(cells)


def _optima(
    allowed: TimingMatrix, legality: Legality, most: int | None, held_out: NDArray[np.bool_] | None = None
) -> Optima:
    """The optima of hidden alone, for as many leaves as sizes or at most `most`; `held_out` as in `bins`."""
    in_bins = _of_hidden(bins(allowed, legality, held_out))
    for index, config in enumerate(in_bins.configs):  # a default config that was not measured
        if config not in allowed.configs and not works_alike(config, legality, {*in_bins.axes[1].tops}):
            in_bins.legal[index] = False
    count = len(in_bins.axes[1].tops)
    return Optima(*in_bins, min(most or count, count))


def cost_of(matrix: TimingMatrix, filled: TimingMatrix, tree: Tree, usual: Tree) -> Cost:
    """Cost of a tree against the usual one.

    Args:
        matrix: as measured.
        filled: the same with bounds.
        tree: the tree.
        usual: the other tree, scored where it was measured.
    """
    pairs = zip(losses(filled, tree), losses(matrix, usual), strict=True)
    extra = [
        None if own_loss is None or usual_loss is None else own_loss - usual_loss for own_loss, usual_loss in pairs
    ]
    known = [loss for loss in extra if loss is not None]
    bounds = zip(extra, losses(matrix, tree), strict=True)
    return Cost(
        mean=matrix.mean(extra) or 0,
        worst=max(known, default=0),
        problems=len(known),
        bounded=sum(loss is not None and measured is None for loss, measured in bounds),
    )


def bounded(matrix: TimingMatrix, times: BestTimes, legality: Legality) -> TimingMatrix:
    """The matrix with bounds for configs without a time but with one at more rows of the same size.

    A config that failed on a problem, or whose launch equals that of a failed one, has no bound there.
    """
    absolute = np.where(matrix.usable, matrix.regret + micrologs(times.best)[:, None], _NEVER)
    regret, usable = matrix.regret.copy(), matrix.usable.copy()
    broken = _broken(matrix, times.failed, legality)
    for size in {hidden for _, hidden in matrix.problems}:
        indices = [index for index, (_, hidden) in enumerate(matrix.problems) if hidden == size]
        least = np.full(len(matrix.configs), _NEVER)
        for index in sorted(indices, key=lambda index: -matrix.problems[index][0]):
            least = np.minimum(least, absolute[index])
            known = (least < _NEVER) & ~matrix.usable[index] & ~broken[index]
            # A bound below the best measured config only shows that the config is as good.
            above = np.maximum(least - micrologs(times.best[index : index + 1])[0], 0)
            regret[index, known] = above[known]
            usable[index] |= known
    return replace(matrix, regret=regret, usable=usable, untimed=None)


def _serving_a_size(filled: TimingMatrix) -> list[Config]:
    """The configs with a time or a bound at all numbers of rows of some size: others cannot be a leaf of hidden alone.

    `works_alike` takes a millisecond or ten, and a search leaves hundreds of configs that were timed at few problems.
    """
    hidden = np.array([size for _, size in filled.problems])
    serves = np.logical_or.reduce([filled.usable[hidden == size].all(axis=0) for size in np.unique(hidden)])
    return [config for config, does in zip(filled.configs, serves.tolist(), strict=True) if does]


def works_alike(config: Config, legality: Legality, sizes: set[int]) -> bool:
    """Whether a config's launch works on each row in the same way at all numbers of rows at which it is legal."""
    for size in sizes:
        for dtype, variant in legality.served:
            ways = set()
            for rows in _ROWS:
                launch = legality.spec.launch_of(
                    config, Problem(legality.spec.name, rows, size, dtype, variant), legality.target
                )
                if launch is None:
                    break
                ways.add(getattr(launch, "of_a_row", None))
                if len(ways) > 1 or None in ways:  # the work of other launches on a row is unknown
                    return False
    return True


def looks_at_rows(tree: Tree) -> bool:
    """Whether a tree has a threshold in rows."""
    return isinstance(tree, Split) and (tree.axis == "rows" or looks_at_rows(tree.low) or looks_at_rows(tree.high))


def _of_hidden(in_bins: Bins) -> Bins:
    """The bins with all numbers of rows in one."""
    rows, hidden = in_bins.axes
    return Bins(
        (Axis(rows.name, rows.tops[-1:], False), hidden),
        in_bins.configs,
        in_bins.cost.sum(axis=1, keepdims=True),
        np.logical_or.reduce(in_bins.barred, axis=1, keepdims=True),
        in_bins.legal[:, -1:],
    )


def _broken(matrix: TimingMatrix, failed: NDArray[np.bool_], legality: Legality) -> NDArray[np.bool_]:
    """Bool (problems, configs): failed configs, and configs with the same launch."""
    broken = failed.copy()
    for index in np.flatnonzero(failed.any(axis=1)).tolist():
        rows, hidden = matrix.problems[index]
        problem = Problem(matrix.operator, rows, hidden, matrix.dtype, matrix.variant)
        launches = [legality.spec.launch_of(config, problem, legality.target) for config in matrix.configs]
        failed_launches = {launches[column] for column in np.flatnonzero(failed[index]).tolist()} - {None}
        broken[index] |= [launch in failed_launches for launch in launches]
    return broken
