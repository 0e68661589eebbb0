"""How long a sweep will take, before it starts.

In: a plan. Out: minutes on a GPU like an H200. The constants are the medians of sweeps measured there.
"""

from normtune.kernels.operator import operator
from normtune.tuner.planning import Plan

SECONDS_PER_BINARY = 0.35  # one core
CORES = 16
SECONDS_PER_CELL = 0.008  # capture, replays and evictions of a config with 8 rounds on average
BYTES_PER_SECOND = 3.0e12  # at what rate configs of a space move bytes, good and bad ones together
LAUNCHES_PER_CELL = 40


def minutes(plan: Plan) -> float:
    """Minutes that compile, gate and timing of a plan take."""
    seconds = len(plan.jobs()) * SECONDS_PER_BINARY / CORES
    for task in plan.tasks:
        moved = operator(task.problem.operator).bytes_moved(task.problem)
        seconds += len(task.candidates) * (SECONDS_PER_CELL + LAUNCHES_PER_CELL * moved / BYTES_PER_SECOND)
    return seconds / 60
