"""How a tree is fitted to a timing matrix, and how many leaves it gets.

In: a timing matrix and what is legal. Out: the optimum for each number of leaves, and what trees of that many leaves
lose on problems that they were not fitted on. Emitting and naming are left to others.

Cross-validation. The hidden sizes are split into 6 contiguous groups of as even sizes as possible, and so are the row
counts. For each group a tree is fitted without the group's problems and scored on them: inner groups are interpolation,
outer ones extrapolation. Each axis gives the mean regret over all problems, and the worse axis is the figure. It also
gives the mean over the inner groups alone, of which again the worse axis decides: a table is fitted on its outer sizes
too and never extrapolates to them, while what it loses there when it has not seen them is the same for any number of
leaves and hides all differences (13.3 to 13.6 % from 7 leaves on for the H200's backward in bfloat16).

The number of leaves. Cross-validation permits the numbers whose deciding figure is within `PERMITTED` of the best. Of
these, the least is taken whose regret on the data is within `TOLERANCE` of that of the most: the shapes of the grid are
those that people run, so leaves that help there and harm nowhere else are worth having (the H200's backward in bfloat16
loses 5.3 % with 7 leaves and 3.3 % with 13, which cross-validate alike), and leaves that help nowhere are not.

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

from normtune.heuristics.grid import Axis, axis, coarsened
from normtune.heuristics.legality import Legality
from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.optimum import MAX_BINS, Optima
from normtune.heuristics.tree import Tree, choose
from normtune.kernels.problem import MAX_ROWS

MAX_LEAVES = 24
GROUPS = 6
# Millionths: a tenth of a percent is less than a table moves when it is fitted to another sweep of the same GPU.
TOLERANCE = 1000
# Millionths: the figures of neighbouring numbers of leaves scatter by about this much on the recorded H200.
PERMITTED = 3000
UNMEASURED = 693_147  # millionths: twice the time
# numpy lets go of the interpreter while a fold is solved; each takes 40 MB on the recording grid.
_THREADS = min(4, os.cpu_count() or 1)
# Sizes beyond the measured box have no problems. The nearest measured ones speak for them, at this fraction of weight.
WEIGHT = 4096


def solve(
    matrix: TimingMatrix, legality: Legality, max_leaves: int, held_out: NDArray[np.bool_] | None = None
) -> Optima:
    """The optima on the training problems.

    Args:
        matrix: of one operator and dtype.
        legality: what a region may have.
        max_leaves: the most leaves.
        held_out: bool (problems,), those whose times are not looked at; None for the fit of a table, which then has to
            be legal at all sizes and not just at those of the matrix.
    """
    train = np.ones(len(matrix.problems), np.bool_) if held_out is None else ~held_out
    known = [shape for shape, wanted in zip(matrix.problems, train, strict=True) if wanted]
    most_rows, most_hidden = (max(shape[place] for shape in matrix.problems) for place in (0, 1))
    if held_out is None:
        most_rows, most_hidden = MAX_ROWS, legality.spec.max_hidden
    rows = axis("rows", (shape[0] for shape in known), most_rows)
    hidden = axis("hidden", (shape[1] for shape in known), most_hidden)
    rows, hidden = coarsened(rows, hidden, MAX_BINS)
    rows, hidden, legal = _trimmed(legality, matrix, rows, hidden)

    cost = np.zeros(legal.shape, np.int64)
    barred = np.zeros(legal.shape, np.bool_)
    for index, (row_count, size) in enumerate(matrix.problems):
        place = rows.bin(row_count), hidden.bin(size)
        if train[index]:
            barred[:, *place] |= ~matrix.usable[index]
            worst = matrix.regret[index].max()
            told = np.where(matrix.usable[index], matrix.regret[index], worst)
            cost[:, *place] += matrix.regret[index] * WEIGHT
            for beyond in _beyond(place, rows, hidden):
                cost[:, *beyond] += told
        else:
            cost[:, *place] += np.where(matrix.usable[index], 0, UNMEASURED * WEIGHT)
    return Optima((rows, hidden), matrix.configs, cost, barred, legal, max_leaves)


class Validated(NamedTuple):
    """Mean regret on problems left out of the fit, for 1, 2, ... leaves, millionths.

    None where some fold has no tree of so few leaves, or where no axis has two sizes.

    Attributes:
        everywhere: over all groups.
        inside: over the inner groups, which decide; over all groups of an axis that has fewer than four.
    """

    everywhere: tuple[int | None, ...]
    inside: tuple[int | None, ...]


def cross_validated(matrix: TimingMatrix, legality: Legality, max_leaves: int) -> Validated:
    """What trees of 1 to `max_leaves` leaves lose on groups left out, the worse axis of the two."""
    by_axis = [found for place in (0, 1) if (found := _cross_validated(matrix, legality, max_leaves, place))]
    return Validated(
        _worse([found.everywhere for found in by_axis], max_leaves),
        _worse([found.inside for found in by_axis], max_leaves),
    )


def chosen_leaves(left_out: Sequence[int | None], on_data: Sequence[int | None]) -> int | None:
    """The number of leaves, by what trees of 1, 2, ... leaves lose on problems left out and on the data.

    The rule stands in the module's docstring. None where no tree has both figures.

    Args:
        left_out: mean regret inside, as `Validated.inside`, millionths.
        on_data: mean regret on the data, of the same length, millionths.
    """
    known = {
        count: (left, data)
        for count, (left, data) in enumerate(zip(left_out, on_data, strict=True), 1)
        if left is not None and data is not None
    }
    if not known:
        return None
    bound = min(left for left, _ in known.values()) + PERMITTED
    permitted = {count: data for count, (left, data) in known.items() if left <= bound}
    enough = permitted[max(permitted)] + TOLERANCE
    return min(count for count, data in permitted.items() if data <= enough)


def least_leaves(figures: Sequence[int | None]) -> int | None:
    """The least number of leaves within `TOLERANCE` of the best figure; None where there are no figures."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    bound = min(known) + TOLERANCE
    return next(count for count, figure in enumerate(figures, 1) if figure is not None and figure <= bound)


def losses(matrix: TimingMatrix, tree: Tree) -> list[int | None]:
    """The regret of a tree's choice on each problem, millionths; None where the choice has no time."""
    return [matrix.loss(index, choose(tree, *shape)) for index, shape in enumerate(matrix.problems)]


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


def _worse(axes: Sequence[Sequence[int | None]], max_leaves: int) -> tuple[int | None, ...]:
    """The larger figure of the axes for each number of leaves; None where an axis has none, or there is no axis."""
    worse: list[int | None] = []
    for leaves in range(max_leaves):
        found = [figures[leaves] for figures in axes]
        known = [figure for figure in found if figure is not None]
        worse.append(max(known) if known and len(known) == len(found) else None)
    return tuple(worse)


def _cross_validated(matrix: TimingMatrix, legality: Legality, max_leaves: int, place: int) -> Validated | None:
    """The figures of folds along one axis, `place` 0 for rows and 1 for hidden; None where it has one size."""
    sizes = np.array([shape[place] for shape in matrix.problems])
    folds = groups([int(size) for size in sizes])
    if len(folds) < 2:
        return None
    with ThreadPoolExecutor(_THREADS) as pool:
        lost = list(pool.map(lambda fold: _lost(matrix, legality, max_leaves, np.isin(sizes, fold)), folds))
    counts = [int(np.isin(sizes, fold).sum()) for fold in folds]
    inner = slice(1, -1) if len(folds) > 3 else slice(None)
    return Validated(_mean(lost, counts), _mean(lost[inner], counts[inner]))


def _mean(lost: Sequence[Sequence[int | None]], counts: Sequence[int]) -> tuple[int | None, ...]:
    """The mean over the problems of all folds, for each number of leaves; None where a fold has none."""
    means: list[int | None] = []
    for losses in zip(*lost, strict=True):
        known = [loss for loss in losses if loss is not None]
        means.append(sum(known) // sum(counts) if len(known) == len(losses) else None)
    return tuple(means)


def _lost(matrix: TimingMatrix, legality: Legality, max_leaves: int, held_out: NDArray[np.bool_]) -> list[int | None]:
    """Summed regret on the problems left out, for 1 to `max_leaves` leaves; None where there is no such tree."""
    optima = solve(matrix, legality, max_leaves, held_out)
    trees = [optima.tree(count) for count in range(1, max_leaves + 1)]
    places = [int(index) for index in np.flatnonzero(held_out)]
    scores = {tree: sum(_scored(matrix, index, tree) for index in places) for tree in {*trees} if tree is not None}
    return [None if tree is None else scores[tree] for tree in trees]


def _scored(matrix: TimingMatrix, index: int, tree: Tree) -> int:
    loss = matrix.loss(index, choose(tree, *matrix.problems[index]))
    return int(matrix.regret[index].max()) if loss is None else loss


def _trimmed(
    legality: Legality, matrix: TimingMatrix, rows: Axis, hidden: Axis
) -> tuple[Axis, Axis, NDArray[np.bool_]]:
    """The axes without bins beyond the measured sizes that make no difference to what is legal, and what is legal."""
    legal = legality.over(matrix.configs, rows.tops, hidden.tops)
    if rows.beyond and bool((legal[:, -1] == legal[:, -2]).all()):
        rows, legal = rows.without_beyond(), legal[:, :-1]
    if hidden.beyond and bool((legal[:, :, -1] == legal[:, :, -2]).all()):
        hidden, legal = hidden.without_beyond(), legal[:, :, :-1]
    return rows, hidden, legal


def _beyond(place: tuple[int, int], rows: Axis, hidden: Axis) -> list[tuple[int, int]]:
    """The bins beyond the measured sizes of which the bin at `place` is the nearest measured one."""
    row_places, hidden_places = [place[0]], [place[1]]
    if rows.beyond and place[0] == len(rows.tops) - 2:
        row_places.append(place[0] + 1)
    if hidden.beyond and place[1] == len(hidden.tops) - 2:
        hidden_places.append(place[1] + 1)
    return [(row, column) for row in row_places for column in hidden_places if (row, column) != place]
