"""The sweep: plans, measures what is missing in the store, stores each task while the next one is measured.

In: a bench, a store, a plan and a search. Out: measurements in the store, and a `Summary`. A kill loses at most the
current task and what was not stored yet of the one before; the same call resumes. The search chooses the next task and
its number of rounds; `estimate` gives the time.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.tuner.device.open import Bench, Phases, SkippedError
from normtune.tuner.plan.estimate import Estimate, Pace, corrected, new_binaries, python_seconds
from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.resume import Stored, known, without_times
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.sweep.run_writer import RunWriter, begun_run, measurements
from normtune.tuner.sweep.summary import Best, Summary

# Part of the budget for closing the device and the store.
_MARGIN_SECONDS = 1.0
# Allowed duration of a problem relative to the expected one, within the budget.
_CAUTION = 1.2
# Most tasks that another one may overtake whose binaries are compiled.
_OVERTAKEN = 16
# Seconds of estimate that count as confirmed before the first measurement.
_TRUST_SECONDS = 0.5


class Outlook(NamedTuple):
    """The work ahead of a sweep.

    Attributes:
        plan: the wanted problems and configs.
        tasks: the tasks that the search asks for, in about that order.
        known: number of problems that are complete in the store.
        binaries: number of binaries to compile.
        estimate: expected duration of all tasks.
        budget_seconds: rest of the budget; None for no limit.
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
    """Receives the events of a sweep."""

    def planned(self, outlook: Outlook) -> None:
        """The plan is ready; nothing is compiled yet."""
        ...

    def compiling(self, done: int, total: int) -> None:
        """`done` of `total` binaries are compiled; called from another thread."""
        ...

    def measured(self, problem: Problem, best: Best | None, summary: Summary, left: int, seconds: float) -> None:
        """A problem was stored or skipped; `left` problems remain, for about `seconds`."""
        ...


def sweep(
    bench: Bench,
    store: Store,
    plan: Plan,
    strategy: Strategy,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
    retry_failed: bool = False,
    stored: Stored | None = None,
    key: str | None = None,
) -> Summary:
    """Measure the part of the plan that the store lacks; closes the bench at the end.

    Args:
        bench: the device.
        store: for the measurements, one transaction per task.
        plan: the wanted problems and configs.
        strategy: chooses the next task, and decides when a problem is done.
        budget_seconds: no task begins that would probably end later; None for no limit.
        progress: receives each step.
        clock: seconds, for the budget.
        retry_failed: measure configs again that are stored as crashed or timed out.
        stored: coverage of the store; None to load it.
        key: of the request, for the protocol of a run that leaves nothing; see `resume.key_of`.

    Raises:
        NormtuneError: the device or the store failed, or the store lacks measurements that it was given. All
            measurements are in the store, or in the file that the message names.
    """
    begun = clock()
    stored = store.coverage(bench.device, bench.regime) if stored is None else stored
    search = _search(bench, store, plan, strategy, retry_failed, stored)
    tasks = tuple(search.left())
    before = {task.problem for task in plan.tasks} - {task.problem for task in tasks}
    summary = Summary(known=len(plan.tasks) - len(tasks), known_failed=without_times(stored, before))
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
    report = getattr(search, "report", None)
    keeper = RunWriter(store, begun_run(bench, search.name, report(is_over=False) if report else {}))
    unsaid: list[tuple[Problem, Best | None]] = []

    def save() -> None:
        """Store the task before, and only then say that it was measured."""
        keeper.flush()
        while unsaid:
            problem, best = unsaid.pop()
            if progress:
                progress.measured(problem, best, summary, summary.left, summary.left_seconds)

    try:
        bench.examine(tasks)
        while task := going.next():
            best = None
            start = clock()
            try:
                outcomes = bench.measure(task, search.race(task), save)
            except SkippedError as error:
                save()
                summary.skipped[str(error)] += 1
                search.tell(task, {})
            else:
                save()
                keeper.add(measurements(task, outcomes, keeper.run.id))
                best = summary.add(task.problem, outcomes)
                going.measured(task, clock() - start)
                search.tell(task, outcomes)
            left = {task.problem for task in search.left()}
            summary.left, summary.left_seconds = len(left), going.left_seconds(left)
            unsaid.append((task.problem, best))
        save()
    finally:
        summary.phases = bench.phases()
        is_done = key is not None and not summary.left and not summary.skipped
        ended = ({"finished": key} if is_done else {}) | (report() if report else {})
        keeper.end(_protocol(search.name, summary.phases, machine, going.estimated) | ended | bench.close())
        summary.seconds = clock() - planned
    return summary


def look_ahead(
    bench: Bench,
    store: Store | None,
    plan: Plan,
    strategy: Strategy,
    budget_seconds: float | None = None,
    retry_failed: bool = False,
    stored: Stored | None = None,
) -> Outlook:
    """The outlook of a sweep of the plan, given the store, if there is one. Measures only the speed of the machine.

    `stored` replaces the coverage of the store; None keeps it. Other arguments as in `sweep`.
    """
    search = _search(bench, store, plan, strategy, retry_failed, stored)
    return _outlook(plan, tuple(search.left()), _pace(bench, store, search)[0], budget_seconds)


def _search(
    bench: Bench,
    store: Store | None,
    plan: Plan,
    strategy: Strategy,
    retry_failed: bool,
    stored: Stored | None = None,
) -> Search:
    """A search of the plan that knows the stored measurements."""
    if stored is None:
        stored = store.coverage(bench.device, bench.regime) if store else {}
    return strategy(plan.tasks, known(stored, {task.problem.operator for task in plan.tasks}, retry_failed))


def _outlook(plan: Plan, tasks: tuple[Task, ...], pace: Pace, budget_seconds: float | None) -> Outlook:
    binaries = len(Plan(tasks, {}).jobs())
    return Outlook(plan, tasks, len(plan.tasks) - len(tasks), binaries, pace.estimate(tasks), budget_seconds)


def _pace(bench: Bench, store: Store | None, search: Search) -> tuple[Pace, dict[str, Any]]:
    """Speed of this machine, and the same as entries of a run's protocol."""
    speed, python = bench.speed(), python_seconds()
    correction = corrected(store.runs(), bench.device, bench.regime) if store else 1.0
    recorded = {"speed": speed._asdict() | {"python_seconds": round(python, 5)}, "correction": round(correction, 3)}
    return Pace(speed, bench.target, search.expected_blocks, python, correction, bench.regime), recorded


class _Going:
    """The tasks of a search, and the time left for them."""

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
        self._of_problem: defaultdict[Problem, float] = defaultdict(float)
        for task in outlook.tasks:
            self._of_problem[task.problem] += self._expects(task)
        self._turn = {task.problem: turn for turn, task in enumerate(outlook.tasks)}
        self._taken = 0.0
        self.estimated = 0.0

    def next(self) -> Task | None:
        """The next task: its binaries are compiled and its expected time is left."""
        now = self._clock()
        if now >= self._end:
            return None
        self._bench.prepare(self._choices(now), self._compiling)
        waiting: list[Task] = []
        for task in self._choices(now):
            if self._bench.compiled(task, 0.0):
                return task
            waiting.append(task)
            if len(waiting) == _OVERTAKEN:
                break
        if not waiting:
            return None
        first = min(waiting, key=lambda task: self._turn.get(task.problem, math.inf))
        patience = self._patience(first, now)
        return first if self._bench.compiled(first, None if math.isinf(patience) else patience) else None

    def measured(self, task: Task, seconds: float) -> None:
        """Record the duration of a task."""
        self.estimated += self._expects(task)
        self._taken += seconds

    def left_seconds(self, left: Collection[Problem]) -> float:
        """Expected time of the problems left, scaled by what all tasks of the others took."""
        expected = sum(self._of_problem[problem] for problem in left)
        done = sum(self._of_problem.values()) - expected
        return expected * (self._taken + _TRUST_SECONDS) / (done + _TRUST_SECONDS)

    def _choices(self, now: float) -> Iterator[Task]:
        """The tasks that the search asks for and that may begin."""
        asked = self._search.ask(self._end - now)
        return (task for task in asked if self._patience(task, now) >= 0)

    def _scale(self) -> float:
        return (self._taken + _TRUST_SECONDS) / (self.estimated + _TRUST_SECONDS)

    def _patience(self, task: Task, now: float) -> float:
        """Seconds that a task may be waited for and still end in time; negative if it may not begin."""
        return self._end - now - _CAUTION * self._scale() * self._expects(task)

    def _expects(self, task: Task) -> float:
        """Expected seconds of a task on this machine."""
        if task not in self._expected:
            self._expected[task] = self._pace.measuring(task, new_binaries(task, self._seen))
        return self._expected[task]


def _protocol(strategy: str, phases: Phases, machine: Mapping[str, Any], estimated: float) -> dict[str, Any]:
    """Protocol of a run; `estimated_seconds` are those of gate and timing."""
    seconds = {name: round(getattr(phases, name), 3) for name in ("compile", "gate", "timing")}
    protocol = {"strategy": strategy, **phases.protocol, "seconds": seconds, "estimated_seconds": round(estimated, 3)}
    return protocol | dict(machine)
