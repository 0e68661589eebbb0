"""How many leaves a table gets: cross-validation.

In: a timing matrix and what is legal. Out: what trees of each number of leaves lose on problems that they were not
fitted on, and the number to be taken.

Cross-validation. Sizes of an axis are left out in turn, with all of their problems: a tree is fitted without them and
scored on them. The smallest and the largest sizes, each about one in `FOLDS` of them, are left out together; what is
lost there is extrapolation. A table is fitted on its outer sizes too and never extrapolates to them, so these have a
figure of their own and decide nothing. The sizes between are interpolated. Each is a group of its own, and as a table
answers between neighbours that it knows, those left out together are never neighbours: with `FOLDS` folds in all, every
so many'th. The axes are scored apart; the worse one is the figure.

The number of leaves. On each axis the best number is the one whose mean over the inner groups is least. Its paired
excess in a group is what another number loses there beyond it; the fewest leaves are taken whose mean excess is at most
one standard error of that mean, and at most `EXCESS`. The larger number of the two axes is the table's. (The rule of
one standard error: Breiman, Friedman, Olshen, Stone 1984, section 3.4.3; paired here, as groups differ far more from
one another than numbers of leaves do.)

A fold's tree has to be legal at all measured sizes, and is told which configs were measured on the problems left out,
though not their times: choosing one that was not costs it `UNMEASURED` a problem, so it does so only where nothing else
is legal. It is then scored as the slowest config that was measured there.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import few_configs, solve
from normtune.heuristics.tablefile.tree import Tree, choose

# The most leaves that are tried at first, and then.
MAX_LEAVES = 24, 40
# Trees fitted an axis, at most.
FOLDS = 12
# Where the number of leaves is given, and they only say what it loses.
FEW_FOLDS = 6
EXCESS = 3000  # millionths: 0.3 %
# numpy lets go of the interpreter while a fold is solved; each takes 170 MB on the recording grid.
_THREADS = min(4, os.cpu_count() or 1)


class Folds(NamedTuple):
    """What trees lose on the groups of one axis, in ascending order.

    Attributes:
        weights: of each group's problems together.
        lost: for each group, for 1, 2, ... leaves: weighted regret summed over the group, millionths; None where the
            fold has no tree of so few leaves.
    """

    weights: tuple[int, ...]
    lost: tuple[tuple[int | None, ...], ...]

    @property
    def inner(self) -> range:
        """The groups that are interpolated; all of fewer than four."""
        count = len(self.weights)
        return range(1, count - 1) if count > 3 else range(count)

    @property
    def outer(self) -> tuple[int, ...]:
        """The groups that are extrapolated; none of fewer than four."""
        return tuple(group for group in range(len(self.weights)) if group not in self.inner)

    def mean(self, leaves: int, groups: Sequence[int]) -> int | None:
        """Mean regret over the problems of some groups, millionths."""
        known = [loss for group in groups if (loss := self.lost[group][leaves - 1]) is not None]
        weight = sum(self.weights[group] for group in groups)
        return sum(known) // weight if weight and len(known) == len(groups) else None

    def chosen(self) -> int | None:
        """The number of leaves that this axis asks for; None where no number has a tree in each inner group."""
        means = {
            leaves: [mean for group in self.inner if (mean := self.mean(leaves, [group])) is not None]
            for leaves in range(1, len(self.lost[0]) + 1)
        }
        complete = {leaves: found for leaves, found in means.items() if len(found) == len(self.inner)}
        if not complete:
            return None
        best = min(complete, key=lambda leaves: (sum(complete[leaves]), leaves))
        return min(leaves for leaves, found in complete.items() if _as_good(found, complete[best]))


class Validated(NamedTuple):
    """What trees lose on problems left out of their fit, one entry an axis that has at least two sizes.

    Attributes:
        axes: with the weights of the problems.
        plain: as if all problems weighed the same.
    """

    axes: tuple[Folds, ...]
    plain: tuple[Folds, ...]

    def inside(self, leaves: int) -> int | None:
        """Mean regret between sizes that were fitted, millionths, on the worse axis."""
        return _inside(self.axes, leaves)

    def plain_inside(self, leaves: int) -> int | None:
        """The same as if all problems weighed the same."""
        return _inside(self.plain, leaves)

    def outside(self, leaves: int) -> int | None:
        """Mean regret beyond the sizes that were fitted, millionths, on the worse axis; None of so few sizes."""
        return _worse([axis.mean(leaves, axis.outer) for axis in self.axes if axis.outer])

    def chosen(self) -> int | None:
        """The number of leaves, by the rule in the module's docstring; None where there are too few sizes."""
        return _worse([axis.chosen() for axis in self.axes])


def selected(matrix: TimingMatrix, legality: Legality, max_configs: int | None = None) -> tuple[Validated, int]:
    """What trees lose on groups left out, and how many leaves were tried at most.

    Time grows with the square of leaves, so more are tried only where one of the last four is asked for, on grids with
    so many problems that a leaf has twenty.
    """
    fewer, more = MAX_LEAVES
    found = cross_validated(matrix, legality, fewer, max_configs)
    chosen = found.chosen()
    if chosen is None or chosen < fewer - 4 or len(matrix.problems) < 20 * more:
        return found, fewer
    return cross_validated(matrix, legality, more, max_configs), more


def cross_validated(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, max_configs: int | None = None, most: int = FOLDS
) -> Validated:
    """What trees of up to `max_leaves` leaves and `max_configs` configs lose on groups left out, in `most` folds."""

    def lost(held_out: NDArray[np.bool_]) -> list[Tree | None]:
        fitted = matrix
        if max_configs is not None:
            few = few_configs(matrix, legality, max_configs, held_out)
            if few is None:
                return [None] * max_leaves
            fitted = matrix.of_configs(few.configs)
        optima = solve(fitted, legality, max_leaves, held_out)
        return [optima.tree(count) for count in range(1, max_leaves + 1)]

    return validated(matrix, lost, (0, 1), most)


def validated(
    matrix: TimingMatrix,
    trees: Callable[[NDArray[np.bool_]], Sequence[Tree | None]],
    places: Sequence[int],
    most: int = FOLDS,
) -> Validated:
    """What trees lose on groups that were left out of their fit.

    Args:
        matrix: on which they are scored.
        trees: of bool (problems,), which are left out, to the tree of each number of leaves; None where there is none.
        places: the axes, 0 for rows and 1 for hidden.
        most: folds of an axis.
    """
    found = [folds for place in places if (folds := _folds(matrix, trees, place, most))]
    return Validated(tuple(folds[0] for folds in found), tuple(folds[1] for folds in found))


def left_out(sizes: Iterable[int], most: int = FOLDS) -> list[list[tuple[int, ...]]]:
    """What is left out together: for each of at most `most` folds its groups, of ascending sizes.

    Args:
        sizes: of an axis, in any order.
        most: folds, at least 4.
    """
    values = sorted(set(sizes))
    if len(values) <= most:
        return [[(value,)] for value in values]
    outer, steps = len(values) // most, most - 2
    inner = values[outer:-outer]
    folds: list[list[tuple[int, ...]]] = [[(value,) for value in inner[first::steps]] for first in range(steps)]
    return [[tuple(values[:outer])], *folds, [tuple(values[-outer:])]]


def _as_good(found: Sequence[int], best: Sequence[int]) -> bool:
    """Whether the mean excess over the best is at most one standard error of it, and at most `EXCESS`.

    With n groups of excess e the standard error is sqrt((sum e^2 - (sum e)^2 / n) / (n (n - 1))); the mean is at most
    that exactly where (sum e)^2 <= sum e^2, or where it is not above 0.
    """
    excess = [one - other for one, other in zip(found, best, strict=True)]
    total = sum(excess)
    return total <= 0 or (total <= EXCESS * len(excess) and total * total <= sum(one * one for one in excess))


def _worse(figures: Sequence[int | None]) -> int | None:
    """The larger figure; None where there is none, or one is unknown."""
    known = [figure for figure in figures if figure is not None]
    return max(known) if known and len(known) == len(figures) else None


def _inside(axes: Sequence[Folds], leaves: int) -> int | None:
    return _worse([axis.mean(leaves, axis.inner) for axis in axes])


def _folds(
    matrix: TimingMatrix, trees: Callable[[NDArray[np.bool_]], Sequence[Tree | None]], place: int, most: int
) -> tuple[Folds, Folds] | None:
    """The folds along one axis, with weights and without; None where it has one size."""
    sizes = np.array([shape[place] for shape in matrix.problems])
    folds = [{group: np.isin(sizes, group) for group in fold} for fold in left_out(sizes.tolist(), most)]
    if len(folds) < 2:
        return None
    with ThreadPoolExecutor(_THREADS) as pool:
        of_folds = pool.map(lambda fold: trees(np.logical_or.reduce(list(fold.values()))), folds)
        fitted = list(zip(folds, of_folds, strict=True))
    groups = sorted(
        ((group, problems, found) for fold, found in fitted for group, problems in fold.items()), key=itemgetter(0)
    )
    return tuple(  # type: ignore[return-value]
        Folds(
            tuple(int(weight[problems].sum()) for _, problems, _ in groups),
            tuple(_lost(matrix, weight, problems, found) for _, problems, found in groups),
        )
        for weight in (matrix.weight, np.ones_like(matrix.weight))
    )


def _lost(
    matrix: TimingMatrix, weight: NDArray[np.int64], problems: NDArray[np.bool_], trees: Sequence[Tree | None]
) -> tuple[int | None, ...]:
    """Weighted regret on the problems of a group, for each tree; None where there is no such tree."""
    places = [int(index) for index in np.flatnonzero(problems)]
    scores = {
        tree: sum(_scored(matrix, index, tree) * int(weight[index]) for index in places)
        for tree in {*trees}
        if tree is not None
    }
    return tuple(None if tree is None else scores[tree] for tree in trees)


def _scored(matrix: TimingMatrix, index: int, tree: Tree) -> int:
    loss = matrix.loss(index, choose(tree, *matrix.problems[index]))
    return int(matrix.regret[index].max()) if loss is None else loss
