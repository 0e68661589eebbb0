import numpy as np
import pytest

from normtune.heuristics.legality import Legality, all_variants
from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.selection import (
    PERMITTED,
    TOLERANCE,
    WEIGHT,
    chosen_leaves,
    cross_validated,
    groups,
    least_leaves,
    losses,
    solve,
)
from normtune.heuristics.tree import Leaf, Split, choose
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.target import TARGETS

CONFIGS = tuple(Config("row", 1, warps) for warps in (4, 8, 16))
SHAPES = [(rows, hidden) for rows in (1, 8, 64, 512, 4096, 32768) for hidden in (64, 128, 256, 512, 1024, 2048)]


def matrix(regret: np.ndarray, usable: np.ndarray | None = None) -> TimingMatrix:
    usable = np.ones(regret.shape, np.bool_) if usable is None else usable
    return TimingMatrix("toy", "", "bfloat16", tuple(SHAPES), CONFIGS, regret.astype(np.int64), usable)


@pytest.fixture
def legality(spec: OperatorSpec) -> Legality:
    return Legality(spec, TARGETS["sm_90"], ["bfloat16"], all_variants(spec))


def regimes() -> np.ndarray:
    """4 warps win up to 256, 16 from 512 on, by 20 %."""
    return np.array([[0, 200_000, 200_000] if hidden <= 256 else [200_000, 150_000, 0] for _, hidden in SHAPES])


def test_groups_are_contiguous_and_even() -> None:
    assert groups([5, 3, 1, 2, 4, 9, 8, 3]) == [(1, 2), (3,), (4,), (5,), (8,), (9,)]
    assert groups([2, 1]) == [(1,), (2,)]


def test_as_many_leaves_as_there_are_regimes(legality: Legality) -> None:
    optima = solve(matrix(regimes()), legality, 6)
    on_data = [optima.least(count) for count in range(1, 7)]
    assert chosen_leaves(cross_validated(matrix(regimes()), legality, 6).inside, on_data) == 2
    assert solve(matrix(regimes()), legality, 2).tree(2) == Split("hidden", 256, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))


def test_the_figure_is_what_folds_lose(legality: Legality) -> None:
    # Each of the 6 hidden sizes is a fold. The cut between 128 and 512 is put at 256 when 256 is left out, and between
    # 256 and 1024 at 512 when 512 is: that puts the 6 problems of 512 on the wrong side, at 200000 each.
    figures = cross_validated(matrix(regimes()), legality, 3)
    assert figures.everywhere[1] == 6 * 200_000 // 36
    # 512 is among the inner 4 of the 6 sizes.
    assert figures.inside[1] == 6 * 200_000 // 24


def test_leaves_that_do_not_generalise_are_not_taken(legality: Legality) -> None:
    for seed in range(5):
        noise = np.random.default_rng(seed).integers(0, 100_000, (len(SHAPES), len(CONFIGS)))
        optima = solve(matrix(noise), legality, 8)
        on_data = [optima.least(count) // (36 * WEIGHT) for count in range(1, 9)]
        assert on_data[7] == min(on_data)
        inside = cross_validated(matrix(noise), legality, 8).inside
        assert max(inside) > min(inside) + PERMITTED
        assert inside[chosen_leaves(inside, on_data) - 1] <= min(inside) + PERMITTED


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
    assert choose(tree, 8, 2048) == CONFIGS[1]
    assert choose(tree, 8, 512) == CONFIGS[0]


def test_the_least_leaves_within_the_tolerance_of_the_best() -> None:
    assert least_leaves([None, 9000, 5000 + TOLERANCE, 5000, 7000]) == 3
    assert least_leaves([None, 9000, 5001 + TOLERANCE, 5000, 7000]) == 4
    assert least_leaves([None, None]) is None


def test_leaves_that_harm_nobody_are_taken_where_they_help() -> None:
    best = 50_000
    left_out = [None, best + PERMITTED + 1, best, best + PERMITTED, best + PERMITTED + 1]
    assert chosen_leaves(left_out, [None, 90_000, 60_000, 30_000, 10_000]) == 4
    assert chosen_leaves(left_out, [None, 90_000, 30_000 + TOLERANCE, 30_000, 10_000]) == 3
    assert chosen_leaves(left_out, [None, 90_000, 30_001 + TOLERANCE, 30_000, 10_000]) == 4
    assert chosen_leaves([None, None], [1, 2]) is None


def test_one_size_on_both_axes_cannot_be_cross_validated(legality: Legality) -> None:
    one = TimingMatrix("toy", "", "bfloat16", ((8, 64),), CONFIGS, np.zeros((1, 3), np.int64), np.ones((1, 3), bool))
    assert cross_validated(one, legality, 3) == ((None, None, None), (None, None, None))


def test_beyond_the_measured_sizes_the_nearest_ones_decide(spec: OperatorSpec, legality: Legality) -> None:
    # 4 warps win everywhere, and are illegal beyond 8192: there a leaf is spent, and 16 warps, second best at the edge,
    # take it rather than 8, which are legal there as well.
    regret = np.zeros((len(SHAPES), 3))
    regret[:, 1], regret[:, 2] = 90_000, 50_000
    tree = solve(matrix(regret), legality, 2).tree(2)
    assert tree == Split("hidden", 2048, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))
    assert losses(matrix(regret), tree) == [0] * len(SHAPES)
