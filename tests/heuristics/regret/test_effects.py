import numpy as np

from normtune.heuristics.regret.effects import LogSamples, block_of, levels
from normtune.kernels.config import COPY
from normtune.kernels.rms_norm.config import RMSNormConfig

A, B, C, D = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))


def samples(logs: list[int], first: int = 0) -> LogSamples:
    return LogSamples(np.arange(first, first + len(logs), dtype=np.int32), np.array(logs, np.int64))


def test_what_slows_a_round_cancels() -> None:
    noise = [0, 900, -300, 5000, 70, 70, -1, 12345]
    found = levels([{A: samples(noise), B: samples([value + 100 for value in noise])}])
    assert found[B].even - found[A].even == 100
    assert found[B].odd - found[A].odd == 100


def test_halves_are_even_and_odd_blocks() -> None:
    zero = [0] * 8
    # Rounds 0, 1, 4, 5 are even blocks, 2, 3, 6, 7 odd ones; a third config keeps the reference at zero.
    found = levels([{A: samples(zero), C: samples(zero), B: samples([10, 10, 50, 50, 10, 10, 50, 50])}])
    assert (found[B].even, found[B].odd) == (10, 50)


def test_a_spike_does_not_move_a_level() -> None:
    zero = [0] * 16
    found = levels([{A: samples(zero), C: samples(zero), B: samples([7] * 15 + [10**6])}])
    assert (found[B].even, found[B].odd) == (7, 7)


def test_a_config_dropped_from_the_race_is_compared_in_the_rounds_it_ran() -> None:
    drift = [0, 0, 0, 0, 0, 0, *[1000] * 10]
    found = levels([{A: samples(drift), C: samples(drift), B: samples([200] * 6)}])
    assert found[B].even - found[A].even == 200
    assert found[B].odd - found[A].odd == 200


def test_a_config_in_one_half_only_has_its_level_in_both_and_the_copy_is_left_out() -> None:
    zero = [0] * 8
    found = levels([{A: samples(zero), COPY: samples(zero), B: samples([5, 5])}])
    assert set(found) == {A, B} and (found[B].even, found[B].odd) == (5, 5)


def test_a_later_run_is_anchored_on_what_both_have() -> None:
    first = {A: samples([0] * 8), B: samples([100] * 8)}
    second = {B: samples([9100] * 8), C: samples([9250] * 8)}
    found = levels([first, second])
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
    found = levels([run])
    assert {config: found[config].even - found[A].even for config in (B, C, D)} == {B: -40, C: -60, D: -10}
    assert {config: found[config].odd - found[A].odd for config in (B, C, D)} == {B: -40, C: -60, D: -10}
    assert len(found[B].labels) == len(found[C].labels) == 12


def test_a_config_of_two_runs_keeps_the_mean_of_its_levels_by_rounds() -> None:
    first = {A: samples([0] * 8), B: samples([100] * 8), C: samples([300] * 8)}
    second = {A: samples([0] * 24), B: samples([100] * 24), C: samples([340] * 24)}
    found = levels([first, second])
    assert found[C].even - found[A].even == 330


def test_runs_that_share_only_the_copy_are_anchored_on_it_and_runs_that_share_nothing_are_left_out() -> None:
    first = {A: samples([0] * 8), B: samples([40] * 8), COPY: samples([-50] * 8)}
    second = {C: samples([900] * 8), COPY: samples([800] * 8)}
    assert levels([first, second])[C].even - levels([first, second])[A].even == 50
    assert set(levels([{A: first[A], B: first[B]}, {C: second[C]}])) == {A, B}


def test_a_level_keeps_its_rounds_apart_by_run_and_shifted_alike() -> None:
    first = {A: samples([0] * 8), B: samples([100] * 8)}
    second = {B: samples([9100] * 8), C: samples([9250] * 8)}
    found = levels([first, second])
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
    found = levels([{A: a, B: b}], [0])
    assert (found[A].even, found[A].odd, found[B].even, found[B].odd) == (10, 10, 12, 12)
    paired = [
        {A: LogSamples(np.arange(9, dtype=np.int32), a.logs), B: LogSamples(np.arange(2, dtype=np.int32), b.logs)}
    ]
    assert levels(paired, [0])[B].even < levels(paired, [0])[A].even  # rounds that were told count
