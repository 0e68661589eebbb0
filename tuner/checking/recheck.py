"""Measures tasks within a budget, most useful first, while a caller wants them.

In: a bench, tasks, and `Probes`, which choose among them and receive the outcomes. Out: `Recheck`, counts of the work.
Configs are gated and timed as in a sweep.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from normtune.kernels.config import Config
from normtune.results.database.store import Store
from normtune.results.records import Outcome
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import SkippedError
from normtune.tuner.plan.plan import Plan, Task, fitting
from normtune.tuner.search.adaptive import Adaptive, two_batches
from normtune.tuner.sweep.run_writer import RunWriter, measurements, new_run

# The first of this many tasks with compiled binaries is measured next.
_AHEAD = 6
# A task may begin if this many times the duration of the longest so far is left, or of these seconds for the first.
_CAUTION = 1.2
_FIRST_SECONDS = 1.0


class Probes(Protocol):
    """Chooses tasks and receives their outcomes."""

    def wants(self, task: Task) -> bool:
        """Whether this task is still wanted."""
        ...

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Receive the outcomes of a task."""
        ...


@dataclass
class Recheck:
    """Counts of the work.

    Attributes:
        measured: number of measured tasks.
        timings: number of samples.
        skipped: number of tasks that could not be measured, by reason.
        oversized: number of tasks too large for the device's free memory.
        unfinished: number of tasks still wanted at the end of the budget.
        seconds: duration, without the opening of the device.
    """

    measured: int = 0
    timings: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    oversized: int = 0
    unfinished: int = 0
    seconds: float = 0.0


def recheck(
    bench: Bench,
    tasks: Sequence[Task],
    probes: Probes,
    budget_seconds: float | None = None,
    store: Store | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Recheck:
    """Measure tasks while they are wanted and time is left; closes the bench at the end.

    Args:
        bench: the device.
        tasks: most useful first.
        probes: chooses among the tasks, and receives their outcomes.
        budget_seconds: tasks that would probably end later do not begin; None for no limit.
        store: for the measurements, one transaction per task; None to keep none.
        clock: returns seconds.

    Raises:
        NormtuneError: the device or the store failed, or no task fits into the free memory.
    """
    begun = clock()
    end = math.inf if budget_seconds is None else begun + budget_seconds
    counts = Recheck()
    run = new_run(bench, Adaptive.name)
    writer = RunWriter(store, run) if store else None
    try:
        plan = fitting(Plan(tuple(tasks), {}), bench.free_bytes)
        counts.oversized = len(plan.oversized)
        bench.examine(plan.tasks)
        left = list(plan.tasks)
        longest = _FIRST_SECONDS
        # A task that is unwanted now may be wanted later.
        while waiting := [task for task in left if probes.wants(task)]:
            bench.prepare(waiting)
            task = _next(bench, waiting, slack=end - clock() - _CAUTION * longest)
            if task is None:
                counts.unfinished = len(waiting)
                break
            left.remove(task)
            start = clock()
            try:
                outcomes = bench.measure(task, two_batches(task.configs))
            except SkippedError as error:
                counts.skipped[str(error)] += 1
                continue
            if writer:
                writer.add(measurements(task, outcomes, run.id))
                writer.flush()
            longest = max(longest if counts.measured else 0.0, clock() - start)
            counts.measured += 1
            counts.timings += sum(len(outcome.nanoseconds) for outcome in outcomes.values())
            probes.learn(task, outcomes)
    finally:
        phases = bench.phases()
        protocol = {**run.protocol, **phases.protocol} | bench.close()
        if writer:
            writer.end(protocol)
        counts.seconds = clock() - begun
    return counts


def _next(bench: Bench, waiting: Sequence[Task], slack: float) -> Task | None:
    """The first of the next `_AHEAD` tasks with compiled binaries, else the first, after a wait of at most `slack`."""
    if slack < 0:
        return None
    for task in waiting[:_AHEAD]:
        if bench.compiled(task, 0.0):
            return task
    return waiting[0] if bench.compiled(waiting[0], None if math.isinf(slack) else slack) else None
