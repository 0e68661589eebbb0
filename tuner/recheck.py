"""Measuring again what somebody doubts: tasks in the order of their worth, as far as a budget reaches.

In: a bench, tasks, and somebody who says which are still wanted and hears what came of them. Out: `Recheck`: how far
it came. Configs are gated and timed as in a sweep. Nothing is stored unless a store is given. What the times are for is
not known here.
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
    """Who wants tasks measured."""

    def wants(self, task: Task) -> bool:
        """Whether this task is still wanted."""
        ...

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Hear what came of it."""
        ...


@dataclass
class Recheck:
    """How far a check came.

    Attributes:
        measured: tasks.
        timings: samples.
        skipped: how many tasks could not be measured, by reason.
        oversized: how many the device's free memory does not hold.
        unfinished: how many were wanted still when the budget was used up.
        seconds: it took, without opening the device.
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
    """Measure tasks as long as they are wanted and there is time; the bench is closed at the end.

    Args:
        bench: the device.
        tasks: in the order of their worth.
        asker: asked before each, and told after it.
        budget_seconds: no task is begun that is likely to end later; None for no limit.
        store: where measurements go, each task's in one transaction; None for nowhere.
        clock: seconds.

    Raises:
        NormtuneError: the device or the store cannot be used any more, or its free memory holds none of the tasks.
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
    """The task to measure now: the first of the next ones whose binaries are there, else the first once they are."""
    if patience < 0:
        return None
    for task in waiting[:_AHEAD]:
        if bench.compiled(task, 0.0):
            return task
    return waiting[0] if bench.compiled(waiting[0], None if math.isinf(patience) else patience) else None
