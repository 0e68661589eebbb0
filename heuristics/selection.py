"""How many leaves a table gets: cross-validation.

In: a timing matrix and what is legal. Out: what trees of each number of leaves lose on problems that they were not
fitted on, and the number to be taken.

Cross-validation. The hidden sizes are split into contiguous groups of as even sizes as possible, and so are the row
counts. For each group a tree is fitted without the group's problems and scored on them. A group between others is
interpolation, the first and the last are extrapolation; a table is fitted on its outer sizes too and never extrapolates
to them, so these have a figure of their own and decide nothing. The axes are scored apart; the worse one is the figure.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.legality import Legality
from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.solving import few_configs, solve
from normtune.heuristics.tree import Tree, choose

MAX_LEAVES = 24
GROUPS = 12
EXCESS = 3000  # millionths: 0.3 %
# numpy lets go of the interpreter while a fold is solved; each takes 40 MB on the recording grid.
_THREADS = min(4, os.cpu_count() or 1)


class Folds(NamedTuple):
    """What trees lose on the groups of one axis.

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
    """What trees lose on problems left out of their fit, one entry an axis that has at least two sizes."""

    axes: tuple[Folds, ...]

    def inside(self, leaves: int) -> int | None:
        """Mean regret between sizes that were fitted, millionths, on the worse axis."""
        return _worse([axis.mean(leaves, axis.inner) for axis in self.axes])

    def outside(self, leaves: int) -> int | None:
        """Mean regret beyond the sizes that were fitted, millionths, on the worse axis; None of so few sizes."""
        return _worse([axis.mean(leaves, axis.outer) for axis in self.axes if axis.outer])

    def chosen(self) -> int | None:
        """The number of leaves, by the rule in the module's docstring; None where there are too few sizes."""
        return _worse([axis.chosen() for axis in self.axes])


def cross_validated(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, max_configs: int | None = None
) -> Validated:
    """What trees of 1 to `max_leaves` leaves and at most `max_configs` configs lose on groups left out."""
    found = (_folds(matrix, legality, max_leaves, max_configs, place) for place in (0, 1))
    return Validated(tuple(folds for folds in found if folds))


def groups(sizes: Sequence[int], count: int = GROUPS) -> list[tuple[int, ...]]:
    """Contiguous groups of ascending sizes, at most `count`, none empty, the first ones larger where it is uneven."""
    values = sorted(set(sizes))
    count = min(count, len(values))
    share, extra = divmod(len(values), count)
    found, start = [], 0
    for number in range(count):
        end = start + share + (number < extra)
        found.append(tuple(values[start:end]))
        start = end
    return found


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


def _folds(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, max_configs: int | None, place: int
) -> Folds | None:
    """The folds along one axis, `place` 0 for rows and 1 for hidden; None where it has one size."""
    sizes = np.array([shape[place] for shape in matrix.problems])
    left_out = [np.isin(sizes, fold) for fold in groups([int(size) for size in sizes])]
    if len(left_out) < 2:
        return None
    with ThreadPoolExecutor(_THREADS) as pool:
        lost = pool.map(lambda held_out: _lost(matrix, legality, max_leaves, max_configs, held_out), left_out)
        return Folds(tuple(int(matrix.weight[held_out].sum()) for held_out in left_out), tuple(lost))


def _lost(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, max_configs: int | None, held_out: NDArray[np.bool_]
) -> tuple[int | None, ...]:
    """Weighted regret on the problems left out, for 1 to `max_leaves` leaves; None where there is no such tree."""
    fitted = matrix
    if max_configs is not None:
        few = few_configs(matrix, legality, max_configs, held_out)
        if few is None:
            return (None,) * max_leaves
        fitted = matrix.of_configs(few.configs)
    optima = solve(fitted, legality, max_leaves, held_out)
    trees = [optima.tree(count) for count in range(1, max_leaves + 1)]
    places = [int(index) for index in np.flatnonzero(held_out)]
    scores = {
        tree: sum(_scored(matrix, index, tree) * int(matrix.weight[index]) for index in places)
        for tree in {*trees}
        if tree is not None
    }
    return tuple(None if tree is None else scores[tree] for tree in trees)


def _scored(matrix: TimingMatrix, index: int, tree: Tree) -> int:
    loss = matrix.loss(index, choose(tree, *matrix.problems[index]))
    return int(matrix.regret[index].max()) if loss is None else loss
