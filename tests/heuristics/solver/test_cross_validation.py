from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.heuristics.regret.matrix import WEIGHT, TimingMatrix
from normtune.heuristics.solver.bins import losses, solve
from normtune.heuristics.solver.cross_validation import (
    EXCESS,
    MAX_LEAVES,
    Folds,
    Validated,
    cross_validated,
    left_out,
    most_leaves,
    validated,
)
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import AXES
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, choose
from normtune.kernels.target import TARGETS
from normtune.tests.heuristics.made_up import matrix_of

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (4, 8, 16))
SHAPES = [(rows, hidden) for rows in (1, 8, 64, 512, 4096, 32768) for hidden in (64, 128, 256, 512, 1024, 2048)]


def matrix(regret: np.ndarray, usable: np.ndarray | None = None) -> TimingMatrix:
    return matrix_of(regret, SHAPES, CONFIGS, usable)


@pytest.fixture
def legality(spec: OperatorSpec) -> Legality:
    return Legality(spec, TARGETS["sm_90"], ["bfloat16"], all_variants(spec))


def regimes() -> np.ndarray:
    """4 warps win up to 256, 16 from 512 on, by 20 %."""
    return np.array([[0, 200_000, 200_000] if hidden <= 256 else [200_000, 150_000, 0] for _, hidden in SHAPES])


def test_few_sizes_are_left_out_one_by_one() -> None:
    assert left_out([5, 3, 1, 2, 4, 9, 3]) == [[(1,)], [(2,)], [(3,)], [(4,)], [(5,)], [(9,)]]


def test_neighbours_are_not_left_out_together_but_for_the_outer_sizes() -> None:
    assert left_out(range(13)) == [[(0, 1)], [(2,), (6,), (10,)], [(3,), (7,)], [(4,), (8,)], [(5,), (9,)], [(11, 12)]]
    for count in range(7, 60):
        first, *between, last = left_out(range(count))
        assert sorted(size for fold in (first, *between, last) for group in fold for size in group) == [*range(count)]
        for fold in between:
            sizes = [size for group in fold for size in group]
            assert all(len(group) == 1 for group in fold) and min(np.diff(sizes), default=2) >= 2


def test_as_many_leaves_as_there_are_regimes(legality: Legality) -> None:
    assert cross_validated(matrix(regimes()), legality, 6).chosen() == 2
    assert solve(matrix(regimes()), legality, 2).tree(2) == Split("hidden", 256, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))


def test_the_figure_is_what_folds_lose(legality: Legality) -> None:
    # Each of the 6 hidden sizes is a fold. The cut between 128 and 512 is put at 256 when 256 is left out, and between
    # 256 and 1024 at 512 when 512 is: that puts the 6 problems of 512 on the wrong side, at 200000 each.
    figures = cross_validated(matrix(regimes()), legality, 3)
    # 512 is among the inner 4 of the 6 sizes; by rows there is nothing to lose.
    assert figures.inside(2) == 6 * 200_000 // 24
    assert figures.outside(2) == 0
    assert figures.worst_inside(2) == 200_000


def test_the_worst_between_sizes_is_of_problems_with_a_time(legality: Legality) -> None:
    """Where a choice has no time, the mean takes the slowest one, and the worst leaves it out."""
    regret, usable = regimes(), np.ones((len(SHAPES), 3), np.bool_)
    at_512 = [hidden == 512 for _, hidden in SHAPES]
    regret[at_512, 1], usable[at_512, 0] = 900_000, False
    found = validated(matrix(regret, usable), lambda held_out: [Leaf(CONFIGS[0])], AXES, 1)
    assert found.worst_inside(1) == 200_000
    assert found.plain_axes[1].mean(1, [3]) == 900_000


@pytest.mark.slow
def test_leaves_that_do_not_generalise_are_not_taken(legality: Legality) -> None:
    for seed in range(5):
        noise = np.random.default_rng(seed).integers(0, 100_000, (len(SHAPES), len(CONFIGS)))
        found = cross_validated(matrix(noise), legality, 8)
        inside = [found.inside(count) for count in range(1, 9)]
        assert found.inside(found.chosen()) <= min(inside) + 2 * EXCESS
        assert found.chosen() < 8


def test_weights_count_in_what_folds_lose(legality: Legality) -> None:
    weights = np.array([1 if hidden == 512 else 2 * WEIGHT for _, hidden in SHAPES], np.int64)
    light = replace(matrix(regimes()), weights=weights)
    heavy = cross_validated(matrix(regimes()), legality, 3).inside(2)
    assert cross_validated(light, legality, 3).inside(2) == 6 * 200_000 // (6 + 18 * 2 * WEIGHT)
    assert heavy == 50_000


def folds(*means: list[int | None]) -> Folds:
    """Folds of six groups of weight 1, the outer two of which would choose otherwise."""
    outer = [10**6 - leaves for leaves in range(len(means))]
    return Folds((1,) * 6, tuple(tuple(group) for group in (outer, *zip(*means, strict=True), outer)), ())


def test_the_fewest_leaves_within_one_standard_error_of_the_best() -> None:
    best = [50_000, 60_000, 70_000, 80_000]
    # An excess in one group is one standard error of its mean; in two equal ones it is more, whatever its size.
    one = [value + (index == 2) * 4 * EXCESS for index, value in enumerate(best)]
    two = [value + (index >= 2) * 10 for index, value in enumerate(best)]
    assert folds([None] * 4, one, two, best).chosen() == 2
    assert folds([None] * 4, two, best, best).chosen() == 3
    assert folds(best, best).chosen() == 1
    # What is better here and worse there counts as good where the mean is not above the best.
    mixed = [best[0] - 500, best[1] + 400, best[2] + 50, best[3] + 50]
    assert folds([value + 50_000 for value in best], mixed, best).chosen() == 2
    assert folds([None] * 4, [None, 1, 1, 1]).chosen() is None


def test_an_excess_above_the_bound_is_refused_whatever_its_error() -> None:
    best = [50_000] * 4
    over = [50_000 + 4 * EXCESS + 4, *best[1:]]
    assert folds(over, best).chosen() == 2
    assert folds([50_000 + 4 * EXCESS, *best[1:]], best).chosen() == 1


def test_the_axis_that_asks_for_more_leaves_decides() -> None:
    best = [50_000] * 4
    bad = [value + 50_000 for value in best]
    few, many = folds(best, best, best), folds(bad, bad, best)
    found = Validated((few, many), ())
    assert found.chosen() == Validated((many, few), ()).chosen() == 3
    assert found.inside(2) == 100_000
    assert found.outside(1) == 10**6


@pytest.mark.parametrize(
    ("problems", "gain", "most"), [(160, EXCESS + 1, 40), (160, EXCESS, 24), (159, EXCESS + 1, 24)]
)
def test_more_leaves_are_tried_where_the_best_tree_of_a_large_grid_is_better_with_them(
    problems: int, gain: int, most: int
) -> None:
    shapes = tuple((rows, 64) for rows in range(1, problems + 1))
    regret = np.zeros((problems, 3), np.int64)
    one = TimingMatrix(Key.of("toy", "", "bfloat16"), shapes, CONFIGS, regret, np.ones(regret.shape, np.bool_))
    optima = SimpleNamespace(least=lambda leaves: (leaves < 40) * gain * problems * WEIGHT)
    assert MAX_LEAVES == (24, 40)
    assert most_leaves(one, optima) == most
    none = SimpleNamespace(least=lambda leaves: None if leaves < 40 else 0)
    assert most_leaves(one, none) == (24 if problems < 160 else 40)


@pytest.mark.slow
def test_sizes_that_are_left_out_together_are_scored_apart(legality: Legality) -> None:
    hidden_sizes = [64 * size for size in range(1, 12)]
    shapes = tuple((rows, hidden) for rows in (1, 64) for hidden in hidden_sizes)
    # 4 warps win but at every fourth size, which nothing around it tells.
    regret = np.array([[100_000, 0, 0] if hidden % 256 == 0 else [0, 100_000, 100_000] for _, hidden in shapes])
    one = TimingMatrix(Key.of("toy", "", "bfloat16"), shapes, CONFIGS, regret, np.ones(regret.shape, np.bool_))
    _, hidden = cross_validated(one, legality, 12).axes
    assert len(hidden.weights) == 11 and set(hidden.weights) == {2 * WEIGHT}
    for group, size in enumerate(hidden_sizes):
        assert hidden.lost[group][0] == (2 * WEIGHT * 100_000 if size % 256 == 0 else 0)


def test_times_of_problems_left_out_are_not_looked_at(legality: Legality) -> None:
    regret = regimes()
    held_out = np.array([hidden in (512, 1024) for _, hidden in SHAPES])
    changed = regret.copy()
    changed[held_out] = changed[held_out][:, ::-1]
    before, after = (solve(matrix(values), legality, 4, held_out) for values in (regret, changed))
    assert [before.tree(count) for count in range(1, 5)] == [after.tree(count) for count in range(1, 5)]
    assert before.tree(4) != solve(matrix(changed), legality, 4).tree(4)


def test_a_fold_avoids_what_was_not_measured_where_it_can(legality: Legality) -> None:
    regret = np.zeros((len(SHAPES), 3))
    regret[:, 1:] = 1000
    usable = np.ones(regret.shape, np.bool_)
    held_out = np.array([hidden == 2048 for _, hidden in SHAPES])
    usable[held_out, 0] = False
    tree = solve(matrix(regret, usable), legality, 2, held_out).tree(2)
    assert choose(tree, (8, 2048)) == CONFIGS[1]
    assert choose(tree, (8, 512)) == CONFIGS[0]


def test_one_size_on_both_axes_cannot_be_cross_validated(legality: Legality) -> None:
    one = TimingMatrix(
        Key.of("toy", "", "bfloat16"), ((8, 64),), CONFIGS, np.zeros((1, 3), np.int64), np.ones((1, 3), bool)
    )
    found = cross_validated(one, legality, 3)
    assert (found.axes, found.chosen(), found.inside(1), found.outside(1)) == ((), None, None, None)


def test_beyond_the_measured_sizes_the_nearest_ones_decide(spec: OperatorSpec, legality: Legality) -> None:
    # 4 warps win everywhere, and are illegal beyond 8192: there a leaf is spent, and 16 warps, second best at the edge,
    # take it rather than 8, which are legal there as well.
    regret = np.zeros((len(SHAPES), 3))
    regret[:, 1], regret[:, 2] = 90_000, 50_000
    tree = solve(matrix(regret), legality, 2).tree(2)
    assert tree == Split("hidden", 2048, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))
    assert losses(matrix(regret), tree) == [0] * len(SHAPES)
