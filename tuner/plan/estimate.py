"""Estimates the duration of a sweep.

In: tasks, the mean number of blocks of a config, the speed of the machine. Out: an `Estimate` with its parts, and the
expected time of a single task, for the budget of a sweep. For a replay, only blocks take time.

The constants were fitted to sweeps of an H200 beside 16 cores. `Speed` and the speed of Python are measured, because
they differ between machines; stored sweeps of the same device give a correction factor.
"""

import math
import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from normtune.kernels.call import AnyLaunch
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch
from normtune.results.records import ROUNDS_PER_BLOCK, Device, Run
from normtune.results.regimes import COLD, EAGER, WARM
from normtune.tuner.plan.binaries import compile_class
from normtune.tuner.plan.plan import Task
from normtune.tuner.timing.protocol import ALL_BLOCKS, SENTINEL_BYTES, SENTINEL_COPIES, SLOW_SECONDS, timed_launches


class Speed(NamedTuple):
    """Speed of this machine, for the estimate of a sweep; measured before anything is compiled.

    Attributes:
        bytes_per_second: of a copy of 64 MB, bytes read plus bytes written; 0 for a replay.
        block_seconds: wall time of capturing a graph of eleven small copies and replaying it twice: the time of a
            config per block if its kernels take no time.
        cores: number of processes of the compile pool.
    """

    bytes_per_second: float
    block_seconds: float
    cores: int


# The assumed speed for a plan without a GPU.
H200 = Speed(4.0e12, 3.0e-4, 16)

# Seconds of the start: loading triton in the processes of the compile pool; loading on the GPU at the first gate and
# captures; everything else until the first problem.
POOL_SECONDS = 3.0
FIRST_SECONDS = 1.8
START_SECONDS = 0.5
# Seconds on one core of the reference machine: compiling one binary; the Python code of `python_seconds`.
BINARY_SECONDS = 0.147
REFERENCE_PYTHON_SECONDS = 0.010
# Seconds of planning one problem, by space, on one core.
PLAN_SECONDS = {"default": 1.8e-3, "portfolio": 1.8e-3, "recorded": 3.0e-3, "full": 8.0e-3}
# Seconds of storing one problem.
STORE_SECONDS = 0.004

# Time of a launch: fixed seconds, for one kernel and for one followed by a second kernel that sums partial sums; its
# bytes at the speed of the copy; for each element the time of this many further bytes, more if partial sums leave too
# few registers for a row's elements per thread. Programs of columns read everything once more, and each takes the
# slice seconds for every tile of rows.
LAUNCH_SECONDS = 2.6e-6
TWO_LAUNCHES_SECONDS = 5.0e-6
ELEMENT_BYTES = 0.8
SUMMED_ELEMENT_BYTES = 2.0
SPILLED_ELEMENT_BYTES = 5.0
SPILLED_ELEMENTS = 64
COLUMNS_ELEMENT_BYTES = 3.7
SLICE_SECONDS = 0.25e-6

# CPU time of a config and block, as a multiple of `Speed.block_seconds`.
BLOCK_FACTOR = 1.0
# Bytes read and written by the sentinel of a round, with the untimed copy.
SENTINEL_MOVED = (1 + SENTINEL_COPIES) * 2 * SENTINEL_BYTES

# Host seconds of a launch from Python, for the regime `eager`. Not fitted: the first sweep corrects later estimates.
EAGER_SECONDS = 8.0e-6

# The gate: seconds of a binary at the trial problem; seconds of a config at each problem (warm-up, comparison); bytes
# per element, at the speed of the copy, of the reference and of each comparison at the problem's size.
BINARY_GATE_SECONDS = 4.0e-3
CONFIG_GATE_SECONDS = 0.57e-3
REFERENCE_BYTES = 400.0
COMPARE_BYTES = 40.0

# Shortest stored run that may correct the estimate, and the bounds of the correction.
_SHORTEST_RUN_SECONDS = 5.0
_CORRECTION_BOUNDS = (0.5, 2.0)


def compile_seconds(binaries: int, cores: int) -> float:
    """Seconds of compiling these binaries on so many cores of this machine, without a GPU."""
    return POOL_SECONDS + binaries * BINARY_SECONDS * python_seconds() / REFERENCE_PYTHON_SECONDS / cores


class Estimate(NamedTuple):
    """Wall time, seconds.

    Attributes:
        start: until the first problem can begin, and loading at the first one.
        compile: waiting for the compiler, which works in parallel.
        gate, timing: in these phases.
        store: writing to the store.
    """

    start: float
    compile: float
    gate: float
    timing: float
    store: float

    @property
    def seconds(self) -> float:
        """Sum of all parts."""
        return sum(self)


class Pace:
    """Expected times of tasks on one machine under one search.

    Args:
        speed: of the machine.
        target: its limits.
        blocks: mean number of blocks per config, `Search.expected_blocks`.
        python: result of `python_seconds` on this machine.
        correction: factor for gate and timing, see `corrected`.
        regime: of the timing.
    """

    def __init__(
        self,
        speed: Speed,
        target: Target,
        blocks: float,
        python: float = REFERENCE_PYTHON_SECONDS,
        correction: float = 1.0,
        regime: str = COLD,
    ) -> None:
        self._speed = speed
        self._target = target
        self._blocks = blocks
        self._correction = correction
        # One core drives the device; the compilers use the others, and at low priority part of this one.
        cores = max(speed.cores - 1, 0.5)
        self._binary_seconds = BINARY_SECONDS * python / REFERENCE_PYTHON_SECONDS / cores
        self._evict_seconds = 0.0 if regime == WARM else self._moving(2 * target.l2_bytes)
        self._footprints: dict[Problem, int] = {}
        self._least_seconds = EAGER_SECONDS if regime == EAGER else 0.0

    def measuring(self, task: Task, binaries: int) -> float:
        """Seconds of gate and timing of a task that needs `binaries` new binaries."""
        return self.gate(task, binaries) + self.timing(task)

    def gate(self, task: Task, binaries: int) -> float:
        """Seconds of checking new binaries, and of all configs at the problem's size."""
        if not self._speed.bytes_per_second:
            return 0.0
        elements = math.prod(task.problem.shape)
        moved = REFERENCE_BYTES * elements + COMPARE_BYTES * elements * len(task.candidates)
        seconds = binaries * BINARY_GATE_SECONDS + len(task.candidates) * CONFIG_GATE_SECONDS + self._moving(moved)
        return self._correction * seconds

    def timing(self, task: Task) -> float:
        """Seconds of all rounds of a task."""
        footprint = self._footprint(task.problem)
        launches = 1 + timed_launches(footprint)
        on_device = 0.0
        if self._speed.bytes_per_second:
            times = [self.launch_seconds(task.problem, footprint, candidate.launch) for candidate in task.candidates]
            times.append(self._moving(footprint) + LAUNCH_SECONDS)
            times = [max(time, self._least_seconds) for time in times]
            replays = [self._evict_seconds + (launches if time < SLOW_SECONDS else 1) * time for time in times]
            on_device = ROUNDS_PER_BLOCK * (self._blocks * sum(replays) + ALL_BLOCKS * self._moving(SENTINEL_MOVED))
        captured = self._blocks * (len(task.candidates) + 1) * BLOCK_FACTOR * self._speed.block_seconds
        return self._correction * (on_device + captured)

    def estimate(self, tasks: Iterable[Task]) -> Estimate:
        """Expected time of tasks in this order, in which their binaries are compiled, too."""
        compiles = self._speed.bytes_per_second > 0
        gate = timing = store = waited = 0.0
        start = START_SECONDS + (POOL_SECONDS + FIRST_SECONDS if compiles else 0.0)
        now = ready = start
        seen: set[object] = set()
        for task in tasks:
            binaries = new_binaries(task, seen)
            ready += binaries * self._binary_seconds * compiles
            waited += max(0.0, ready - now)
            now = max(now, ready)
            parts = self.gate(task, binaries), self.timing(task), STORE_SECONDS
            gate, timing, store = gate + parts[0], timing + parts[1], store + parts[2]
            now += sum(parts)
        return Estimate(start, waited, gate, timing, store)

    def launch_seconds(self, problem: Problem, footprint: int, launch: AnyLaunch) -> float:
        """Seconds of one launch; a perfect kernel would move `footprint` bytes."""
        elements = math.prod(problem.shape)
        if not isinstance(launch, Launch) or not (launch.slice_row or launch.workspace):
            return LAUNCH_SECONDS + self._moving(footprint + ELEMENT_BYTES * elements)
        if launch.slice_row:
            walk = -(-problem.rows // launch.slice_row) * SLICE_SECONDS
            return LAUNCH_SECONDS + walk + self._moving(footprint + COLUMNS_ELEMENT_BYTES * elements)
        columns = launch.block_col * max(1, launch.chunks)
        per_thread = launch.block_row * columns / (launch.num_warps * self._target.warp_size)
        element_bytes = SPILLED_ELEMENT_BYTES if per_thread >= SPILLED_ELEMENTS else SUMMED_ELEMENT_BYTES
        return TWO_LAUNCHES_SECONDS + self._moving(footprint + element_bytes * elements)

    def _footprint(self, problem: Problem) -> int:
        """Bytes that a perfect kernel would move."""
        if problem not in self._footprints:
            self._footprints[problem] = operator(problem.operator).bytes_moved(problem)
        return self._footprints[problem]

    def _moving(self, count: float) -> float:
        return count / self._speed.bytes_per_second if self._speed.bytes_per_second else 0.0


def new_binaries(task: Task, seen: set[object]) -> int:
    """Number of binaries of a task that are not in `seen`, to which they are added."""
    needed = {compile_class(task.problem, candidate.launch) for candidate in task.candidates}
    count = len(needed - seen)
    seen |= needed
    return count


def python_seconds() -> float:
    """Median seconds of three runs of a fixed piece of Python, to compare the compile speed of cores."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        counts: dict[int, int] = {}
        for number in range(100_000):
            counts[number & 1023] = counts.get(number & 1023, 0) + (number ^ (number >> 3))
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def corrected(runs: Sequence[Run], device: Device, regime: str = COLD) -> float:
    """Correction factor for gate and timing: measured over estimated time of the newest run on this device; else 1.

    The protocol of a run has `seconds` of each phase, and `estimated_seconds` of gate and timing of the finished tasks,
    which include the `correction` of that run. Only runs in this regime count.
    """
    for run in reversed(runs):
        estimated, seconds = run.protocol.get("estimated_seconds"), run.protocol.get("seconds")
        if run.device != device or run.regime != regime or not isinstance(seconds, dict):
            continue
        if isinstance(estimated, float) and estimated >= _SHORTEST_RUN_SECONDS:
            measured = seconds.get("gate", 0.0) + seconds.get("timing", 0.0)
            least, most = _CORRECTION_BOUNDS
            return float(min(max(measured / estimated * run.protocol.get("correction", 1.0), least), most))
    return 1.0
