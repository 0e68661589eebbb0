"""The optimum for every number of leaves on one timing matrix, and the regret of a tree on it.

A config that is legal at a measured size may be illegal at larger sizes of the same bin: if no measured config is legal
in the whole bin, the bin ends at the measured size. Where still none is legal, mostly beyond the measured sizes, the
operator's default config is a candidate without a time; any measured config is preferred.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import WEIGHT, TimingMatrix
from normtune.heuristics.solver.grid import Axis, axis, coarsened
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.solver.portfolio import portfolio
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.sizes import is_derived, located
from normtune.kernels.tablefile.tree import Tree, choose, configs_of

UNMEASURED = 693_147  # log_ppm: twice the time


class Bins(NamedTuple):
    """Input of an optimum.

    Attributes:
        axes: bins of each axis.
        configs: C candidates: the measured ones, ordered, then unmeasured default configs.
        cost: int64 (C, bins of each axis), weighted regret of each config on the problems of each bin.
        barred: bool, same shape: the config has no time on one of the bin's problems.
        legal: bool, same shape: the config is legal for a region that extends up to the bin.
    """

    axes: tuple[Axis, ...]
    configs: tuple[Config, ...]
    cost: NDArray[np.int64]
    barred: NDArray[np.bool_]
    legal: NDArray[np.bool_]

    def joins(self, problems: Sequence[Shape]) -> bool:
        """Whether two sizes of these problems are in one bin, so that no tree can separate them."""
        sizes = map(set, zip(*problems, strict=True))
        return any(
            len({axis.bin(size) for size in of_axis}) < len(of_axis)
            for axis, of_axis in zip(self.axes, sizes, strict=False)  # without a derived size
        )

    def rounded(self) -> "Bins":
        """The bins with costs in log_ppm of a problem of mean weight, for trees that only estimate a loss.

        Single precision counts most sums of them exactly, so few are computed again.
        """
        return self._replace(cost=(self.cost + WEIGHT // 2) // WEIGHT)


def bins(matrix: TimingMatrix, legality: Legality, held_out: NDArray[np.bool_] | None = None) -> Bins:
    """Bins of the training problems.

    Args:
        matrix: of one operator and dtype.
        legality: of configs over regions.
        held_out: bool (problems,), problems whose times are not used; None for the fit of a table, which must be legal
            at all sizes, not only at those of the matrix.
    """
    train = np.ones(len(matrix.problems), np.bool_) if held_out is None else ~held_out
    shapes = [shape for shape, is_training in zip(matrix.problems, train, strict=True) if is_training]
    names = legality.spec.whole.axes
    shapes, measured = ([located(shape, names) for shape in of] for of in (shapes, matrix.problems))
    most = legality.spec.whole.largest if held_out is None else map(max, zip(*measured, strict=True))
    axes = tuple(map(axis, names, zip(*shapes, strict=True), most))
    axes = separated(axes, shapes, matrix.timed[train], matrix.configs, legality)
    axes, legal = _trimmed(legality, matrix, coarsened(axes))

    cost, barred = np.zeros(legal.shape, np.int64), np.zeros(legal.shape, np.bool_)
    answers, usable = legal.copy(), matrix.assumed.usable
    costs, bars, ours = (np.moveaxis(cells, 0, -1) for cells in (cost, barred, answers))  # views, by bin
    for index, shape in enumerate(matrix.problems):
        cell = cell_of(axes, shape)
        weight = int(matrix.weight[index])
        if train[index]:
            bars[cell] |= ~usable[index]
            ours[cell] &= matrix.timed[index]
            filled = np.where(usable[index], matrix.regret[index], matrix.regret[index].max())
            costs[cell] += matrix.regret[index] * weight
            # Sizes beyond the measured ones have no problems: they get the regret of the nearest, with a weight of 1.
            for outer in outer_bins(cell, axes):
                costs[outer] += filled
        else:
            costs[cell] += np.where(matrix.usable[index], 0, UNMEASURED * weight)
    result = Bins(axes, matrix.configs, cost, barred, legal)
    return _with_defaults(result, np.logical_not(answers.any(axis=0)), legality)


def _with_defaults(measured: Bins, lacking: NDArray[np.bool_], legality: Legality) -> Bins:
    """Add the operator's default configs as candidates in the bins without any other, which are true in `lacking`."""
    defaults = default_configs(measured.axes, lacking, legality)
    added = tuple(config for config in defaults if config not in measured.configs)
    configs, shape = (*measured.configs, *added), (len(added), *lacking.shape)
    cost = np.concatenate([measured.cost, np.zeros(shape, np.int64)])
    barred = np.concatenate([measured.barred, np.ones(shape, np.bool_)])
    legal = legality.over(added, *(axis.tops for axis in measured.axes))
    price = np.maximum(measured.cost.max(axis=0), UNMEASURED)
    allowed = np.concatenate([measured.legal, legal])
    indices = [configs.index(config) for config in defaults]
    fit = np.zeros(allowed.shape, np.bool_)
    fit[indices] = allowed[indices] & lacking
    for index in indices:
        cost[index] = np.where(lacking, price, cost[index])
        barred[index] &= ~fit[index]
    return Bins(measured.axes, configs, cost, barred, allowed)


class Solver:
    """A cache of the last optima, as the attempt to share a function and the fit of a separate one need the same."""

    def __init__(self) -> None:
        self._last: tuple[Bins, Optima] | None = None

    def optima(self, in_bins: Bins, max_leaves: int) -> Optima:
        """The optima of these bins for 1 to `max_leaves` leaves."""
        if self._last is None or not _are_equal(in_bins, self._last[0]):
            self._last = in_bins, Optima(*in_bins, max_leaves)
        elif max_leaves > self._last[1].most:
            self._last = in_bins, self._last[1].up_to(max_leaves)
        return self._last[1].up_to(max_leaves)


def solve(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, held_out: NDArray[np.bool_] | None = None
) -> Optima:
    """The optima on the training problems for 1 to `max_leaves` leaves; see `bins` for the other arguments."""
    return Optima(*bins(matrix, legality, held_out), max_leaves)


def _are_equal(left: Bins, right: Bins) -> bool:
    return left[:2] == right[:2] and all(map(np.array_equal, left[2:], right[2:]))


class Few(NamedTuple):
    """The few configs of least total regret if each problem takes the best of them.

    Attributes:
        configs: ordered.
        mean: their mean regret, log_ppm.
        bound: lower bound for any set of as many configs, log_ppm; equal to `mean` if they are proved best.
    """

    configs: tuple[Config, ...]
    mean: int
    bound: int


def few_configs(
    matrix: TimingMatrix,
    legality: Legality,
    most: int,
    held_out: NDArray[np.bool_] | None = None,
    leaves: int | None = None,
) -> Few | None:
    """The set of at most `most` configs with the least regret on the training problems that is legal at every shape.

    None if no such set was found. With `leaves`, the configs of the best tree of at most so many, if they are few.
    """
    in_bins = bins(matrix, legality, held_out)
    count = len(in_bins.configs)
    barred = in_bins.barred | ~in_bins.legal
    cost, barred = in_bins.cost.reshape(count, -1).T, barred.reshape(count, -1).T
    best = portfolio(cost, most, barred)
    total = int(matrix.weight.sum() if held_out is None else matrix.weight[~held_out].sum())
    if leaves is not None and (tree := solve(matrix, legality, leaves, held_out).tree(leaves)) is not None:
        chosen = [in_bins.configs.index(config) for config in sorted({*configs_of(tree)})]
        if len(chosen) <= most:
            chosen_cost = int(np.where(barred, np.iinfo(np.int64).max, cost)[:, chosen].min(axis=1).sum())
            bound = chosen_cost if best is None else min(chosen_cost, best.bound)
            return Few(tuple(in_bins.configs[index] for index in chosen), chosen_cost // total, bound // total)
    if best is None:
        return None
    return Few(tuple(in_bins.configs[index] for index in best.chosen), best.cost // total, best.bound // total)


def losses(matrix: TimingMatrix, tree: Tree) -> list[int | None]:
    """Regret of a tree's config on each problem, log_ppm; None if the config has no time."""
    return [matrix.loss(index, choose(tree, shape, matrix.axes)) for index, shape in enumerate(matrix.problems)]


def _trimmed(
    legality: Legality, matrix: TimingMatrix, axes: tuple[Axis, ...]
) -> tuple[tuple[Axis, ...], NDArray[np.bool_]]:
    """The axes without bins beyond the measured sizes that do not affect legality, and the legality."""
    legal = legality.over(matrix.configs, *(axis.tops for axis in axes))
    trimmed = list(axes)
    for place, of_axis in enumerate(axes):
        along = np.moveaxis(legal, place + 1, 0)
        if of_axis.has_outer_bin and bool((along[-1] == along[-2]).all()):
            trimmed[place], legal = of_axis.without_outer_bin(), np.moveaxis(along[:-1], 0, place + 1)
    return tuple(trimmed), legal


def cell_of(axes: Sequence[Axis], shape: Shape) -> tuple[int, ...]:
    """The bin of a shape on each axis."""
    sizes = located(shape, [axis.name for axis in axes])
    return tuple(axis.bin(size) for axis, size in zip(axes, sizes, strict=True))


def outer_bins(cell: tuple[int, ...], axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """Bins beyond the measured sizes whose nearest measured bin is `cell`; derived sizes may have any larger bin."""
    nearest = [
        range(index, len(axis.tops))
        if is_derived(axis.name)
        else [index, index + 1]
        if axis.has_outer_bin and index == len(axis.tops) - 2
        else [index]
        for index, axis in zip(cell, axes, strict=True)
    ]
    places = [place for place, axis in enumerate(axes) if not is_derived(axis.name)]
    return [outer for outer in product(*nearest) if any(outer[place] != cell[place] for place in places)]


def separated(
    axes: tuple[Axis, ...],
    problems: Sequence[Shape],
    timed: NDArray[np.bool_],
    configs: Sequence[Config],
    legality: Legality,
) -> tuple[Axis, ...]:
    """The axes with bins that end at a measured size wherever no config timed there is legal in the whole bin.

    `timed` is bool (problems, configs): the config has a time on the problem. The last axis is treated first.
    """
    for place in reversed([place for place, of_axis in enumerate(axes) if not is_derived(of_axis.name)]):
        legal = np.moveaxis(legality.over(configs, *(axis.tops for axis in axes)), 0, -1)
        lacking = {
            shape[place]
            for shape, has_time in zip(problems, timed, strict=True)
            if not (has_time & legal[cell_of(axes, shape)]).any()
        }
        ending = axes[place]._replace(tops=tuple(sorted({*axes[place].tops, *lacking})))
        axes = *axes[:place], ending, *axes[place + 1 :]
    return axes


def answers(matrix: TimingMatrix, legality: Legality) -> bool:
    """Whether each measured shape has a timed config that is legal there."""
    return all(
        any(legality.reaches(config, shape) for config, has_time in zip(matrix.configs, timed, strict=True) if has_time)
        for shape, timed in zip(matrix.problems, matrix.timed.tolist(), strict=True)
    )


def default_configs(axes: Sequence[Axis], lacking: NDArray[np.bool_], legality: Legality) -> tuple[Config, ...]:
    """The operator's default configs, ordered, for the bins that are true in `lacking`, bool (bins of each axis).

    They are the defaults at the largest size of the first axis.
    """
    first, *others = [axis for axis in axes if not is_derived(axis.name)]
    if not lacking.any():
        return ()
    # A region that extends further needs the config of its end.
    tops = [
        {axis.tops[index] for index in (*indices, -1)}
        for axis, indices in zip(others, np.nonzero(lacking)[1:], strict=False)
    ]
    defaults = {
        legality.spec.default_config(Problem.at(key, (first.tops[-1], *sizes)), target)
        for sizes in product(*tops)
        for target, key in legality.launched
    }
    return tuple(sorted(defaults))
