"""The loop of a sweep: measures the tasks that the store lacks, and stores each while the next one is measured.

In: a bench, a store, a plan and a search, which chooses tasks and rounds. Out: measurements in the store, and a
`Summary`. A kill loses at most the current task and the previous one; the same call continues.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.results.records import REQUEST
from normtune.tuner.device.open import Bench, Phases, SkippedError
from normtune.tuner.plan.estimate import Estimate, Pace, corrected, new_binaries, python_seconds
from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.plan.resume import Stored, known, without_times
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.sweep.run_writer import RunWriter, measurements, new_run
from normtune.tuner.sweep.summary import Best, Summary

# Part of the budget that is kept for closing the device and the store.
_MARGIN_SECONDS = 1.0
# A task may begin if this many times its expected duration is left of the budget.
_CAUTION = 1.2
# Most tasks that a task with compiled binaries may overtake.
_OVERTAKEN = 16
# Weight of the estimate before the first measurement, as if this many of its seconds had been confirmed.
_TRUST_SECONDS = 0.5


class Outlook(NamedTuple):
    """The work ahead of a sweep.

    Attributes:
        plan: the wanted problems and configs.
        tasks: the tasks of the search, in about the order of measuring.
        known: number of problems that are complete in the store.
        binaries: number of binaries to compile.
        estimate: expected duration of all tasks.
        budget_seconds: rest of the budget; None for no limit.
        longest: how many times as long gate and timing may take, where the search cannot say how long it will be.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    known: int
    binaries: int
    estimate: Estimate
    budget_seconds: float | None
    longest: float = 1.0

    @property
    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return Plan(self.tasks, {}).cells()


class Progress(Protocol):
    """Receives the events of a sweep."""

    def planned(self, outlook: Outlook) -> None:
        """The plan is complete; nothing is compiled yet."""
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
        strategy: creates the search.
        budget_seconds: tasks that would probably end later do not begin; None for no limit.
        progress: receives the events.
        clock: returns seconds, for the budget.
        retry_failed: whether to repeat configs that are stored as crashed or timed out.
        stored: coverage of the store; None to load it.
        key: of the request, stored with the run; tasks then begin in the order of the search, none before an earlier
            one that the budget has no time for, so that a budget does not change what is measured in the end.

    Raises:
        NormtuneError: the device or the store failed. All measurements are in the store, or in the file that the
            message names.
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
    outlook = _outlook(plan, search, tasks, pace, budget_seconds)
    if progress:
        progress.planned(outlook)
    planned = clock()
    summary.starting_seconds = planned - begun
    schedule = _Schedule(bench, search, pace, outlook, begun, clock, progress, is_ordered=key is not None)
    summary.total = summary.left = len(tasks)
    summary.left_seconds = outlook.estimate.seconds
    request = {} if key is None else {REQUEST: key}
    writer = RunWriter(store, new_run(bench, search.name, request | search.report(is_over=False)))
    unreported: list[tuple[Problem, Best | None]] = []

    def save() -> None:
        """Store the previous task, then report it."""
        writer.flush()
        while unreported:
            problem, best = unreported.pop()
            if progress:
                progress.measured(problem, best, summary, summary.left, summary.left_seconds)

    try:
        bench.examine(tasks)
        while task := schedule.next():
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
                writer.add(measurements(task, outcomes, writer.run.id))
                best = summary.add(task.problem, outcomes)
                schedule.measured(task, clock() - start)
                search.tell(task, outcomes)
            left, coming = search.left(), search.coming()
            summary.expect(left, coming)
            summary.left_seconds = schedule.left_seconds([*left, *coming])
            unreported.append((task.problem, best))
        save()
    finally:
        summary.phases, summary.unguided = bench.phases(), search.unguided
        is_done = key is not None and not summary.left and not summary.skipped
        entries = request | ({"finished": key} if is_done else {}) | search.report()
        writer.end(_protocol(search.name, summary.phases, machine, schedule.estimated) | entries | bench.close())
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
    """The outlook of a sweep; it measures only the speed of the machine. Arguments as in `sweep`."""
    search = _search(bench, store, plan, strategy, retry_failed, stored)
    return _outlook(plan, search, tuple(search.left()), _pace(bench, store, search)[0], budget_seconds)


def _search(
    bench: Bench,
    store: Store | None,
    plan: Plan,
    strategy: Strategy,
    retry_failed: bool,
    stored: Stored | None = None,
) -> Search:
    if stored is None:
        stored = store.coverage(bench.device, bench.regime) if store else {}
    return strategy(plan.tasks, known(stored, {task.problem.operator for task in plan.tasks}, retry_failed))


def _outlook(plan: Plan, search: Search, tasks: tuple[Task, ...], pace: Pace, budget_seconds: float | None) -> Outlook:
    binaries, longest = len(Plan(tasks, {}).jobs()), search.longest
    return Outlook(plan, tasks, len(plan.tasks) - len(tasks), binaries, pace.estimate(tasks), budget_seconds, longest)


def _pace(bench: Bench, store: Store | None, search: Search) -> tuple[Pace, dict[str, Any]]:
    """Speed of this machine, and the same as entries of a run's protocol."""
    speed, python = bench.speed(), python_seconds()
    correction = corrected(store.runs(), bench.device, bench.regime) if store else 1.0
    recorded = {"speed": speed._asdict() | {"python_seconds": round(python, 5)}, "correction": round(correction, 3)}
    return Pace(speed, bench.target, search.expected_blocks, python, correction, bench.regime), recorded


class _Schedule:
    """Chooses the next task of a search, and estimates the time left."""

    def __init__(
        self,
        bench: Bench,
        search: Search,
        pace: Pace,
        outlook: Outlook,
        begun: float,
        clock: Callable[[], float],
        progress: Progress | None,
        is_ordered: bool = False,
    ) -> None:
        self._is_ordered = is_ordered
        self._bench = bench
        self._search = search
        self._pace = pace
        self._clock = clock
        self._compiling = (lambda done: progress.compiling(done, outlook.binaries)) if progress else None
        self._end = math.inf if outlook.budget_seconds is None else begun + outlook.budget_seconds - _MARGIN_SECONDS
        self._seen: set[object] = set()
        self._expected: dict[Task, float] = {}
        # Expected seconds of a config of each problem; the configs that were measured, and theirs by operator.
        self._each: dict[Problem, float] = {}
        self._met: defaultdict[Problem, set[Candidate]] = defaultdict(set)
        self._done: defaultdict[str, float] = defaultdict(float)
        for task in outlook.tasks:
            self._each_of(task)
        self._turn = {task.problem: turn for turn, task in enumerate(outlook.tasks)}
        # Seconds by operator: the estimate of one may be far off, as it assumes kernels that are memory bound.
        self._measured: defaultdict[str, float] = defaultdict(float)
        self._estimated: defaultdict[str, float] = defaultdict(float)

    @property
    def estimated(self) -> float:
        """Estimated seconds of the tasks that were measured."""
        return sum(self._estimated.values())

    def next(self) -> Task | None:
        """The next task, with compiled binaries and enough time left; None at the end."""
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
        slack = self._slack(first, now)
        return first if self._bench.compiled(first, None if math.isinf(slack) else slack) else None

    def measured(self, task: Task, seconds: float) -> None:
        """Record the duration of a task."""
        met = self._met[task.problem]
        before = len(met)
        met.update(task.candidates)
        self._done[task.problem.operator] += (len(met) - before) * self._each_of(task)
        self._estimated[task.problem.operator] += self._expected_seconds(task)
        self._measured[task.problem.operator] += seconds

    def left_seconds(self, left: Iterable[Task]) -> float:
        """Expected time of the tasks left, scaled by what those that were measured took.

        A problem's configs may be measured in several tasks and again in others: the time that a config took with all
        of these is that of those left, too. A task of few configs takes at least its own time.
        """
        seconds = 0.0
        for task in filter(lambda task: task.candidates, left):
            name, own = task.problem.operator, self._pace.measuring(task, 0)
            shared = len(task.candidates) * self._each_of(task)
            seconds += max(own * self._scale(name, self._estimated), shared * self._scale(name, self._done))
        return seconds

    def _choices(self, now: float) -> Iterator[Task]:
        """The tasks of the search that may begin."""
        chosen = takewhile if self._is_ordered else filter
        return chosen(lambda task: self._slack(task, now) >= 0, self._search.ask(self._end - now))

    def _scale(self, operator: str, done: Mapping[str, float]) -> float:
        """Measured over expected time of an operator; `done` has the expected seconds of measured tasks.

        Before its first measurement it is the ratio of the other operators, and 1 for the first operator.
        """
        own, others = done.get(operator, 0.0), sum(done.values())
        measured = self._measured[operator]
        rest = sum(self._measured.values()) - measured
        before = (rest + _TRUST_SECONDS) / (others - own + _TRUST_SECONDS)
        return (measured + _TRUST_SECONDS * before) / (own + _TRUST_SECONDS)

    def _slack(self, task: Task, now: float) -> float:
        """Longest wait before a task that still lets it end in time, seconds; negative if it must not begin."""
        scale = self._scale(task.problem.operator, self._estimated)
        return self._end - now - _CAUTION * scale * self._expected_seconds(task)

    def _each_of(self, task: Task) -> float:
        """Expected seconds of a config of a task's problem, as of its first task."""
        if task.problem not in self._each:
            self._each[task.problem] = self._pace.measuring(task, 0) / max(1, len(task.candidates))
        return self._each[task.problem]

    def _expected_seconds(self, task: Task) -> float:
        if task not in self._expected:
            self._expected[task] = self._pace.measuring(task, new_binaries(task, self._seen))
        return self._expected[task]


def _protocol(strategy: str, phases: Phases, machine: Mapping[str, Any], estimated: float) -> dict[str, Any]:
    """Protocol of a run; `estimated_seconds` are those of gate and timing."""
    seconds = {name: round(getattr(phases, name), 3) for name in ("compile", "gate", "timing")}
    protocol = {"strategy": strategy, **phases.protocol, "seconds": seconds, "estimated_seconds": round(estimated, 3)}
    return protocol | dict(machine)
