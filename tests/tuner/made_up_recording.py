"""A made-up recording: an engine that workers open in tests, and the evidence behind it.

In: nothing; the times are drawn with a fixed seed. Out: 20 shapes in two dtypes, 16 blocks of five configs and the
copy, one config that failed and one that is not recorded.
"""

import random
import time

import numpy as np

from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import ROUNDS_PER_BLOCK, Measurement, Run
from normtune.tests.tuner.benches import DEVICE
from normtune.tuner.device.replay import ReplayEngine
from normtune.tuner.plan.plan import Plan, Task, candidates

TARGET = TARGETS["sm_90"]
FAST, SLOW, BROKEN, ABSENT = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))
# Of an engine that takes real time.
BLOCK_SECONDS = 0.02

CONFIGS = [FAST, SLOW, BROKEN, ABSENT, *(RMSNormConfig("block_row", 2, warps) for warps in (2, 4, 8))]
PROBLEMS = [
    operator("rms_norm_forward").problem(rows, hidden, dtype)
    for dtype in ("bfloat16", "float32")
    for hidden in (512, 1024, 2048, 4096)
    for rows in (16, 64, 256, 1024, 4096)
]


def recorded_plan(configs=CONFIGS):
    """All problems with those of the configs that are legal."""
    kept = ((problem, candidates(operator(problem.operator), configs, problem, TARGET)[0]) for problem in PROBLEMS)
    return Plan(tuple(Task(problem, tuple(found)) for problem, found in kept), {})


def evidence():
    """The measurements."""
    draw = random.Random(7)
    run = Run("ab" * 16, DEVICE, {"triton": "1.2.3"}, "2026-01-01T00:00:00+00:00", {})
    empty = np.zeros(0, np.int32)
    rows = []
    for task in recorded_plan().tasks:
        for config in (*(candidate.config for candidate in task.candidates), COPY):
            rounds, base = np.arange(16 * ROUNDS_PER_BLOCK, dtype=np.int32), draw.randrange(1000, 1300)
            samples = np.array([base + draw.randrange(50) for _ in rounds], np.int32)
            if config == BROKEN:
                rows.append(Measurement(task.problem, config, run.id, "sha256:x", "crashed", "hung up", empty, empty))
            elif config != ABSENT:
                rows.append(Measurement(task.problem, config, run.id, "sha256:x", "ok", "", rounds, samples))
    return Evidence.from_measurements(rows, [run])


def engine():
    """A replay of it."""
    return ReplayEngine("made-up", evidence=evidence())


class CompiledEngine(ReplayEngine):
    """A replay that wants its binaries compiled."""

    def identify(self):
        return super().identify()._replace(compiles=True)


def compiled_engine():
    """It, of the recording."""
    return CompiledEngine("made-up", evidence=evidence())


class SlowEngine(ReplayEngine):
    """A replay whose blocks take real time, as on a GPU."""

    def block(self, configs):
        time.sleep(BLOCK_SECONDS)
        return super().block(configs)


def slow_engine():
    """It, of the recording."""
    return SlowEngine("made-up", evidence=evidence())
