"""The verdict: what one shape says, what many say together, and how often that is wrong."""

import math
import random

import numpy as np
import pytest

from normtune.heuristics import verdict
from normtune.heuristics.levels import Samples
from normtune.heuristics.micrologs import micrologs
from normtune.heuristics.verdict import AMBIGUOUS, OK, STALE, Finding, Judgement, finding, judge, of_table
from normtune.kernels.config import Config

MINE, RIVAL, SLOW = (Config("row", 1, warps) for warps in (4, 8, 16))
ROUNDS = np.arange(16, dtype=np.int32)


def timed(nanoseconds: list[float], rounds: np.ndarray = ROUNDS) -> Samples:
    return Samples(rounds[: len(nanoseconds)], micrologs(np.array(nanoseconds, np.int64)))


def luck_of_blocks() -> list[float]:
    """A factor each round, that all configs share and that varies much more than they do."""
    return [1 + 0.2 * ((7 * (number // 2)) % 5) for number in range(16)]


def losses(values: list[int]) -> list[Finding]:
    return [Finding(number + 1, 64, MINE, RIVAL, value, value, value) for number, value in enumerate(values)]


def test_a_shape_says_how_much_slower_the_config_is_inside_rounds() -> None:
    luck = luck_of_blocks()
    samples = {
        MINE: timed([110_000 * factor for factor in luck]),
        RIVAL: timed([100_000 * factor for factor in luck]),
        SLOW: timed([150_000 * factor for factor in luck[:6]]),  # dropped from the race
    }
    found = finding((64, 512), samples, MINE)
    assert found is not None
    assert (found.rows, found.hidden, found.rival, found.failure) == (64, 512, RIVAL, "")
    for value in (found.loss, found.low, found.high):
        assert value == pytest.approx(1e6 * math.log(1.1), abs=20)


def test_the_interval_holds_what_blocks_differ_by() -> None:
    ratios = [1.00, 1.02, 1.04, 1.06, 1.08, 1.10, 1.12, 1.14]
    samples = {
        RIVAL: timed([1e6] * 16),
        MINE: timed([1e6 * ratios[number // 2] for number in range(16)]),
    }
    found = finding((1, 64), samples, MINE)
    assert found is not None
    ends = [round(100 * math.expm1(value / 1e6), 1) for value in (found.low, found.loss, found.high)]
    assert ends == [0.0, 7.0, 14.0]


def test_the_fastest_config_loses_nothing() -> None:
    found = finding((1, 64), {MINE: timed([1000.0] * 16), RIVAL: timed([1100.0] * 16)}, MINE)
    assert found == Finding(1, 64, MINE, MINE, 0, 0, 0)


def test_luck_does_not_count_as_speed() -> None:
    """Ten configs that are equally fast: the luckiest in all rounds is far ahead, and yet nothing seems lost."""
    draw = random.Random(1)
    configs = [Config("row", 1, warps) for warps in range(1, 11)]
    apparent, honest = [], []
    for _ in range(200):
        times = {config: [1e6 * draw.gauss(1, 0.02) for _ in ROUNDS] for config in configs}
        found = finding((1, 64), {config: timed(values) for config, values in times.items()}, configs[0])
        assert found is not None
        honest.append(found.loss)
        medians = {config: np.median(values) for config, values in times.items()}
        apparent.append(1e6 * math.log(medians[configs[0]] / min(medians.values())))
    assert np.mean(apparent) > 6000
    assert abs(np.mean(honest)) < 2500


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_too_few_rounds_say_nothing(rounds: int) -> None:
    samples = {RIVAL: timed([1e6] * 16)} | ({MINE: timed([1e6] * rounds)} if rounds else {})
    assert finding((1, 64), samples, MINE) is None


def test_the_limits_follow_the_promise() -> None:
    assert (verdict.stale_over(0), verdict.ok_under(0)) == (15_000, 25_000)
    assert (verdict.stale_over(-900), verdict.ok_under(-900)) == (15_000, 25_000)
    assert (verdict.stale_over(30_000), verdict.ok_under(30_000)) == (55_000, 65_000)


def test_a_stake_is_the_mean_over_the_shares() -> None:
    assert verdict.above([15_000, 15_000], 15_000) == pytest.approx(1.0)
    # A loss of 50_000 is (50_000 - 15_000) / 35_000 = 1 whole share: the mean of 1 + share over 1/32, 3/32, ... 31/32.
    assert verdict.above([50_000], 15_000) == pytest.approx(1.5)
    # A loss of 25_000 - 60_000 / 2 under the limit, but not under -2 %: 45_000 / 60_000 of a share.
    assert verdict.below([-50_000], 25_000) == pytest.approx(1 + 0.5 * 0.75)
    # Over the ceiling a loss takes the whole share.
    assert verdict.below([85_000], 25_000) == verdict.below([9_000_000], 25_000) == pytest.approx(0.5)


def test_a_fresh_function_is_ok_and_a_stale_one_is_stale() -> None:
    fresh = judge(losses([0, 3000, 0, 12_000, -2000, 0, 5000, 0] * 2), 5000, 6)
    assert (fresh.verdict, fresh.mean) == (OK, 2250)
    assert fresh.confidence >= 0.95
    stale = judge(losses([0, 90_000, 250_000, 0, 120_000, 60_000, 80_000, 300_000, 0, 110_000] * 2), 5000, 6)
    assert stale.verdict == STALE
    assert stale.confidence >= 0.99
    assert [one.loss for one in stale.findings[:3]] == [300_000, 300_000, 250_000]


def test_few_shapes_decide_nothing_however_much_they_lose() -> None:
    found = judge(losses([900_000] * (verdict.LEAST_SHAPES - 1)), 0, 1)
    assert (found.verdict, found.confidence > 0.99) == (AMBIGUOUS, True)
    nothing = judge([], 0, 1)
    assert (nothing.verdict, nothing.confidence, nothing.mean) == (AMBIGUOUS, 0.0, None)


def test_a_function_between_the_limits_stays_ambiguous() -> None:
    assert judge(losses([0, 40_000] * 20), 0, 6).verdict == AMBIGUOUS


def test_one_failure_is_enough() -> None:
    failed = Finding(7, 64, MINE, MINE, 0, 0, 0, "wrong_result: y is off")
    found = judge([*losses([0] * 30), failed], 0, 6)
    assert (found.verdict, found.confidence, found.mean, found.findings[0]) == (STALE, 1.0, 0, failed)


@pytest.mark.parametrize("kind", ["rare and great", "half of them", "all alike"])
def test_a_function_at_a_limit_is_seldom_judged_against_it(kind: str) -> None:
    """With a mean loss of just the limit, looked at again and again: stale at most in 1 %, OK in 5 %."""
    draw = random.Random(kind)

    def loss(mean: int) -> int:
        if kind == "rare and great":  # as great as the ceiling of OK, over which none counts
            great = mean + 60_000
            return great if draw.random() < mean / great else 0
        if kind == "half of them":
            return 0 if draw.random() < 0.5 else 2 * mean
        return round(mean + draw.uniform(-20_000, 20_000))

    trials = 300
    wrong = {STALE: 0, OK: 0}
    for against, mean in ((STALE, verdict.stale_over(0)), (OK, verdict.ok_under(0))):
        for _ in range(trials):
            drawn = [loss(mean) for _ in range(40)]
            looks = (judge(losses(drawn[:count]), 0, 1).verdict for count in range(verdict.LEAST_SHAPES, 41, 4))
            wrong[against] += next((found for found in looks if found != AMBIGUOUS), "") == against
    # Three standard deviations over the rate.
    assert wrong[STALE] <= trials * verdict.STALE_ERROR + 3 * math.sqrt(trials * verdict.STALE_ERROR)
    assert wrong[OK] <= trials * verdict.OK_ERROR + 3 * math.sqrt(trials * verdict.OK_ERROR)


def test_more_functions_need_more_to_call_one_stale() -> None:
    drawn = losses([0, 90_000, 60_000, 0, 80_000, 40_000, 100_000, 0, 70_000, 80_000] * 2)
    alone, among_many = judge(drawn, 0, 1), judge(drawn, 0, 1_000_000)
    assert (alone.verdict, among_many.verdict) == (STALE, AMBIGUOUS)


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        ([(OK, 0.97), (OK, 0.96)], (OK, 0.96)),
        ([(OK, 0.97), (AMBIGUOUS, 0.4)], (AMBIGUOUS, 0.4)),
        ([(OK, 0.97), (AMBIGUOUS, 0.4), (STALE, 0.995), (STALE, 1.0)], (STALE, 1.0)),
        ([], (AMBIGUOUS, 0.0)),
    ],
)
def test_a_table_is_what_its_worst_function_is(judged: list[tuple[str, float]], expected: tuple[str, float]) -> None:
    assert of_table([Judgement(name, sure, 0, 0, ()) for name, sure in judged]) == expected
