"""The plainest tree within a budget: its cost, and the order of its preferences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.solver.grid import axis, roundness
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.solver.simplify import boxes, cost_of, replaced, simplified
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, configs_of, distinct, leaves

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))
A, B, C, D = (Leaf(config) for config in CONFIGS)
ROWS, HIDDEN = (1, 24, 100, 5000), (64, 100, 700, 1000, 4096)


def optima_of(
    cost: np.ndarray,
    most: int,
    barred: np.ndarray | None = None,
    legal: np.ndarray | None = None,
    sizes: tuple[tuple[int, ...], tuple[int, ...]] = (ROWS, HIDDEN),
) -> Optima:
    """The optima of costs int (C, R, H) on the first of these sizes."""
    rows, hidden = sizes[0][: cost.shape[1]], sizes[1][: cost.shape[2]]
    axes = axis("rows", rows, rows[-1]), axis("hidden", hidden, hidden[-1])
    barred = np.zeros(cost.shape, np.bool_) if barred is None else barred
    legal = np.ones(cost.shape, np.bool_) if legal is None else legal
    return Optima(axes, CONFIGS[: cost.shape[0]], cost, barred, legal, most)


def true_cost(tree: Tree, cost: np.ndarray, barred: np.ndarray) -> int | None:
    """What a tree costs by what it answers at each size; None where it may not answer so."""
    total = 0
    for row, rows in enumerate(ROWS[: cost.shape[1]]):
        for column, hidden in enumerate(HIDDEN[: cost.shape[2]]):
            place = CONFIGS.index(choose(tree, (rows, hidden)))
            if barred[place, row, column]:
                return None
            total += int(cost[place, row, column])
    return total


def random_tree(draw: np.random.Generator, depth: int) -> Tree:
    """Any tree of the form of tables, its thresholds anywhere."""
    if not depth or draw.random() < 0.2:
        return Leaf(CONFIGS[draw.integers(len(CONFIGS))])
    low, high = random_tree(draw, depth - 1), random_tree(draw, depth - 1)
    if draw.random() < 0.5:
        return Split(
            "hidden", int(draw.choice([64, 72, 80, 100, 128, 256, 512, 700, 720, 768, 800, 1024, 2048])), low, high
        )
    return Split("rows", int(draw.choice([2, 8, 16, 20, 24, 32, 64, 90, 100, 128, 1000, 1024, 4096])), low, high)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    most=st.integers(1, 6),
    slack=st.sampled_from([0, 1, 5, 30, 1000]),
    holes=st.sampled_from([0.0, 0.1]),
)
def test_the_budget_is_never_left(seed: int, most: int, slack: int, holes: float) -> None:
    draw = np.random.default_rng(seed)
    cost = draw.integers(-3, 40, (4, *draw.integers(2, 5, 2)))
    barred = draw.random(cost.shape) < holes
    barred[0] = False
    optima = optima_of(cost, most, barred)
    best, tree = optima.least(most), optima.tree(most)
    assert best is not None and tree is not None
    found = simplified(optima, tree, best + slack)
    paid = true_cost(found, cost, barred)
    assert paid is not None
    assert paid <= best + slack
    assert leaves(found) <= leaves(tree)
    assert len(distinct(found)) <= len(distinct(tree))
    assert cost_of(optima, found) == paid
    if slack == 0:
        assert paid == best


def test_the_fewest_configs_of_the_partition_are_taken() -> None:
    """Three columns with a best config each; D is 1 worse than each of them, so one config does for all."""
    cost = np.full((4, 1, 3), 9)
    cost[[0, 1, 2], 0, [0, 1, 2]] = 0
    cost[3] = 1
    optima = optima_of(cost, 3)
    tree = optima.tree(3)
    assert tree is not None and len(distinct(tree)) == 3
    assert simplified(optima, tree, 0) == tree
    # With 2 more two configs are possible (one column of its own, D in the others), with 3 more one.
    assert len(distinct(simplified(optima, tree, 2))) == 2
    assert simplified(optima, tree, 3) == D


def test_a_rounder_threshold_within_the_budget_is_taken() -> None:
    """Sizes 64, 100, 700, 1000: A below 700, B from 1000 on; 768 is the grid's cut, 512 is rounder and costs 2 more."""
    cost = np.zeros((2, 1, 4), int)
    cost[0] = [[0, 0, 0, 9]]
    cost[1] = [[9, 9, 2, 0]]
    optima = optima_of(cost, 2)
    tree = optima.tree(2)
    assert tree == Split("hidden", 768, A, B)
    assert roundness(768) > roundness(512) == 0
    assert simplified(optima, tree, 1) == tree
    found = simplified(optima, tree, 2)
    assert isinstance(found, Split)
    assert (found.low, found.high, roundness(found.threshold)) == (A, B, 0)
    assert 100 <= found.threshold < 700


def test_a_threshold_that_divides_nothing_has_no_cost() -> None:
    cost = np.array([[[0, 0, 0, 9]], [[9, 9, 9, 0]]])
    optima = optima_of(cost, 2)
    assert optima.axis("hidden").tops == (64, 256, 768, 1000)
    assert cost_of(optima, Split("hidden", 768, A, B)) == 0
    assert cost_of(optima, Split("hidden", 768, A, Split("hidden", 256, A, B))) is None


@pytest.mark.parametrize("seed", range(5))
def test_boxes_and_what_replaces_them(seed: int) -> None:
    draw = np.random.default_rng(seed)
    optima = optima_of(draw.integers(0, 40, (4, 4, 4)), 6)
    tree = optima.tree(6)
    assert tree is not None
    found = boxes(optima, tree)
    assert sum((box[0].most + 1 - box[0].least) * (box[1].most + 1 - box[1].least) for box in found) == 16
    expected = list(configs_of(tree))
    assert replaced(tree, map(Leaf, expected)) == tree
    expected[2] = CONFIGS[3]
    assert list(configs_of(replaced(tree, map(Leaf, expected)))) == expected
