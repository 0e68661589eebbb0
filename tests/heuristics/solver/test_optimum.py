from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from normtune.heuristics.solver import optimum
from normtune.heuristics.solver.grid import Axis, axis
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.box import Box, Interval
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, regions

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))
# Axes of one to three sizes, in the order of shapes.
AXES = ("rows", "hidden", "depth")
SIZES = [((5,), 4), ((3, 3), 4), ((2, 4), 4), ((1, 5), 5), ((4, 1), 3), ((2, 2, 3), 4), ((3, 1, 2), 4), ((2, 3, 2), 3)]
Problem = tuple[np.ndarray, np.ndarray, np.ndarray]


class Answer(NamedTuple):
    """A tree and what decides between it and others: its cost, its leaves, and its place in the order of ties."""

    cost: int
    leaves: int
    order: tuple[int, ...]
    tree: Tree


def all_trees(optima: Optima, problem: Problem, box: Box, count: int) -> Iterator[Answer]:
    """All trees of exactly `count` leaves on a box of bins, with the best config in each leaf."""
    if count == 1:
        cost, barred, legal = problem
        within = tuple(slice(least, most + 1) for _, least, most in box)
        ends = [
            (int(cost[number][within].sum()), number)
            for number in range(len(CONFIGS))
            if legal[number][box.largest] and not barred[number][within].any()
        ]
        if ends:
            least, number = min(ends)
            yield Answer(least, 1, (number,), Leaf(CONFIGS[number]))
    for rank, (name, least, most) in enumerate(reversed(box)):
        for first, fewer in product(range(least + 1, most + 1), range(1, count)):
            lower, upper = box.cut(name, first)
            highs = [*all_trees(optima, problem, upper, count - fewer)]
            for low, high in product(all_trees(optima, problem, lower, fewer), highs):
                order = (rank, first, fewer, *low.order, *high.order)
                split = Split(name, optima.axis(name).threshold(first), low.tree, high.tree)
                yield Answer(low.cost + high.cost, count, order, split)


def brute_force(optima: Optima, problem: Problem, most: int, box: Box | None = None) -> list[Answer | None]:
    """The first of the best trees of at most 1 to `most` leaves; None where there is none."""
    found: list[Answer] = []
    best: list[Answer | None] = []
    for count in range(1, most + 1):
        found += all_trees(optima, problem, box or optima.whole, count)
        best.append(min(found, default=None))
        found = [answer for answer in best[-1:] if answer]
    return best


def problem(seed: int, *sizes: int) -> Problem:
    """Random costs, some cells without a time, and a legality that never returns as sizes grow."""
    draw = np.random.default_rng(seed)
    cost = draw.integers(-5, 50, (len(CONFIGS), *sizes))
    barred = draw.random(cost.shape) < 0.15
    edge = draw.integers(1, sum(sizes), len(CONFIGS))
    legal = np.indices(sizes).sum(axis=0) < np.expand_dims(edge, tuple(range(1, cost.ndim)))
    return np.where(barred, 0, cost), barred, legal


def solved(cost: np.ndarray, barred: np.ndarray, legal: np.ndarray, most: int, beyond: bool = False) -> Optima:
    """The optima; `beyond` tells whether the last bin of each axis lies beyond its measured sizes."""
    sizes = [[64 * 2**step for step in range(count)] for count in cost.shape[1:]]
    axes = [axis(name, values, values[-1]) for name, values in zip(AXES, sizes, strict=False)]
    axes = [own._replace(has_outer_bin=beyond and len(own.tops) > 1) for own in axes]
    return Optima(tuple(axes), CONFIGS, cost, barred, legal, most)


def cost_of(tree: Tree, optima: Optima, cost: np.ndarray, barred: np.ndarray, legal: np.ndarray) -> int:
    """What a tree costs, from its regions; fails where it does what it must not."""
    total = 0
    for answer, region in regions(tree, Box(Interval(own.name, 1, own.tops[-1]) for own in optima.axes)):
        config = CONFIGS.index(answer)
        place = tuple(
            slice(own.bin(sizes.least), own.bin(sizes.most) + 1) for own, sizes in zip(optima.axes, region, strict=True)
        )
        assert legal[config, *(bins.stop - 1 for bins in place)]
        assert not barred[config, *place].any()
        total += int(cost[config, *place].sum())
    return total


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("sizes", "most"), SIZES)
def test_the_optimum_is_that_of_brute_force_for_every_number_of_leaves(
    seed: int, sizes: tuple[int, ...], most: int
) -> None:
    problems = problem(seed, *sizes)
    optima = solved(*problems, most, beyond=seed % 2 == 1)
    for count, expected in enumerate(brute_force(optima, problems, most), 1):
        tree = optima.tree(count)
        assert (optima.least(count), tree) == ((expected.cost, expected.tree) if expected else (None, None))
        assert tree is None or cost_of(tree, optima, *problems) == optima.least(count)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("sizes", "most"), SIZES)
def test_of_equal_trees_the_first_is_taken(seed: int, sizes: tuple[int, ...], most: int) -> None:
    cost, barred, legal = problem(seed, *sizes)
    problems = np.where(barred, 0, cost % 2), barred, legal
    optima = solved(*problems, most)
    expected = brute_force(optima, problems, most)
    assert [optima.tree(count) for count in range(1, most + 1)] == [answer and answer.tree for answer in expected]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("sizes", "most"), [((4,), 3), ((3, 4), 4), ((3, 2, 3), 3)])
def test_the_least_cost_of_the_measured_bins_needs_no_tree_for_those_beyond(
    seed: int, sizes: tuple[int, ...], most: int
) -> None:
    problems = problem(seed, *sizes)
    optima = solved(*problems, most, beyond=True)
    inner = Box(interval._replace(most=interval.most - 1) for interval in optima.whole)
    expected = brute_force(optima, problems, most, inner)
    found = [optima.least_measured(count) for count in range(1, most + 1)]
    assert found == [answer and answer.cost for answer in expected]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("place", range(3))
def test_an_axis_of_one_bin_changes_nothing(seed: int, place: int) -> None:
    problems = near_ties(seed, 6, 7) if seed % 2 else problem(seed, 6, 7)
    flat = solved(*problems, 12)
    one = Axis("depth", (64,), False)
    axes = *flat.axes[:place], one, *flat.axes[place:]
    deep = Optima(axes, CONFIGS, *(np.expand_dims(cells, place + 1) for cells in problems), 12)
    for count in range(1, 13):
        assert (deep.least(count), deep.tree(count)) == (flat.least(count), flat.tree(count))


def near_ties(seed: int, *sizes: int) -> Problem:
    """Costs of a few sizes, and beside them what a single float of their sum does not hold."""
    cost, barred, legal = problem(seed, *sizes)
    large = np.random.default_rng(seed).integers(0, 3, cost.shape) << 35
    return np.where(barred, 0, large + cost), barred, legal


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("sizes", "most"), [((3, 3), 4), ((2, 4), 4), ((2, 2, 3), 4)])
def test_costs_that_differ_by_less_than_a_rounding_are_told_apart(seed: int, sizes: tuple[int, ...], most: int) -> None:
    problems = near_ties(seed, *sizes)
    optima = solved(*problems, most)
    expected = brute_force(optima, problems, most)
    assert [optima.tree(count) for count in range(1, most + 1)] == [answer and answer.tree for answer in expected]
    assert [optima.least(count) for count in range(1, most + 1)] == [answer and answer.cost for answer in expected]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sizes", [(12,), (6, 7), (3, 4, 5)])
def test_rounded_costs_lead_to_the_same_trees_as_exact_ones(seed: int, sizes: tuple[int, ...]) -> None:
    cost = near_ties(seed, *sizes)[0]
    problems = cost, np.zeros(cost.shape, np.bool_), np.ones(cost.shape, np.bool_)
    rounded = solved(*problems, 12)
    found = [(rounded.least(count), rounded.tree(count)) for count in range(1, 13)]
    exact = solved(*problems, 12)
    exact._partitions.in_doubles()
    assert found == [(exact.least(count), exact.tree(count)) for count in range(1, 13)]
    assert rounded._exact_costs and not exact._exact_costs


def test_where_very_many_trees_cost_the_same_not_all_are_summed() -> None:
    chess = np.add.outer(np.arange(12), np.arange(12)) % len(CONFIGS)
    cost = np.stack([np.where(chess == place, 0, 1 << 30) for place in range(len(CONFIGS))])
    optima = solved(cost, cost < 0, cost >= 0, 10)
    least = optima.least(10)
    tree = optima.tree(10)
    assert tree is not None and cost_of(tree, optima, cost, cost < 0, cost >= 0) == least
    assert len(optima._exact_costs) < 2 * optimum._MANY


@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_leaves_of_a_cost_are_those_of_brute_force(seed: int) -> None:
    problems = problem(seed, 3, 3)
    optima = solved(*problems, 4)
    least = [answer and answer.cost for answer in brute_force(optima, problems, 4)]
    for bound in {one + more for one in least if one is not None for more in (-1, 0, 1)}:
        enough = [count for count, one in enumerate(least, 1) if one is not None and one <= bound]
        assert optima.fewest(bound) == (min(enough) if enough else None)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("few", [2, 7, 10])
@pytest.mark.parametrize("sizes", [(4, 5), (3, 2, 4)])
def test_what_was_solved_for_one_number_of_leaves_serves_another(seed: int, few: int, sizes: tuple[int, ...]) -> None:
    problems = near_ties(seed, *sizes)
    optima, wanted = solved(*problems, few), solved(*problems, 11)
    assert optima.tree(few) == wanted.tree(few)
    more = optima.up_to(11)
    assert [more.tree(count) for count in range(1, 12)] == [wanted.tree(count) for count in range(1, 12)]
    assert (optima.least(11), more.up_to(few).least(11)) == (wanted.least(few), wanted.least(few))


def test_equal_costs_take_fewer_leaves_and_the_smaller_config() -> None:
    cost = np.zeros((3, 2, 2), np.int64)
    optima = solved(cost, cost > 0, cost == 0, 4)
    assert optima.tree(4) == Leaf(CONFIGS[0])


def test_equal_cuts_take_hidden_before_rows() -> None:
    cost = np.zeros((3, 2, 2), np.int64)
    cost[0] = [[0, 9], [9, 9]]
    cost[1] = [[9, 0], [0, 0]]
    cost[2] = 9
    tree = solved(cost, cost < 0, cost >= 0, 4).tree(4)
    assert tree == Split("hidden", 64, Split("rows", 100, Leaf(CONFIGS[0]), Leaf(CONFIGS[1])), Leaf(CONFIGS[1]))


def test_more_leaves_than_bins_are_as_good_as_one_a_bin() -> None:
    cost, barred, legal = problem(3, 2, 2)
    optima = solved(cost, np.zeros_like(barred), np.ones_like(legal), 16)
    tree = optima.tree(16)
    assert optima.least(16) == int(cost.min(axis=0).sum())
    for row, rows in enumerate((64, 128)):
        for column, hidden in enumerate((64, 128)):
            assert cost[CONFIGS.index(choose(tree, (rows, hidden))), row, column] == cost[:, row, column].min()


@pytest.mark.parametrize(("sizes", "most"), [((51, 51), 2600), ((2601,), 2600), ((16, 16, 16), 4000)])
def test_too_many_bins_are_refused_with_the_bound(sizes: tuple[int, ...], most: int) -> None:
    cost = np.zeros((1, *sizes), np.int64)
    with pytest.raises(OverflowError, match=f"{sizes[0]}.* sizes are {cost.size} bins: at most {most} are solved"):
        solved(cost, cost > 0, cost == 0, 2)


def test_costs_that_cannot_be_summed_exactly_are_refused() -> None:
    cost = np.full((1, 2, 2), 2**48, np.int64)
    with pytest.raises(OverflowError, match="2 x 2 sizes"):
        solved(cost, cost < 0, cost > 0, 2)
