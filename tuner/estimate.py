"""How long a sweep will take, before it starts.

In: a plan and a strategy. Out: minutes on an H200 beside 16 cores. The constants are those of sweeps measured there:
the default grid in bfloat16 took 1.4 minutes, the recording grid, exhaustive, 3.7.
"""

from normtune.kernels.operator import operator
from normtune.tuner.planning import Plan

START_SECONDS = 10.0  # imports, CUDA, the pool of compilers, warm clocks
SECONDS_PER_BINARY = 0.15 / 16
SECONDS_PER_CELL = 0.0035  # gate, capture, replays and evictions of one config of one problem
SECONDS_PER_BYTE = 2.1e-11  # of one problem, summed over all launches of one config, good or bad
EXHAUSTIVE = 1.5  # how much longer than adaptive


def minutes(plan: Plan, strategy: str) -> float:
    """Minutes that start, compile, gate and timing of a plan take."""
    measuring = 0.0
    for task in plan.tasks:
        moved = operator(task.problem.operator).bytes_moved(task.problem)
        measuring += len(task.candidates) * (SECONDS_PER_CELL + SECONDS_PER_BYTE * moved)
    if strategy == "exhaustive":
        measuring *= EXHAUSTIVE
    return (START_SECONDS + len(plan.jobs()) * SECONDS_PER_BINARY + measuring) / 60
