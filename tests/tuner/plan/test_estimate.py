"""Estimated duration of a sweep, beside its real one."""

from collections import defaultdict

import numpy as np
import pytest

from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.results.exchange.recording import load_recording
from normtune.results.records import Device, Run
from normtune.tuner.plan.estimate import H200, Pace, Speed, corrected, new_binaries
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import Exhaustive

TARGET = TARGETS["sm_90"]
DEVICE = Device("NVIDIA H200", "sm_90", 132, 60 << 20, 1 << 37, "GPU-0", "1.0")
# A sweep of the variants in three dtypes, on a part of the recording grid.
VARIANTS = ("rms_norm_forward:no_rstd", "rms_norm_backward:no_dweight")
ROWS, HIDDEN = (1, 32, 512, 2048, 8192, 65536, 262144), (64, 128, 256, 768, *(1024 << power for power in range(6)))
MEASURED_SECONDS = 74.9


def tasks_of(dtype="bfloat16", grid=(), space="default", keys=()):
    return plan(problems(list(keys), [dtype], grid or shapes("quick")), space, TARGET).tasks


@pytest.mark.long
def test_the_timing_of_a_known_sweep_is_told_within_a_fifth():
    wanted = problems(VARIANTS, ["bfloat16", "float16", "float32"], shapes("recording", ROWS, HIDDEN))
    estimate = Pace(H200, TARGET, Exhaustive.expected_blocks).estimate(plan(wanted, "default", TARGET).tasks)
    assert estimate.timing == pytest.approx(MEASURED_SECONDS, rel=0.2)
    assert estimate.seconds == sum(estimate)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rms_norm_forward", "rms_norm_backward"])
def test_launches_of_the_recording_are_told_within_a_quarter(name):
    """All launches of each way together; Liger's backward, too few rows in flight to be told, is left out."""
    spec, pace = operator(name), Pace(H200, TARGET, Exhaustive.expected_blocks)
    sums = defaultdict(lambda: np.zeros(2))
    for cell in load_recording("nvidia-h200").select([f"{name}:"], ["bfloat16"]).measurements():
        if cell.config == COPY or not len(cell.samples) or cell.config.finish == "reduce":
            continue
        if cell.config.schedule == "cluster_4" and cell.config.finish == "dependent":
            continue  # only the full space has it here, at shapes where it takes two to three times as long as told
        launch = spec.resolve(cell.config, cell.problem, TARGET, None)
        told = pace.launch_seconds(cell.problem, spec.bytes_moved(cell.problem), launch)
        sums[cell.config.schedule, cell.config.finish] += told, 1e-9 * np.median(cell.samples)
    ratios = {way: told / taken for way, (told, taken) in sums.items()}
    assert len(ratios) == {"rms_norm_forward": 5, "rms_norm_backward": 10}[name]
    assert {way: ratio for way, ratio in ratios.items() if not 0.64 < ratio < 1.25} == {}


def test_the_whole_is_what_its_tasks_take():
    tasks, pace, seen = tasks_of(), Pace(H200, TARGET, Adaptive.expected_blocks), set()
    estimate = pace.estimate(tasks)
    by_task = sum(pace.measuring(task, new_binaries(task, seen)) for task in tasks)
    assert by_task == pytest.approx(estimate.gate + estimate.timing)


def test_a_slower_memory_makes_large_problems_slower_and_small_ones_hardly():
    slow = Pace(H200._replace(bytes_per_second=H200.bytes_per_second / 4), TARGET, Adaptive.expected_blocks)
    fast = Pace(H200, TARGET, Adaptive.expected_blocks)
    (small,), (large,) = (
        tasks_of(grid=[(1, 64)], keys=["rms_norm_forward"]),
        tasks_of(grid=[(65536, 4096)], keys=["rms_norm_forward"]),
    )
    assert slow.timing(large) > 3 * fast.timing(large)
    assert slow.timing(small) < 2 * fast.timing(small)


@pytest.mark.long
def test_few_and_slow_cores_make_one_wait_for_the_compiler():
    tasks = tasks_of()
    waits = [
        Pace(H200._replace(cores=cores), TARGET, Adaptive.expected_blocks).estimate(tasks).compile
        for cores in (64, 16, 2, 1)
    ]
    assert waits == sorted(waits) and waits[-1] > 10 > waits[0]
    usual, slow = (
        Pace(H200._replace(cores=2), TARGET, Adaptive.expected_blocks, python=seconds).estimate(tasks)
        for seconds in (0.02, 0.04)
    )
    assert slow.compile > 1.5 * usual.compile and slow.timing == usual.timing


@pytest.mark.long
def test_exhaustive_takes_longer_and_the_portfolio_shorter():
    tasks, few = tasks_of(), tasks_of(space="portfolio")
    adaptive, exhaustive = (Pace(H200, TARGET, name) for name in (Adaptive.expected_blocks, Exhaustive.expected_blocks))
    long, usual, short = (
        pace.estimate(wanted) for pace, wanted in [(exhaustive, tasks), (adaptive, tasks), (adaptive, few)]
    )
    assert long.seconds > usual.seconds > usual.start + 1.1 * (short.seconds - short.start)


def test_a_replay_compiles_nothing_and_moves_nothing():
    estimate = Pace(Speed(0.0, 1e-5, 1), TARGET, Adaptive.expected_blocks).estimate(tasks_of())
    assert (estimate.compile, estimate.gate) == (0.0, 0.0)
    assert 0 < estimate.timing < 2


def test_nothing_takes_no_longer_than_to_start():
    estimate = Pace(H200, TARGET, Adaptive.expected_blocks).estimate([])
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
