"""Measure tasks within a budget, most useful first, as long as a caller wants them.

In: a bench, tasks, and an `Asker` that says which are still wanted and receives the outcomes. Out: `Recheck`, counts of
the work done. Configs are gated and timed as in a sweep. Nothing is stored without a store. Knows nothing of tables.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from normtune.kernels.config import Config
from normtune.results.database.store import Store
from normtune.tuner.device.open import Bench, Outcome, SkippedError
from normtune.tuner.plan.plan import Plan, Task, fitting
from normtune.tuner.rescue import Keeper
from normtune.tuner.run_record import begun_run, measurements
from normtune.tuner.search.adaptive import Adaptive

# So many tasks may be taken before their turn, if their binaries are there first.
_AHEAD = 6
# A task may take so much longer than the longest so far; of the first nothing is known.
_CAUTION = 1.2
_FIRST_SECONDS = 1.0


class Asker(Protocol):
    """Chooses tasks and receives their outcomes."""

    def wants(self, task: Task) -> bool:
        """Whether this task is still wanted."""
        ...

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Receive the outcomes of a task."""
        ...


@dataclass
class Recheck:
    """Counts of the work done.

    Attributes:
        measured: tasks.
        timings: samples.
        skipped: number of tasks that could not be measured, by reason.
        oversized: number of tasks beyond the device's free memory.
        unfinished: number of tasks still wanted when the budget was used up.
        seconds: duration, without opening the device.
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
    asker: Asker,
    budget_seconds: float | None = None,
    store: Store | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Recheck:
    """Measure tasks while they are wanted and time is left; the bench is closed at the end.

    Args:
        bench: the device.
        tasks: most useful first.
        asker: called before and after each task.
        budget_seconds: no task begins that is likely to end later; None for no limit.
        store: for the measurements, one transaction per task; None to keep none.
        clock: seconds.

    Raises:
        NormtuneError: the device or the store became unusable, or the free memory holds none of the tasks.
    """
    begun = clock()
    end = math.inf if budget_seconds is None else begun + budget_seconds
    told = Recheck()
    races = Adaptive((), {})  # 6 rounds for all configs, 16 for those that may be the best
    run = begun_run(bench, races.name)
    keeper = Keeper(store, run) if store else None
    try:
        plan = fitting(Plan(tuple(tasks), {}), bench.free_bytes)
        told.oversized = len(plan.oversized)
        left = list(plan.tasks)
        longest = _FIRST_SECONDS
        # What nobody wants now may be wanted later.
        while waiting := [task for task in left if asker.wants(task)]:
            bench.prepare(waiting)
            patience = end - clock() - _CAUTION * longest
            task = _next(bench, waiting, patience)
            if task is None:
                told.unfinished = len(waiting)
                break
            left.remove(task)
            start = clock()
            try:
                outcomes = bench.measure(task, races.batches(task))
            except SkippedError as error:
                told.skipped[str(error)] += 1
                continue
            if keeper:
                keeper.add(measurements(task, outcomes, run.id))
            longest = max(longest if told.measured else 0.0, clock() - start)
            told.measured += 1
            told.timings += sum(len(outcome.nanoseconds) for outcome in outcomes.values())
            asker.learn(task, outcomes)
    finally:
        phases = bench.phases()
        protocol = {**run.protocol, **phases.protocol} | bench.close()
        if keeper:
            keeper.end(protocol)
        told.seconds = clock() - begun
    return told


def _next(bench: Bench, waiting: Sequence[Task], patience: float) -> Task | None:
    """The next task: the first of the next few whose binaries are compiled, else the first, after waiting for them."""
    if patience < 0:
        return None
    for task in waiting[:_AHEAD]:
        if bench.compiled(task, 0.0):
            return task
    return waiting[0] if bench.compiled(waiting[0], None if math.isinf(patience) else patience) else None
