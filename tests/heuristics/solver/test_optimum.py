import numpy as np
import pytest

from normtune.heuristics.solver import optimum
from normtune.heuristics.solver.grid import axis
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.box import Box
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, leaves, regions
from normtune.tests.heuristics.made_up import partitions

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))
Corners = tuple[int, int, int, int]


def brute_force(cost: np.ndarray, barred: np.ndarray, legal: np.ndarray, count: int) -> int | None:
    def of_box(box: Corners) -> int | None:
        r0, r1, h0, h1 = box
        sums = [
            sum(int(cost[c, r, h]) for r in range(r0, r1) for h in range(h0, h1))
            for c in range(len(cost))
            if legal[c, r1 - 1, h1 - 1] and not any(barred[c, r, h] for r in range(r0, r1) for h in range(h0, h1))
        ]
        return min(sums, default=None)

    totals = []
    for number in range(1, count + 1):
        for boxes in partitions((0, cost.shape[1], 0, cost.shape[2]), number):
            parts = [of_box(box) for box in boxes]
            if None not in parts:
                totals.append(sum(parts))
    return min(totals, default=None)


def problem(seed: int, rows: int, hidden: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random costs, some cells without a time, and a legality that never returns as sizes grow."""
    draw = np.random.default_rng(seed)
    cost = draw.integers(-5, 50, (len(CONFIGS), rows, hidden))
    barred = draw.random(cost.shape) < 0.15
    edge = draw.integers(1, rows + hidden, len(CONFIGS))
    legal = np.add.outer(np.arange(rows), np.arange(hidden))[None] < edge[:, None, None]
    return np.where(barred, 0, cost), barred, legal


def solved(cost: np.ndarray, barred: np.ndarray, legal: np.ndarray, most: int) -> Optima:
    rows = axis("rows", [2**i for i in range(cost.shape[1])], 2 ** (cost.shape[1] - 1))
    hidden = axis("hidden", [64 * 2**i for i in range(cost.shape[2])], 64 * 2 ** (cost.shape[2] - 1))
    return Optima((rows, hidden), CONFIGS, cost, barred, legal, most)


def cost_of(tree: Tree, optima: Optima, cost: np.ndarray, barred: np.ndarray, legal: np.ndarray) -> int:
    """What a tree costs, from its regions; fails where it does what it must not."""
    total = 0
    for answer, region in regions(tree, Box.of(rows=(1, optima.rows.tops[-1]), hidden=(1, optima.hidden.tops[-1]))):
        config = CONFIGS.index(answer)
        r0, r1 = optima.rows.bin(region[0].least), optima.rows.bin(region[0].most)
        h0, h1 = optima.hidden.bin(region[1].least), optima.hidden.bin(region[1].most)
        assert legal[config, r1, h1]
        assert not barred[config, r0 : r1 + 1, h0 : h1 + 1].any()
        total += int(cost[config, r0 : r1 + 1, h0 : h1 + 1].sum())
    return total


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("rows", "hidden", "most"), [(3, 3, 4), (2, 4, 4), (1, 5, 5), (4, 1, 3)])
def test_the_optimum_is_that_of_brute_force_for_every_number_of_leaves(
    seed: int, rows: int, hidden: int, most: int
) -> None:
    cost, barred, legal = problem(seed, rows, hidden)
    optima = solved(cost, barred, legal, most)
    for count in range(1, most + 1):
        expected = brute_force(cost, barred, legal, count)
        assert optima.least(count) == expected
        tree = optima.tree(count)
        assert (tree is None) == (expected is None)
        if tree is not None:
            assert leaves(tree) <= count
            assert cost_of(tree, optima, cost, barred, legal) == expected


def near_ties(seed: int, rows: int, hidden: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs of a few sizes, and beside them what a single float of their sum does not hold."""
    cost, barred, legal = problem(seed, rows, hidden)
    sizes = np.random.default_rng(seed).integers(0, 3, cost.shape) << 35
    return np.where(barred, 0, sizes + cost), barred, legal


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("rows", "hidden", "most"), [(3, 3, 4), (2, 4, 4)])
def test_costs_that_differ_by_less_than_a_rounding_are_told_apart(seed: int, rows: int, hidden: int, most: int) -> None:
    problems = near_ties(seed, rows, hidden)
    optima = solved(*problems, most)
    for count in range(1, most + 1):
        tree = optima.tree(count)
        assert optima.least(count) == brute_force(*problems, count)
        assert tree is None or cost_of(tree, optima, *problems) == optima.least(count)


@pytest.mark.parametrize("seed", range(12))
def test_rounded_costs_lead_to_the_same_trees_as_exact_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = near_ties(seed, 6, 7)[0]
    problems = cost, np.zeros(cost.shape, np.bool_), np.ones(cost.shape, np.bool_)
    rounded = solved(*problems, 12)
    found = [(rounded.least(count), rounded.tree(count)) for count in range(1, 13)]
    monkeypatch.setattr(optimum, "_MANY", 0)
    exact = solved(*problems, 12)
    assert found == [(exact.least(count), exact.tree(count)) for count in range(1, 13)]
    assert rounded._known and not exact._known


def test_where_very_many_trees_cost_the_same_not_all_are_summed() -> None:
    chess = np.add.outer(np.arange(12), np.arange(12)) % len(CONFIGS)
    cost = np.stack([np.where(chess == place, 0, 1 << 30) for place in range(len(CONFIGS))])
    optima = solved(cost, cost < 0, cost >= 0, 10)
    least = optima.least(10)
    tree = optima.tree(10)
    assert tree is not None and cost_of(tree, optima, cost, cost < 0, cost >= 0) == least
    assert len(optima._known) < 2 * optimum._MANY


@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_leaves_of_a_cost_are_those_of_brute_force(seed: int) -> None:
    cost, barred, legal = problem(seed, 3, 3)
    optima = solved(cost, barred, legal, 4)
    least = [brute_force(cost, barred, legal, count) for count in range(1, 5)]
    for bound in {one + more for one in least if one is not None for more in (-1, 0, 1)}:
        enough = [count for count, one in enumerate(least, 1) if one is not None and one <= bound]
        assert optima.fewest(bound) == (min(enough) if enough else None)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("few", [2, 7])
def test_what_was_solved_for_one_number_of_leaves_serves_another(seed: int, few: int) -> None:
    problems = near_ties(seed, 4, 5)
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
    assert tree == Split("hidden", 64, Split("rows", 2, Leaf(CONFIGS[0]), Leaf(CONFIGS[1])), Leaf(CONFIGS[1]))


def test_more_leaves_than_bins_are_as_good_as_one_a_bin() -> None:
    cost, barred, legal = problem(3, 2, 2)
    optima = solved(cost, np.zeros_like(barred), np.ones_like(legal), 16)
    tree = optima.tree(16)
    assert optima.least(16) == int(cost.min(axis=0).sum())
    for row, rows in enumerate((1, 2)):
        for column, hidden in enumerate((64, 128)):
            assert cost[CONFIGS.index(choose(tree, (rows, hidden))), row, column] == cost[:, row, column].min()


def test_costs_that_cannot_be_summed_exactly_are_refused() -> None:
    cost = np.full((1, 2, 2), 2**48, np.int64)
    with pytest.raises(OverflowError, match="2 x 2 sizes"):
        solved(cost, cost < 0, cost > 0, 2)
