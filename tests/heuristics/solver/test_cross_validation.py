from dataclasses import replace

import numpy as np
import pytest

from normtune.heuristics.regret.legality import Legality, all_variants
from normtune.heuristics.regret.matrix import WEIGHT, TimingMatrix
from normtune.heuristics.solver.bins import losses, solve
from normtune.heuristics.solver.cross_validation import cross_validated, left_out, validated
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import AXES
from normtune.kernels.rms_norm.operator import RMSNormConfig
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


@pytest.mark.parametrize(("rows", "hidden"), [(6, 6), (25, 45), (13, 16), (4, 3), (2, 9)])
def test_each_problem_but_the_corners_is_left_out_once_and_never_with_a_neighbour(rows: int, hidden: int) -> None:
    sizes = np.array([(2**row, 64 * column) for row in range(rows) for column in range(1, hidden + 1)])
    places = np.array([(row, column) for row in range(rows) for column in range(hidden)])
    folds = left_out(sizes)
    is_corner = [row in (0, rows - 1) and column in (0, hidden - 1) for row, column in places.tolist()]
    assert np.sum(folds, axis=0).tolist() == [int(not corner) for corner in is_corner]
    for fold in folds:
        distances = np.abs(places[fold][:, None] - places[fold]).sum(axis=2)
        assert np.all((distances == 0) | (distances > 1))


def test_sizes_of_one_axis_are_left_out_whole() -> None:
    folds = left_out(np.array([[64], [128], [128], [256], [512], [1024], [1024]]))
    assert [np.flatnonzero(fold).tolist() for fold in folds] == [[1, 2], [3], [4]]
    assert left_out(np.array([[8, 64]])) == []


def always_the_first(of: TimingMatrix) -> dict[str, int | None]:
    return validated(of, lambda held_out: Leaf(CONFIGS[0]), AXES, 1)


def test_the_figures_are_what_folds_lose() -> None:
    # Without the corners there are 16 problems of each half, and in one the first config loses 0.2.
    found = always_the_first(matrix(regimes()))
    assert found == {"cross_validated": 100_000, "plain_validated": 100_000, "worst_validated": 200_000}


def test_a_tree_of_the_regimes_loses_nothing_between_them(legality: Legality) -> None:
    assert cross_validated(matrix(regimes()), legality, 2)["worst_validated"] == 0
    assert solve(matrix(regimes()), legality, 2).tree(2) == Split("hidden", 256, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))


def test_a_fold_does_not_know_the_times_that_it_leaves_out(legality: Legality) -> None:
    """One shape at which another config wins is lost by each tree that was fitted without it."""
    regret = regimes()
    odd = SHAPES.index((64, 128))
    regret[odd] = [300_000, 0, 300_000]
    few, many = (cross_validated(matrix(regret), legality, leaves) for leaves in (2, 4))
    assert few["worst_validated"] == many["worst_validated"] == 300_000
    assert few["cross_validated"] == 300_000 // 32


def test_the_worst_between_sizes_is_of_problems_with_a_time() -> None:
    """Where a choice has no time, the mean takes the slowest one, and the worst leaves it out."""
    regret, usable = regimes(), np.ones((len(SHAPES), 3), np.bool_)
    at_512 = [hidden == 512 for _, hidden in SHAPES]
    regret[at_512, 1], usable[at_512, 0] = 900_000, False
    found = always_the_first(matrix(regret, usable))
    assert found["worst_validated"] == 200_000
    assert found["cross_validated"] == (10 * 200_000 + 6 * 900_000) // 32


def test_weights_count_in_what_folds_lose() -> None:
    weights = np.array([1 if hidden == 512 else 2 * WEIGHT for _, hidden in SHAPES], np.int64)
    found = always_the_first(replace(matrix(regimes()), weights=weights))
    assert found["cross_validated"] == 200_000 * (6 + 10 * 2 * WEIGHT) // (6 + 26 * 2 * WEIGHT)
    assert found["plain_validated"] == 100_000


def test_without_a_tree_in_each_fold_there_are_no_figures() -> None:
    trees = iter([Leaf(CONFIGS[0]), None, *[Leaf(CONFIGS[0])] * 4])
    found = validated(matrix(regimes()), lambda held_out: next(trees), AXES, 1)
    assert {*found.values()} == {None}


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
    assert {*cross_validated(one, legality, 3).values()} == {None}


def test_beyond_the_measured_sizes_the_nearest_ones_decide(spec: OperatorSpec, legality: Legality) -> None:
    # 4 warps win everywhere, and are illegal beyond 8192: there a leaf is spent, and 16 warps, second best at the edge,
    # take it rather than 8, which are legal there as well.
    regret = np.zeros((len(SHAPES), 3))
    regret[:, 1], regret[:, 2] = 90_000, 50_000
    tree = solve(matrix(regret), legality, 2).tree(2)
    assert tree == Split("hidden", 2048, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))
    assert losses(matrix(regret), tree) == [0] * len(SHAPES)
