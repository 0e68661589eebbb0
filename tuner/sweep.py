"""The sweep: plan against what is stored, measure what is missing, store each task as it is done.

In: a bench, a store, what is wanted and a search. Out: measurements in the store and a `Summary`. Killed at any time it
loses at most the task in hand; the same call goes on where it was. What is measured next, and how often, is the
business of the search, how long it takes that of `estimate`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.tuner.device.open import Bench, Phases, SkippedError
from normtune.tuner.plan.estimate import Estimate, Pace, corrected, new_binaries, python_seconds
from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.resume import Stored, known
from normtune.tuner.rescue import Keeper
from normtune.tuner.run_record import begun_run, measurements
from normtune.tuner.search.protocol import Search
from normtune.tuner.summary import Best, Summary

# Kept of the budget for closing the device and the store.
_MARGIN_SECONDS = 1.0
# A problem may take so much longer than expected without overrunning the budget.
_CAUTION = 1.2
# So many seconds of estimate count as having come true before anything was measured.
_TRUST_SECONDS = 0.5


class Outlook(NamedTuple):
    """What a sweep is about to do.

    Attributes:
        plan: what is wanted.
        tasks: what the search asks for of it, in about the order of asking.
        known: problems that are complete in the store.
        binaries: to be compiled.
        estimate: how long all of it takes.
        budget_seconds: what is left of the budget; None for no limit.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    known: int
    binaries: int
    estimate: Estimate
    budget_seconds: float | None

    @property
    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return Plan(self.tasks, {}).cells()


class Progress(Protocol):
    """Hears what a sweep is doing."""

    def planned(self, outlook: Outlook) -> None:
        """This is about to be done; nothing is compiled yet."""
        ...

    def compiling(self, done: int, total: int) -> None:
        """So many binaries of so many are compiled; called from another thread."""
        ...

    def measured(self, problem: Problem, best: Best | None, summary: Summary, left: int, seconds: float) -> None:
        """A problem was measured and stored, or skipped; so many are left, which take about so many seconds."""
        ...


def sweep(
    bench: Bench,
    store: Store,
    plan: Plan,
    strategy: type[Search],
    budget_seconds: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    retry_failed: bool = False,
) -> Summary:
    """Measure what the plan wants and the store lacks; the bench is closed at the end.

    Args:
        bench: the device.
        store: where measurements go, one transaction a task.
        plan: what is wanted.
        strategy: says what is measured next, and when a problem is done.
        budget_seconds: no task is begun that would end later; None for no limit.
        progress: told of each step.
        clock: seconds, for the budget.
        retry_failed: whether what is stored as crashed or timed out is measured again.

    Raises:
        NormtuneError: the device or the store failed, or the store does not hold what it was given; what was measured
            is in the store, or in the file that the message names.
    """
    begun = clock()
    search = _search(bench, store, plan, strategy, retry_failed)
    tasks = tuple(search.left())
    summary = Summary(known=len(plan.tasks) - len(tasks))
    if not tasks:
        summary.phases = bench.phases()
        bench.close()
        return summary
    pace, machine = _pace(bench, store, search)
    outlook = _outlook(plan, tasks, pace, budget_seconds)
    if progress:
        progress.planned(outlook)
    planned = clock()
    summary.starting_seconds = planned - begun
    going = _Going(bench, search, pace, outlook, begun, clock, progress)
    summary.left, summary.left_seconds = len(tasks), outlook.estimate.seconds
    keeper = Keeper(store, begun_run(bench, search.name))
    try:
        while task := going.next():
            best = None
            start = clock()
            try:
                outcomes = bench.measure(task, search.race(task))
            except SkippedError as error:
                summary.skipped[str(error)] += 1
                search.tell(task, {})
                going.skipped(task)
            else:
                codes = {(task.problem, c): outcome.code for c, outcome in outcomes.items() if outcome.code}
                keeper.add(measurements(task, outcomes, keeper.run.id), codes)
                best = summary.add(task.problem, outcomes)
                going.measured(task, clock() - start)
                search.tell(task, outcomes)
            summary.left, summary.left_seconds = len(search.left()), going.left_seconds()
            if progress:
                progress.measured(task.problem, best, summary, summary.left, summary.left_seconds)
    finally:
        summary.phases = bench.phases()
        keeper.end(_protocol(search.name, summary.phases, machine, going.estimated) | bench.close())
        summary.seconds = clock() - planned
    return summary


def look_ahead(
    bench: Bench,
    store: Store | None,
    plan: Plan,
    strategy: type[Search],
    budget_seconds: float | None = None,
    retry_failed: bool = False,
    stored: Stored | None = None,
) -> Outlook:
    """What a sweep of the plan would do, by what is in the store, if there is one; measures nothing but the machine.

    `stored` is what the store is taken to hold, None for what it does; the rest is as of `sweep`.
    """
    search = _search(bench, store, plan, strategy, retry_failed, stored)
    return _outlook(plan, tuple(search.left()), _pace(bench, store, search)[0], budget_seconds)


def _search(
    bench: Bench,
    store: Store | None,
    plan: Plan,
    strategy: type[Search],
    retry_failed: bool,
    stored: Stored | None = None,
) -> Search:
    """A search of the plan that knows what is stored."""
    if stored is None:
        stored = store.coverage(bench.device, bench.regime) if store else {}
    return strategy(plan.tasks, known(stored, {task.problem.operator for task in plan.tasks}, retry_failed))


def _outlook(plan: Plan, tasks: tuple[Task, ...], pace: Pace, budget_seconds: float | None) -> Outlook:
    binaries = len(Plan(tasks, {}).jobs())
    return Outlook(plan, tasks, len(plan.tasks) - len(tasks), binaries, pace.estimate(tasks), budget_seconds)


def _pace(bench: Bench, store: Store | None, search: Search) -> tuple[Pace, dict[str, Any]]:
    """How fast this machine is, and that as a run's protocol keeps it."""
    speed, python = bench.speed(), python_seconds()
    correction = corrected(store.runs(), bench.device, bench.regime) if store else 1.0
    told = {"speed": speed._asdict() | {"python_seconds": round(python, 5)}, "correction": round(correction, 3)}
    return Pace(speed, bench.target, search.expected_blocks, python, correction, bench.regime), told


class _Going:
    """What a search asks for and the time that is left for it."""

    def __init__(
        self,
        bench: Bench,
        search: Search,
        pace: Pace,
        outlook: Outlook,
        begun: float,
        clock: Callable[[], float],
        progress: Progress | None,
    ) -> None:
        self._bench = bench
        self._search = search
        self._pace = pace
        self._clock = clock
        self._compiling = (lambda done: progress.compiling(done, outlook.binaries)) if progress else None
        self._end = math.inf if outlook.budget_seconds is None else begun + outlook.budget_seconds - _MARGIN_SECONDS
        self._seen: set[object] = set()
        self._expected: dict[Task, float] = {}
        self._left = sum(self._expects(task) for task in outlook.tasks)
        self._turn = {task.problem: turn for turn, task in enumerate(outlook.tasks)}
        self._taken = 0.0
        self.estimated = 0.0

    def next(self) -> Task | None:
        """The task to measure now, its binaries compiled and its time expected to be left."""
        now = self._clock()
        if now >= self._end:
            return None
        self._bench.prepare(self._choices(now), self._compiling)
        waiting: list[Task] = []
        for task in self._choices(now):
            if self._bench.compiled(task, 0.0):
                return task
            waiting.append(task)
            if len(waiting) == 2:  # the most wanted one, and the next in the order of coverage
                break
        if not waiting:
            return None
        first = min(waiting, key=lambda task: self._turn.get(task.problem, math.inf))
        patience = self._patience(first, now)
        return first if self._bench.compiled(first, None if math.isinf(patience) else patience) else None

    def measured(self, task: Task, seconds: float) -> None:
        """A task took so many seconds."""
        self.skipped(task)
        self.estimated += self._expects(task)
        self._taken += seconds

    def skipped(self, task: Task) -> None:
        """A task was not measured."""
        self._left -= self._expects(task)

    def left_seconds(self) -> float:
        """What the tasks that are left take, by what was seen so far."""
        return max(0.0, self._left) * self._scale()

    def _choices(self, now: float) -> Iterator[Task]:
        """What is asked for and may begin."""
        asked = self._search.ask(self._end - now)
        return (task for task in asked if self._patience(task, now) >= 0)

    def _scale(self) -> float:
        return (self._taken + _TRUST_SECONDS) / (self.estimated + _TRUST_SECONDS)

    def _patience(self, task: Task, now: float) -> float:
        """How long a task may be waited for and still end in time; negative where it may not begin."""
        return self._end - now - _CAUTION * self._scale() * self._expects(task)

    def _expects(self, task: Task) -> float:
        """Seconds that a task is expected to take on this machine."""
        if task not in self._expected:
            self._expected[task] = self._pace.measuring(task, new_binaries(task, self._seen))
        return self._expected[task]


def _protocol(strategy: str, phases: Phases, machine: Mapping[str, Any], estimated: float) -> dict[str, Any]:
    """What a run says about how its times were taken; `estimated_seconds` are those of gate and timing."""
    seconds = {name: round(getattr(phases, name), 3) for name in ("compile", "gate", "timing")}
    told = {"strategy": strategy, **phases.protocol, "seconds": seconds, "estimated_seconds": round(estimated, 3)}
    return told | dict(machine)
