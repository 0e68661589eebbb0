"""No config slower than the baseline: what is barred, what is told, and false alarms by noise alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtr

from normtune.heuristics.fitting.guard import LEVEL, SLOWER, Guard
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix
from normtune.heuristics.regret.paired import block_ratios, paired
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Tree
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tests.heuristics.made_up import rounds_of

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))
A, B, C = (Leaf(config) for config in CONFIGS)
ROWS, HIDDEN = (1, 64, 4096), (64, 256, 1024)
SHAPES = tuple((rows, hidden) for rows in ROWS for hidden in HIDDEN)
BLOCKS = 8


def matrix_of(logs: np.ndarray) -> TimingMatrix:
    """A matrix of paired log-times (problems, configs, rounds), millionths."""
    labels = np.broadcast_to(np.arange(logs.shape[2], dtype=np.int32), (len(SHAPES), logs.shape[2])).copy()
    regret = np.zeros(logs.shape[:2], np.int64)
    return TimingMatrix(Key.of("toy", "", "bfloat16"), SHAPES, CONFIGS, regret, regret == 0, rounds_of(labels, logs))


def timed(means: dict[tuple[int, int], int], noise: float, seed: int = 0, together: bool = False) -> np.ndarray:
    """Log-times of a config on a problem, 0 where `means` has none; noise a block, or the same for all configs."""
    draw = np.random.default_rng(seed)
    luck = draw.normal(0, noise, (len(SHAPES), 1 if together else len(CONFIGS), BLOCKS)) if noise else 0
    logs = np.zeros((len(SHAPES), len(CONFIGS), BLOCKS)) + luck
    for (problem, config), mean in means.items():
        logs[problem, config] += mean
    return np.repeat(np.rint(logs), ROUNDS_PER_BLOCK, axis=2)


def barred(matrix: TimingMatrix, baseline, is_legal=lambda config, shape: True) -> set[tuple[int, int]]:
    """The problems and configs that may not meet, by their numbers."""
    return {(int(place), int(column)) for place, column in np.argwhere(Guard(matrix, baseline).barred(is_legal))}


def slower(matrix: TimingMatrix, tree: Tree, baseline) -> list[int]:
    """The problems on which a tree is slower; their number and the largest ratio are what is told."""
    guard = Guard(matrix, baseline)
    found = guard._slow(guard._choices(tree))
    told = guard.slower(tree)
    assert (told is None) == (not found) and (not told or told == (len(found), round(max(found.values()))))
    return sorted(found)


def always(config: Leaf):
    return lambda shape: config.config


def test_slower_configs_are_barred_where_they_are_and_nowhere_else() -> None:
    """At 1 x 1024 A and B take 5 % longer than C, the baseline; at 4096 x 64 A is faster than C."""
    slow = SHAPES.index((1, 1024))
    logs = timed({(slow, 0): 50_000, (slow, 1): 50_000, (SHAPES.index((4096, 64)), 2): 80_000}, noise=2000)
    assert barred(matrix_of(logs), always(C)) == {(slow, 0), (slow, 1)}


def test_each_shape_has_the_baseline_s_own_answer() -> None:
    """From hidden 1024 on B is slower than C, the baseline there, at 64 rows, and C than B, which is, at 4096."""
    few, many = SHAPES.index((64, 1024)), SHAPES.index((4096, 1024))
    logs = timed({(few, 0): 50_000, (few, 1): 50_000, (many, 0): 50_000, (many, 2): 50_000}, noise=2000)
    found = barred(matrix_of(logs), lambda shape: (C if shape[0] <= 64 else B).config)
    assert found == {(few, 0), (few, 1), (many, 0), (many, 2)}


def test_no_choice_of_what_is_not_barred_is_slower() -> None:
    """A single test bars whatever Holm's procedure may reject, whichever configs a tree has."""
    rejected = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        means = {(problem, 1): int(draw.integers(0, 60_000)) for problem in range(len(SHAPES))}
        guard = Guard(matrix_of(timed(means, 20_000, seed)), always(C))
        free = ~guard.barred(lambda config, shape: True)
        assert free[:, 2].all()
        rejected += len(guard._slow([B.config] * len(SHAPES)))
        for column in (0, 1):
            assert not guard._slow([CONFIGS[column if may else 2] for may in free[:, column].tolist()])
    assert rejected > 40


@pytest.mark.parametrize("by", [-50_000, 0, SLOWER - 2000])
def test_what_is_faster_alike_or_hardly_slower_stays(by: int) -> None:
    logs = timed({(problem, 1): by for problem in range(len(SHAPES))}, noise=200)
    assert not barred(matrix_of(logs), always(C))


def test_a_large_mean_that_one_block_makes_does_not_count() -> None:
    logs = timed({}, noise=0)
    logs[2, 1, :ROUNDS_PER_BLOCK] = 400_000
    matrix = matrix_of(logs)
    assert matrix.rounds is not None
    assert block_ratios(matrix.rounds, 2, 1, 2).mean() == 50_000 > SLOWER
    assert not barred(matrix, always(C))


def test_luck_that_all_configs_of_a_round_share_hides_nothing() -> None:
    """10 % of noise from block to block, none between configs."""
    logs = timed({(2, 1): 20_000}, noise=100_000, together=True)
    assert slower(matrix_of(logs), B, always(C)) == [2]


@pytest.mark.slow
def test_noise_alone_makes_a_leaf_give_way_at_most_as_often_as_the_level() -> None:
    """Nine problems, all of which differ from what is in use and none of which is slower."""
    draws = 2000
    wrong = sum(bool(slower(matrix_of(timed({}, 30_000, seed)), A, always(C))) for seed in range(draws))
    # Three standard errors of a share of 5 % in 2000 draws.
    assert wrong <= draws * LEVEL + 3 * math.sqrt(draws * LEVEL * (1 - LEVEL))
    # The test is no sham: it comes near its level.
    assert wrong >= draws * LEVEL / 3


def test_holm_counts_all_problems_that_differ() -> None:
    """The same difference is told among few comparisons and not among many; the surest is told all the same."""
    logs = timed({}, noise=0)
    spread = np.repeat(np.array([-1, 1, -1, 1, -1, 1, -1, 1]), ROUNDS_PER_BLOCK)
    for problem in range(len(SHAPES)):
        logs[problem, 1] = 20_000 * spread
    p = {}
    for problem, mean in ((0, 18_000), (1, 90_000)):
        logs[problem, 1] += mean
        matrix = matrix_of(logs)
        assert matrix.rounds is not None
        p[problem] = paired(matrix.rounds, problem, 2).p[1]
    matrix = matrix_of(logs)
    assert LEVEL / 8 < p[0] < LEVEL and p[1] < LEVEL / 9

    def differs_at(count: int):
        return lambda shape: (C if SHAPES.index(shape) < count else B).config

    assert slower(matrix, B, differs_at(1)) == [0]
    assert slower(matrix, B, differs_at(2)) == [0, 1]
    assert slower(matrix, B, differs_at(9)) == [1]


def test_ratios_are_means_of_blocks_in_which_both_were_timed() -> None:
    logs = np.full((1, 2, 6), 0, np.int32)
    logs[0, 0] = [10, 30, 50, 70, 90, MISSING]
    logs[0, 1] = [0, 0, MISSING, 0, 10, 10]
    labels = np.array([[0, 1, 2, 3, 4, 5]], np.int32)
    assert block_ratios(rounds_of(labels, logs), 0, 0, 1).tolist() == [20, 70, 80]


def test_less_than_three_blocks_say_nothing() -> None:
    logs = timed({(problem, 1): 300_000 for problem in range(9)}, noise=0)[:, :, : 2 * ROUNDS_PER_BLOCK]
    assert slower(matrix_of(logs), B, always(C)) == []
    assert slower(matrix_of(timed({(2, 1): 300_000}, 0)[:, :, : 3 * ROUNDS_PER_BLOCK]), B, always(C)) == [2]
    # Three blocks each, of which two are shared, leave one difference to tell the noise from.
    logs = timed({(2, 1): 300_000}, noise=0)[:, :, : 4 * ROUNDS_PER_BLOCK]
    logs[:, 0] = logs[:, 1, 3 * ROUNDS_PER_BLOCK :] = logs[:, 2, :ROUNDS_PER_BLOCK] = MISSING
    assert slower(matrix_of(logs), B, always(C)) == []


def test_without_rounds_nothing_is_told() -> None:
    matrix = matrix_of(timed({(2, 1): 300_000}, 0))
    bare = TimingMatrix(Key.of("toy", "", "bfloat16"), SHAPES, CONFIGS, matrix.regret, matrix.usable)
    assert not barred(bare, always(C)) and slower(bare, B, always(C)) == []


def test_where_what_is_in_use_has_no_answer_or_no_time_the_fitted_one_stays() -> None:
    logs = timed({(problem, 1): 50_000 for problem in (2, 5, 8)}, noise=1000)
    matrix = matrix_of(logs)
    assert barred(matrix, always(C)) == {(2, 1), (5, 1), (8, 1)}
    assert not barred(matrix, lambda shape: None)
    assert not barred(matrix, always(Leaf(RMSNormConfig("row", 1, 32))))
    logs[5, 2] = MISSING
    assert slower(matrix_of(logs), B, always(C)) == [2, 8]


def test_where_the_baseline_may_not_answer_nothing_is_barred() -> None:
    """B is slower at all sizes of hidden 1024, and C, the baseline, is illegal at 4096 rows."""
    matrix = matrix_of(timed({(problem, 1): 50_000 for problem in (2, 5, 8)}, noise=1000))
    assert barred(matrix, always(C), lambda config, shape: shape[0] < 4096) == {(2, 1), (5, 1)}
    excluded = np.zeros_like(matrix.usable)
    excluded[2, 2] = True
    assert barred(matrix.without(excluded), always(C)) == {(5, 1), (8, 1)}


def test_a_config_that_was_dropped_after_three_blocks_is_judged_by_the_noise_of_its_shape() -> None:
    """B is 14.5 % slower; by its own three blocks alone the test of nine shapes passes it."""
    logs = timed({(2, 1): 145_000}, noise=30_000, seed=3)
    logs[:, 1, 3 * ROUNDS_PER_BLOCK :] = MISSING
    matrix = matrix_of(logs)
    assert matrix.rounds is not None
    ratios = block_ratios(matrix.rounds, 2, 1, 2)
    error = ratios.std(ddof=1) / math.sqrt(len(ratios))
    assert stdtr(len(ratios) - 1, -ratios.mean() / error) * len(SHAPES) > LEVEL
    assert slower(matrix, B, always(C)) == [2]


def test_configs_of_different_blocks_are_compared_through_what_both_share() -> None:
    """B was timed in the first half of the blocks and C in the second, each beside A; A alone in all of them."""
    logs = timed({(2, 1): 100_000}, noise=2000)
    logs[:, 1, 4 * ROUNDS_PER_BLOCK :] = MISSING
    logs[:, 2, : 4 * ROUNDS_PER_BLOCK] = MISSING
    logs += np.where(logs == MISSING, 0, np.repeat(np.arange(BLOCKS) * 50_000, ROUNDS_PER_BLOCK))
    assert slower(matrix_of(logs), B, always(C)) == [2]
    logs[:, 0, 4 * ROUNDS_PER_BLOCK :] = MISSING  # nothing links the halves now
    apart = matrix_of(logs)
    assert slower(apart, B, always(C)) == []
    assert Guard(apart, always(C)).uncompared(B, lambda config, shape: True) == len(SHAPES)
    many = len(SHAPES) - len(HIDDEN)
    assert Guard(apart, always(C)).uncompared(B, lambda config, shape: shape[0] > 1) == many


def test_aliases_add_no_evidence_of_noise() -> None:
    logs = timed({(2, 1): 30_000}, noise=30_000)
    once = paired(rounds_of(np.arange(16, dtype=np.int32)[None], logs[2:3]), 0, 2)
    twice = np.concatenate([logs[2:3], logs[2:3, :1], logs[2:3, :1]], axis=1)
    again = paired(rounds_of(np.arange(16, dtype=np.int32)[None], twice), 0, 2)
    assert np.allclose(again.p, [*once.p, once.p[0], once.p[0]], rtol=1e-9)
    assert np.allclose(again.ratios[:3], once.ratios)


def test_what_is_untimed_where_the_baseline_is_timed_is_barred_and_the_other_way_round_is_counted() -> None:
    matrix = matrix_of(timed({}, noise=2000))
    untimed = np.zeros_like(matrix.usable)
    untimed[2, 1] = untimed[5, 2] = True
    assert matrix.rounds is not None
    places = np.where(untimed, 0, matrix.rounds.places)
    partial = replace(matrix, usable=~untimed, untimed=untimed, rounds=matrix.rounds._replace(places=places))
    assert barred(partial, always(C)) == {(2, 1)}
    guard = Guard(partial, always(C))
    assert guard.slower(B) is None
    assert guard.uncompared(B, lambda config, shape: True) == 2
