"""Gains of one config over another: by hand, cases without an interval, and the coverage of the interval."""

import math

import numpy as np
import pytest

from normtune.heuristics.comparing.gains import ConfidenceInterval, Gain, Pair, gain
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.tests.heuristics.made_up import rounds_of, timed

SLOW, FAST = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 8)
# Quantiles of t at 0.975, from any table of them.
T1, T2, T7 = 12.7062, 4.30265, 2.36462


def matrix_of(logs: list[list[list[int]]], regret: list[list[int]], weights: list[int] | None = None) -> TimingMatrix:
    """Problems x 2 configs x rounds; blocks are of two rounds."""
    values = np.array(logs, np.int32)
    labels = np.broadcast_to(np.arange(values.shape[2], dtype=np.int32), (len(logs), values.shape[2]))
    return TimingMatrix(
        *(Key.of("rms_norm_forward", "", "bfloat16"), tuple((1 << place, 64) for place in range(len(logs)))),
        (SLOW, FAST),
        np.array(regret, np.int64),
        np.ones((len(logs), 2), np.bool_),
        rounds_of(labels, values),
        None if weights is None else np.array(weights, np.int64),
    )


SHAPE = [[0, 0, 0, 0], [100_000, 120_000, 140_000, 160_000]]


def close(found: ConfidenceInterval, expected: tuple[float, float, float]) -> None:
    assert found == pytest.approx(expected, rel=1e-4)


def test_one_shape_by_hand() -> None:
    found = gain(timed(matrix_of([SHAPE], [[0, 130_000]]), [10_000]), [Pair(0, 0, 1)])
    assert found is not None and found.shapes == 1
    # Blocks of 110,000 and 150,000: their mean has a standard error of 20,000 and one degree of freedom.
    close(found.log, (130_000, 130_000 - T1 * 20_000, 130_000 + T1 * 20_000))
    # 10 us, of which the second takes 11.628 % and 16.183 % more.
    saved = 10 * math.expm1(0.11), 10 * math.expm1(0.15)
    half = T1 * (saved[1] - saved[0]) / 2
    close(found.saved, (sum(saved) / 2, sum(saved) / 2 - half, sum(saved) / 2 + half))


def test_the_other_way_round_it_is_a_loss_of_the_slower_ones_time() -> None:
    matrix = matrix_of([SHAPE], [[0, 130_000]])
    found = gain(timed(matrix, [10_000]), [Pair(0, 1, 0)])
    assert found is not None
    assert found.log.mean == pytest.approx(-130_000)
    slow = 10 * math.exp(0.13)
    assert found.saved.mean == pytest.approx(slow * (math.expm1(-0.11) + math.expm1(-0.15)) / 2)


def test_several_shapes_share_their_freedom_by_welch_and_satterthwaite() -> None:
    matrix = matrix_of([SHAPE, SHAPE], [[0, 130_000]] * 2)
    found = gain(timed(matrix, [10_000, 10_000]), [Pair(0, 0, 1), Pair(1, 0, 1)])
    assert found is not None and found.shapes == 2
    close(found.log, (130_000, 130_000 - T2 * 20_000 / 2**0.5, 130_000 + T2 * 20_000 / 2**0.5))


def test_weights_count() -> None:
    steady = [[0, 0, 0, 0], [10_000] * 4]
    matrix = matrix_of([SHAPE, steady], [[0, 130_000], [0, 10_000]], [1024, 3072])
    found = gain(timed(matrix, [10_000, 10_000]), [Pair(0, 0, 1), Pair(1, 0, 1)])
    assert found is not None
    close(found.log, (40_000, 40_000 - T1 * 5_000, 40_000 + T1 * 5_000))


def test_only_rounds_that_both_were_timed_in_are_compared() -> None:
    lacking = [[0, 0, 0, 0, 0, MISSING], [100_000, 120_000, 140_000, 160_000, MISSING, 900_000]]
    found = gain(timed(matrix_of([lacking], [[0, 130_000]]), [10_000]), [Pair(0, 0, 1)])
    assert found is not None
    close(found.log, (130_000, 130_000 - T1 * 20_000, 130_000 + T1 * 20_000))


def test_a_shape_without_two_common_blocks_is_left_out_beside_others() -> None:
    apart = [[0, 0, MISSING, MISSING], [MISSING, MISSING, 5, 5]]
    matrix = matrix_of([SHAPE, apart], [[0, 130_000], [0, 700_000]])
    found = gain(timed(matrix, [10_000, 10_000]), [Pair(0, 0, 1), Pair(1, 0, 1)])
    assert found is not None and found.shapes == 1
    assert found.log.mean == pytest.approx(130_000)


def test_without_any_the_regrets_speak_and_there_is_no_interval() -> None:
    matrix = TimingMatrix(
        *(Key.of("rms_norm_forward", "", "bfloat16"), ((1, 64), (2, 64)), (SLOW, FAST)),
        np.array([[200_000, 0], [0, 100_000]], np.int64),
        np.ones((2, 2), np.bool_),
    )
    found = gain(timed(matrix, [2_000, 4_000]), [Pair(0, 1, 0), Pair(1, 1, 0)])
    assert found is not None
    assert found.log == (50_000, None, None)
    expected = (2 * math.expm1(0.2) + 4 * math.exp(0.1) * math.expm1(-0.1)) / 2
    assert found.saved == (pytest.approx(expected), None, None)


def test_what_launches_the_same_gains_exactly_nothing_and_no_shape_no_gain() -> None:
    matrix = matrix_of([SHAPE], [[0, 130_000]])
    assert gain(timed(matrix, [10_000]), [Pair(0, 1, 1)]) == Gain(
        1, 4096, ConfidenceInterval(0, 0, 0), ConfidenceInterval(0, 0, 0)
    )
    assert gain(timed(matrix, [10_000]), []) is None


@pytest.mark.slow
def test_the_true_gain_lies_in_the_interval_as_often_as_is_said() -> None:
    draw = np.random.default_rng(7)
    inside, tries = 0, 1000
    for _ in range(tries):
        # Rounds of a block share a deviation of 2 %, and each has 0.5 % of its own.
        noise = np.repeat(draw.normal(0, 20_000, (3, 8)), 2, axis=1) + draw.normal(0, 5_000, (3, 16))
        logs = [[[0] * 16, (50_000 + shape).round().astype(int).tolist()] for shape in noise]
        matrix = timed(matrix_of(logs, [[0, 50_000]] * 3), [10_000] * 3)
        found = gain(matrix, [Pair(place, 0, 1) for place in range(3)])
        assert found is not None and found.log.low is not None and found.log.high is not None
        inside += found.log.low <= 50_000 <= found.log.high
    assert 0.93 * tries <= inside <= 0.97 * tries
