"""How long a sweep is said to take, beside how long it took."""

import pytest

from normtune.kernels.target import TARGETS
from normtune.results.records import Device, Run
from normtune.tuner.engine import Speed
from normtune.tuner.estimate import H200, Pace, corrected, new_binaries
from normtune.tuner.grids import shapes
from normtune.tuner.planning import plan, problems

TARGET = TARGETS["sm_90"]
DEVICE = Device("NVIDIA H200", "sm_90", 132, 60 << 20, 1 << 37, "GPU-0", "1.0")
# Every second row count of the recording grid.
HALF = [(rows, hidden) for rows, hidden in shapes("recording") if rows.bit_length() % 2]

# Seconds of timing of sweeps of an H200 beside 16 cores.
MEASURED = {
    "default": ("bfloat16", shapes("default"), "adaptive", 54.2),
    "recording": ("bfloat16", shapes("recording"), "exhaustive", 173.2),
    "half": ("float32", HALF, "exhaustive", 103.2),
}


def tasks_of(dtype="bfloat16", grid=(), space="default", keys=()):
    return plan(problems(list(keys), [dtype], grid or shapes("quick")), space, TARGET).tasks


@pytest.mark.parametrize("name", MEASURED)
def test_the_timing_of_known_sweeps_is_told_within_a_fifth(name):
    dtype, grid, strategy, measured = MEASURED[name]
    estimate = Pace(H200, TARGET, strategy).estimate(tasks_of(dtype, grid))
    assert estimate.timing == pytest.approx(measured, rel=0.2)
    assert estimate.seconds == sum(estimate)


def test_the_whole_is_what_its_tasks_take():
    tasks, pace, seen = tasks_of(), Pace(H200, TARGET, "adaptive"), set()
    estimate = pace.estimate(tasks)
    by_task = sum(pace.measuring(task, new_binaries(task, seen)) for task in tasks)
    assert by_task == pytest.approx(estimate.gate + estimate.timing)


def test_a_slower_memory_makes_large_problems_slower_and_small_ones_hardly():
    slow = Pace(H200._replace(bytes_per_second=H200.bytes_per_second / 4), TARGET, "adaptive")
    fast = Pace(H200, TARGET, "adaptive")
    (small,), (large,) = (
        tasks_of(grid=[(1, 64)], keys=["rms_norm_forward"]),
        tasks_of(grid=[(65536, 4096)], keys=["rms_norm_forward"]),
    )
    assert slow.timing(large) > 3 * fast.timing(large)
    assert slow.timing(small) < 2 * fast.timing(small)


def test_few_and_slow_cores_make_one_wait_for_the_compiler():
    tasks = tasks_of()
    waits = [Pace(H200._replace(cores=cores), TARGET, "adaptive").estimate(tasks).compile for cores in (64, 16, 2, 1)]
    assert waits == sorted(waits) and waits[-1] > 10 > waits[0]
    usual, slow = (
        Pace(H200._replace(cores=2), TARGET, "adaptive", python=seconds).estimate(tasks) for seconds in (0.02, 0.04)
    )
    assert slow.compile > 1.5 * usual.compile and slow.timing == usual.timing


def test_exhaustive_takes_longer_and_the_quick_space_shorter():
    tasks, quick = tasks_of(), tasks_of(space="quick")
    adaptive, exhaustive = (Pace(H200, TARGET, name) for name in ("adaptive", "exhaustive"))
    assert exhaustive.estimate(tasks).seconds > adaptive.estimate(tasks).seconds > 2 * adaptive.estimate(quick).seconds


def test_a_replay_compiles_nothing_and_moves_nothing():
    estimate = Pace(Speed(0.0, 1e-5, 1), TARGET, "adaptive").estimate(tasks_of())
    assert (estimate.compile, estimate.gate) == (0.0, 0.0)
    assert 0 < estimate.timing < 2


def test_nothing_takes_no_longer_than_to_start():
    estimate = Pace(H200, TARGET, "adaptive").estimate([])
    assert estimate.seconds == estimate.start


def run_with(estimated, taken, correction=1.0, device=DEVICE):
    protocol = {"estimated_seconds": estimated, "seconds": {"gate": 0.25 * taken, "timing": 0.75 * taken}}
    return Run("a", device, {}, "2026-01-01T00:00:00+00:00", protocol | {"correction": correction})


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], 1.0),
        ([run_with(40.0, 60.0)], 1.5),
        ([run_with(40.0, 60.0), run_with(40.0, 20.0)], 0.5),
        ([run_with(40.0, 44.0, correction=1.2)], 1.32),  # what was estimated with a correction corrects that
        ([run_with(40.0, 60.0), run_with(1.0, 9.0)], 1.5),  # too short to say anything
        ([run_with(40.0, 400.0)], 2.0),  # something else went on
        ([run_with(40.0, 60.0, device=DEVICE._replace(uuid="GPU-1"))], 1.0),
        ([Run("a", DEVICE, {}, "2026-01-01T00:00:00+00:00", {"seconds": {"gate": 1.0}})], 1.0),
    ],
)
def test_the_newest_run_of_the_same_device_corrects(runs, expected):
    assert corrected(runs, DEVICE) == pytest.approx(expected)
