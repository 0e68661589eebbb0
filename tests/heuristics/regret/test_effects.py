import numpy as np
import pytest

from normtune.heuristics.regret.effects import LogSamples, block_of, levels
from normtune.kernels.config import COPY
from normtune.kernels.rms_norm.operator import RMSNormConfig

A, B, C, D = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))


def samples(logs: list[int], first: int = 0) -> LogSamples:
    return LogSamples(np.arange(first, first + len(logs), dtype=np.int32), np.array(logs, np.int64))


def test_what_slows_a_round_cancels() -> None:
    noise = [0, 900, -300, 5000, 70, 70, -1, 12345]
    found = levels([{A: samples(noise), B: samples([value + 100 for value in noise])}]).of
    assert found[B].even - found[A].even == 100
    assert found[B].odd - found[A].odd == 100


def test_halves_are_even_and_odd_blocks() -> None:
    zero = [0] * 8
    # Rounds 0, 1, 4, 5 are even blocks, 2, 3, 6, 7 odd ones; a third config keeps the reference at zero.
    found = levels([{A: samples(zero), C: samples(zero), B: samples([10, 10, 50, 50, 10, 10, 50, 50])}]).of
    assert (found[B].even, found[B].odd) == (10, 50)


def test_a_spike_does_not_move_a_level() -> None:
    zero = [0] * 16
    found = levels([{A: samples(zero), C: samples(zero), B: samples([7] * 15 + [10**6])}]).of
    assert (found[B].even, found[B].odd) == (7, 7)


def test_a_config_dropped_from_the_race_is_compared_in_the_rounds_it_ran() -> None:
    drift = [0, 0, 0, 0, 0, 0, *[1000] * 10]
    found = levels([{A: samples(drift), C: samples(drift), B: samples([200] * 6)}]).of
    assert found[B].even - found[A].even == 200
    assert found[B].odd - found[A].odd == 200


def test_a_config_in_one_half_only_has_its_level_in_both_and_the_copy_is_left_out() -> None:
    zero = [0] * 8
    found = levels([{A: samples(zero), COPY: samples(zero), B: samples([5, 5])}]).of
    assert set(found) == {A, B} and (found[B].even, found[B].odd) == (5, 5)


def test_a_later_run_is_anchored_on_what_both_have() -> None:
    first = {A: samples([0] * 8), B: samples([100] * 8)}
    second = {B: samples([9100] * 8), C: samples([9250] * 8)}
    found = levels([first, second]).of
    assert found[C].even - found[A].even == 250
    assert found[C].odd - found[B].odd == 150


def test_tasks_of_a_run_are_aligned_by_the_config_that_each_times_again() -> None:
    """C and D were never timed beside A, nor D beside B; each task has another noise, and another best."""
    slower = [4000] * 6
    run = {
        A: samples([100] * 6),
        B: LogSamples(np.array([*range(6), *range(6, 12)], np.int32), np.array([60] * 6 + [4060] * 6, np.int64)),
        C: LogSamples(np.array([*range(6, 12), *range(12, 18)], np.int32), np.array([4040] * 6 + [9040] * 6, np.int64)),
        D: LogSamples(np.arange(12, 18, dtype=np.int32), np.array([9090] * 6, np.int64)),
        COPY: samples([1] * 6 + slower + [9000] * 6),
    }
    found = levels([run]).of
    assert {config: found[config].even - found[A].even for config in (B, C, D)} == {B: -40, C: -60, D: -10}
    assert {config: found[config].odd - found[A].odd for config in (B, C, D)} == {B: -40, C: -60, D: -10}
    assert len(found[B].labels) == len(found[C].labels) == 12


def test_a_config_of_two_runs_has_the_median_of_the_rounds_of_both() -> None:
    first = {A: samples([0] * 8), B: samples([100] * 8), C: samples([300] * 8)}
    second = {A: samples([0] * 24), B: samples([100] * 24), C: samples([340] * 24)}
    found = levels([first, second]).of
    assert found[C].even - found[A].even == 340


def test_runs_that_share_only_the_copy_are_anchored_on_it_and_runs_that_share_nothing_are_left_out() -> None:
    first = {A: samples([0] * 8), B: samples([40] * 8), COPY: samples([-50] * 8)}
    second = {C: samples([900] * 8), COPY: samples([800] * 8)}
    assert levels([first, second]).of[C].even - levels([first, second]).of[A].even == 50
    assert set(levels([{A: first[A], B: first[B]}, {C: second[C]}]).of) == {A, B}


SPIKE = 4_382_027  # 80 times as long


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("place", range(6))
def test_one_sample_of_a_config_that_two_runs_share_moves_nothing(number: int, place: int) -> None:
    """D was dropped in both runs after three blocks; B was timed to the end."""
    runs = [
        {A: samples([0] * 16), B: samples([30_000] * 16), D: samples([800_000] * 6)},
        {B: samples([930_000] * 16), C: samples([960_000] * 16), D: samples([1_700_000] * 6)},
    ]
    before = levels(runs)
    runs[number][D].logs[place] += SPIKE
    after = levels(runs)
    for config in (A, B, C, D):
        assert (after.of[config].even, after.of[config].odd) == (before.of[config].even, before.of[config].odd)
    assert (after.joins, after.doubtful) == (1, 0)


def test_one_sample_of_a_config_that_one_run_times_in_a_block_only_moves_nothing() -> None:
    """The two rounds of D are a link of runs only where there is no other."""
    runs = [
        {A: samples([0] * 16), B: samples([30_000] * 16), D: samples([800_000, 800_000 + SPIKE])},
        {B: samples([930_000] * 16), C: samples([960_000] * 16), D: samples([1_700_000] * 16)},
    ]
    found = levels(runs).of
    assert [found[config].odd - found[A].odd for config in (B, C, D)] == [30_000, 60_000, 800_000]
    assert [found[config].even - found[A].even for config in (B, C, D)] == [30_000, 60_000, 800_000]


def test_the_copy_counts_among_the_configs_that_align_runs() -> None:
    first = {A: samples([0] * 16), B: samples([100] * 16), COPY: samples([-50] * 16)}
    second = {B: samples([1300] * 16), C: samples([1500] * 16), COPY: samples([950] * 16)}
    found = levels([first, second]).of
    assert found[C].even - found[A].even == 400  # 1500 less 1200 by B, less 1000 by the copy
    second[COPY] = samples([950] * 6)
    assert levels([first, second]).of[C].even - found[A].even == 300  # by B, which has more rounds


def test_a_run_that_shares_few_rounds_waits_for_one_that_shares_many() -> None:
    """The second run shares two rounds of D with the first one, and sixteen of C with the third one."""
    runs = [
        {A: samples([0] * 16), B: samples([100] * 16), COPY: samples([0] * 16), D: samples([700, 700])},
        {C: samples([5000] * 16), D: samples([9000] * 16), RMSNormConfig("row", 1, 16): samples([5010] * 16)},
        {B: samples([100] * 16), C: samples([150] * 16)},
    ]
    found = levels(runs).of
    assert (found[C].even - found[A].even, found[C].odd - found[A].odd) == (150, 150)


def test_runs_that_disagree_are_told() -> None:
    first = {A: samples([0] * 16), B: samples([100] * 16), D: samples([200] * 16)}
    second = {B: samples([0] * 16), D: samples([110_000] * 16), C: samples([0] * 16)}
    assert (levels([first, second]).joins, levels([first, second]).doubtful) == (1, 1)
    second = {B: samples([0, 0, 60_000, 60_000] * 4), C: samples([0] * 16), A: samples([0] * 16)}
    assert levels([{A: first[A], B: first[B], D: first[D]}, {**second, D: samples([0] * 16)}]).doubtful == 0
    assert levels([{B: first[B], D: first[D]}, second]).doubtful == 1


def test_a_run_that_shares_only_a_block_with_a_spike_is_left_out() -> None:
    first = {A: samples([0] * 16), B: samples([100] * 16), D: samples([200, 200])}
    second = {C: samples([0] * 16), D: samples([0, 0])}
    assert levels([first, second]).of.keys() == {A, B, C, D}
    second[D] = samples([0, SPIKE])
    assert levels([first, second]).of.keys() == {A, B, D}


def test_halves_of_few_rounds_are_apart_where_no_config_has_more() -> None:
    """Else the best would be chosen on the rounds that score it."""
    found = levels([{A: samples([0] * 6), C: samples([0] * 6), B: samples([10, 10, 50, 50, 10, 10])}]).of
    assert (found[B].even, found[B].odd) == (10, 50)


def test_a_level_keeps_its_rounds_apart_by_run_and_shifted_alike() -> None:
    first = {A: samples([0] * 8), B: samples([100] * 8)}
    second = {B: samples([9100] * 8), C: samples([9250] * 8)}
    found = levels([first, second]).of
    assert found[A].labels.tolist() == list(range(8))
    assert len(set(found[B].labels.tolist())) == 16
    assert set(block_of(found[B].labels).tolist()) & set(block_of(found[C].labels).tolist()) == {
        number for number in block_of(found[C].labels).tolist()
    }
    late = np.isin(found[B].labels, found[C].labels)
    assert (found[C].logs - found[B].logs[late]).tolist() == [150] * 8
    assert np.median(found[C].logs) - np.median(found[A].logs) == 250


def test_times_that_tell_no_rounds_have_no_reference():
    """Another program's first two times of A and B are no rounds of both."""
    a, b = (
        LogSamples(2 * np.arange(len(logs), dtype=np.int32), np.array(logs)) for logs in ([50, 50, *[10] * 7], [12] * 2)
    )
    found = levels([{A: a, B: b}], [0]).of
    assert (found[A].even, found[A].odd, found[B].even, found[B].odd) == (10, 10, 12, 12)
    paired = [
        {A: LogSamples(np.arange(9, dtype=np.int32), a.logs), B: LogSamples(np.arange(2, dtype=np.int32), b.logs)}
    ]
    assert levels(paired, [0]).of[B].even < levels(paired, [0]).of[A].even  # rounds that were told count
