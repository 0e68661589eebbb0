"""The number of leaves of a table, by cross-validation.

Cross-validation. Sizes of an axis are left out in turn, with all of their problems: a tree is fitted without them and
scored on them. A table answers between known neighbours, so sizes left out together are never neighbours: of at most
`FOLDS` folds, each leaves out every (`FOLDS` - 2)th inner size. The smallest and the largest sizes, each about one in
`FOLDS`, are left out together; the regret there is extrapolation, which a table fitted on these sizes never needs, so
it is a separate figure and decides nothing. The axes are scored separately; the worst one is the figure.

The number of leaves. On each axis the best number has the least mean over the inner groups. The paired excess of
another number in a group is its regret there minus that of the best. The choice is the fewest leaves whose mean excess
is at most one standard error of that mean, and at most `EXCESS`. The table takes the largest number of any axis.
(The rule of one standard error: Breiman, Friedman, Olshen, Stone 1984, section 3.4.3; paired here, because groups
differ far more from one another than numbers of leaves do.)

A fold's tree must be legal at all measured sizes. It knows which configs were measured on the held-out problems, but
not their times. Choosing an unmeasured config costs `UNMEASURED` per problem, so a tree does so only if nothing else is
legal; it is then scored as the slowest config measured there.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, few_configs
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.results.parallel.maps import in_order

# The most leaves of a fold's tree, and the same on a large grid. Of the H200's backward, a default sweep (188 shapes)
# asks for 39: its table then loses 2.95 % at the 1003 recorded shapes, with 24 leaves 4.32 %.
MAX_LEAVES = 24, 40
# The least problems for each leaf of the larger number.
_PER_LEAF = 4
# The most folds of an axis. With twelve a fit takes twice the time; of the tables of default sweeps of two GPUs, 12
# functions, they choose one that is 1 % faster at all recorded shapes, with 19 leaves in place of 10.
FOLDS = 6
EXCESS = 3000  # log_ppm: 0.3 %
# Names of the figures of a cross-validation, see `fitting.figures`; a refit takes them from the header of the table.
BETWEEN = ("cross_validated", "plain_validated", "worst_validated", "extrapolated")
# Seconds for a fold, for each problem, config and leaf; it takes 90 MB on the recording grid.
_SECONDS = 2e-7


# Weight of a group, and for each tree the regret and the largest one, as in `Folds`.
_Lost = tuple[int, tuple[int | None, ...], tuple[int | None, ...]]


class Folds(NamedTuple):
    """Regret of trees on the groups of one axis, in ascending order.

    Attributes:
        weights: total weight of each group's problems.
        lost: for each group, for 1, 2, ... leaves: weighted regret summed over the group, log_ppm; None if the fold
            has no tree of so few leaves.
        worst: the same for the largest regret of a problem at which the tree's config has a time.
    """

    weights: tuple[int, ...]
    lost: tuple[tuple[int | None, ...], ...]
    worst: tuple[tuple[int | None, ...], ...]

    @property
    def inner(self) -> range:
        """The interpolated groups; all of them if there are fewer than four."""
        count = len(self.weights)
        return range(1, count - 1) if count > 3 else range(count)

    @property
    def outer(self) -> tuple[int, ...]:
        """The extrapolated groups; none if there are fewer than four."""
        return tuple(group for group in range(len(self.weights)) if group not in self.inner)

    def mean(self, leaves: int, groups: Sequence[int]) -> int | None:
        """Mean regret over the problems of some groups, log_ppm."""
        losses = [loss for group in groups if (loss := self.lost[group][leaves - 1]) is not None]
        weight = sum(self.weights[group] for group in groups)
        return sum(losses) // weight if weight and len(losses) == len(groups) else None

    def chosen(self) -> int | None:
        """The number of leaves for this axis; None if no number has a tree in each inner group."""
        means = {
            leaves: [mean for group in self.inner if (mean := self.mean(leaves, [group])) is not None]
            for leaves in range(1, len(self.lost[0]) + 1)
        }
        complete = {leaves: regrets for leaves, regrets in means.items() if len(regrets) == len(self.inner)}
        if not complete:
            return None
        best = min(complete, key=lambda leaves: (sum(complete[leaves]), leaves))
        return min(leaves for leaves, regrets in complete.items() if _as_good(regrets, complete[best]))


class Validated(NamedTuple):
    """Regret of trees on held-out problems, one entry for each axis with at least two sizes.

    Attributes:
        axes: with the weights of the problems.
        plain_axes: with equal weights.
    """

    axes: tuple[Folds, ...]
    plain_axes: tuple[Folds, ...]

    def inside(self, leaves: int) -> int | None:
        """Mean regret between fitted sizes, log_ppm, on the worst axis."""
        return _worst([axis.mean(leaves, axis.inner) for axis in self.axes])

    def plain_inside(self, leaves: int) -> int | None:
        """The same as `inside`, with equal weights."""
        return _worst([axis.mean(leaves, axis.inner) for axis in self.plain_axes])

    def worst_inside(self, leaves: int) -> int | None:
        """Largest regret between fitted sizes, log_ppm, along any axis; None if no such config has a time."""
        regrets = [axis.worst[group][leaves - 1] for axis in self.axes for group in axis.inner]
        return max((regret for regret in regrets if regret is not None), default=None)

    def outside(self, leaves: int) -> int | None:
        """Mean regret beyond the fitted sizes, log_ppm, on the worst axis; None if there are too few sizes."""
        return _worst([axis.mean(leaves, axis.outer) for axis in self.axes if axis.outer])

    def figures(self, leaves: int) -> dict[str, Any]:
        """The figures named in `BETWEEN`."""
        each = self.inside(leaves), self.plain_inside(leaves), self.worst_inside(leaves), self.outside(leaves)
        return dict(zip(BETWEEN, each, strict=True))

    def chosen(self) -> int | None:
        """The number of leaves, by the rule in the module's docstring; None if there are too few sizes."""
        return _worst([axis.chosen() for axis in self.axes])


def most_leaves(matrix: TimingMatrix, optima: Optima) -> int:
    """The most leaves that folds try, since their time grows with its square.

    It is the larger number on a large grid whose best tree of so many leaves is better than with the smaller number by
    more than `EXCESS`: where it is not, its folds would hardly ask for more.
    """
    few, many = MAX_LEAVES
    if len(matrix.problems) < _PER_LEAF * many:
        return few
    least, least_of_many = optima.least(few), optima.least(many)
    if least is None or least_of_many is None:
        return few if least_of_many is None else many
    return many if least - least_of_many > EXCESS * int(matrix.weight.sum()) else few


def cross_validated(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, max_configs: int | None = None
) -> Validated:
    """Regret of trees of up to `max_leaves` leaves and `max_configs` configs on held-out groups."""
    bins(matrix, legality)  # caches what is legal, before each fold has a process

    def fitted_trees(held_out: NDArray[np.bool_]) -> list[Tree | None]:
        fitted = matrix
        if max_configs is not None:
            few = few_configs(matrix, legality, max_configs, held_out)
            if few is None:
                return [None] * max_leaves
            fitted = matrix.of_configs(few.configs)
        optima = Optima(*bins(fitted, legality, held_out).rounded(), max_leaves)
        return [optima.tree(count) for count in range(1, max_leaves + 1)]

    return validated(matrix, fitted_trees, matrix.axes, max_leaves)


def validated(
    matrix: TimingMatrix,
    trees: Callable[[NDArray[np.bool_]], Sequence[Tree | None]],
    axes: Sequence[str],
    leaves: int,
) -> Validated:
    """Regret of trees on groups that were left out of their fit.

    Args:
        matrix: for scoring.
        trees: from the held-out problems, bool (problems,), to the tree of each number of leaves, None without one.
        axes: names of the axes along which sizes are left out.
        leaves: the most leaves of a tree.
    """
    weights = matrix.weight, np.ones_like(matrix.weight)

    def lost(fold: Sequence[NDArray[np.bool_]]) -> list[list[_Lost]]:
        of_fold = trees(np.logical_or.reduce(fold))
        return [[_lost(matrix, weight, group, of_fold) for weight in weights] for group in fold]

    folds = [_folds(matrix, axis) for axis in axes]
    of_axes = [of_axis for of_axis in folds if len(of_axis) > 1]
    every = [[group for _, group in fold] for of_axis in of_axes for fold in of_axis]
    results = in_order(lost, every, _SECONDS * matrix.regret.size * leaves * len(every))
    pairs = []
    for of_axis in of_axes:
        sizes = [size for fold in of_axis for size, _ in fold]
        groups = sorted(zip(sizes, chain.from_iterable(islice(results, len(of_axis))), strict=True), key=itemgetter(0))
        pairs.append(
            [Folds(*zip(*of_weight, strict=True)) for of_weight in zip(*(of for _, of in groups), strict=True)]
        )
    return Validated(tuple(weighted for weighted, _ in pairs), tuple(unweighted for _, unweighted in pairs))


def left_out(sizes: Iterable[int]) -> list[list[tuple[int, ...]]]:
    """For each of at most `FOLDS` folds, the groups of ascending sizes that it leaves out."""
    values = sorted(set(sizes))
    if len(values) <= FOLDS:
        return [[(value,)] for value in values]
    outer, steps = len(values) // FOLDS, FOLDS - 2
    inner = values[outer:-outer]
    folds: list[list[tuple[int, ...]]] = [[(value,) for value in inner[first::steps]] for first in range(steps)]
    return [[tuple(values[:outer])], *folds, [tuple(values[-outer:])]]


def _as_good(regrets: Sequence[int], best: Sequence[int]) -> bool:
    """Whether the mean excess over the best is at most its standard error, and at most `EXCESS`.

    With n groups of excess e the standard error is sqrt((sum e^2 - (sum e)^2 / n) / (n (n - 1))). The mean is at most
    the standard error exactly if (sum e)^2 <= sum e^2, or if the mean is at most 0.
    """
    excess = [regret - least for regret, least in zip(regrets, best, strict=True)]
    total = sum(excess)
    return total <= 0 or (total <= EXCESS * len(excess) and total * total <= sum(each * each for each in excess))


def _worst(figures: Sequence[int | None]) -> int | None:
    """The largest figure; None without figures, or if one is unknown."""
    values = [figure for figure in figures if figure is not None]
    return max(values) if values and len(values) == len(figures) else None


def _folds(matrix: TimingMatrix, axis: str) -> list[list[tuple[tuple[int, ...], NDArray[np.bool_]]]]:
    """The folds along one axis: sizes and problems, bool (problems,), of each group that is left out."""
    sizes = np.array(matrix.problems)[:, matrix.axes.index(axis)]
    return [[(group, np.isin(sizes, group)) for group in fold] for fold in left_out(sizes.tolist())]


def _lost(
    matrix: TimingMatrix, weight: NDArray[np.int64], problems: NDArray[np.bool_], trees: Sequence[Tree | None]
) -> _Lost:
    """The weight of a group's problems, and the weighted and the largest regret of each tree; None without a tree."""
    indices = [int(index) for index in np.flatnonzero(problems)]
    scores: dict[Tree | None, tuple[int | None, int | None]] = {None: (None, None)}
    for tree in {tree for tree in trees if tree is not None}:
        losses = [matrix.loss(index, choose(tree, matrix.problems[index], matrix.axes)) for index in indices]
        filled = [
            int(matrix.regret[index].max()) if loss is None else loss
            for index, loss in zip(indices, losses, strict=True)
        ]
        timed = [loss for loss in losses if loss is not None]
        scores[tree] = int(np.dot(filled, weight[indices])), max(timed, default=None)
    sums, most = zip(*(scores[tree] for tree in trees), strict=True)
    return int(weight[problems].sum()), sums, most
