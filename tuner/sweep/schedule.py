"""Which task of a search begins next on a device, and how long the rest takes.

In: the search, compiled binaries, the expected and the measured time of tasks. Out: the next task, the time left.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from normtune.kernels.problem import Problem
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.estimate import Pace, new_binaries
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.protocol import Search

# Part of the budget that is kept for closing the device and the store.
_MARGIN_SECONDS = 1.0
# A task may begin if this many times its expected duration is left of the budget.
_CAUTION = 1.2
# Most tasks that a task with compiled binaries may overtake.
_OVERTAKEN = 16
# Weight of the estimate before the first measurement, as if this many of its seconds had been confirmed.
_TRUST_SECONDS = 0.5


class Schedule:
    """Chooses the next task of a search, and estimates the time left.

    Args:
        bench: a device of those that share the search.
        search: over the tasks.
        pace: expected times.
        tasks: of the search, at the start.
        end: time on the clock at which everything must be stored; infinite without a budget.
        clock: returns seconds.
        on_compiled: called from another thread with the number of compiled binaries.
    """

    def __init__(
        self,
        bench: Bench,
        search: Search,
        pace: Pace,
        tasks: Iterable[Task],
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        on_compiled: Callable[[int], None] | None = None,
    ) -> None:
        self._bench = bench
        self._search = search
        self._pace = pace
        self._clock = clock
        self._on_compiled = on_compiled
        self._end = end - _MARGIN_SECONDS
        self._seen: set[object] = set()
        self._expected: dict[Task, float] = {}
        # Expected seconds of a config of each problem; the configs that were measured, and theirs by operator.
        self._each: dict[Problem, float] = {}
        self._met: defaultdict[Problem, set[Candidate]] = defaultdict(set)
        self._done: defaultdict[str, float] = defaultdict(float)
        # The last task of a problem that was left, and its seconds: most are left again, many times.
        self._own: dict[Problem, tuple[Task, float]] = {}
        self._turn: dict[Problem, int] = {}
        for turn, task in enumerate(tasks):
            self._each_of(task)
            self._turn[task.problem] = turn
        # Seconds by operator: the estimate of one may be far off, as it assumes kernels that are memory bound.
        self._measured: defaultdict[str, float] = defaultdict(float)
        self._estimated: defaultdict[str, float] = defaultdict(float)

    def next(self, may_begin: Callable[[Task], bool] = lambda task: True, waits: bool = True) -> Task | None:
        """The next task, with compiled binaries and enough time left; None without one.

        Args:
            may_begin: whether the device may take a task.
            waits: whether to wait for the binaries of the first task if none is ready.
        """
        now = self._clock()
        if now >= self._end:
            return None
        self._bench.prepare(self._choices(now), self._on_compiled)
        waiting: list[Task] = []
        for task in filter(may_begin, self._choices(now)):
            if self._bench.compiled(task, 0.0):
                return task
            waiting.append(task)
            if len(waiting) == _OVERTAKEN:
                break
        if not waiting or not waits:
            return None
        first = min(waiting, key=lambda task: self._turn.get(task.problem, math.inf))
        slack = self._slack(first, now)
        return first if self._bench.compiled(first, None if math.isinf(slack) else slack) else None

    def measured(self, task: Task, seconds: float) -> float:
        """Record the duration of a task; returns the estimated one."""
        met = self._met[task.problem]
        before = len(met)
        met.update(task.candidates)
        estimated = self._expected_seconds(task)
        self._done[task.problem.operator] += (len(met) - before) * self._each_of(task)
        self._estimated[task.problem.operator] += estimated
        self._measured[task.problem.operator] += seconds
        return estimated

    def left_seconds(self, left: Iterable[Task]) -> float:
        """Expected time of the tasks left on one device, scaled by what those that were measured took.

        A problem's configs may be measured in several tasks and again in others: the time that a config took with all
        of these is that of those left, too. A task of few configs takes at least its own time.
        """
        seconds = 0.0
        for task in filter(lambda task: task.candidates, left):
            name, own = task.problem.operator, self._own_seconds(task)
            shared = len(task.candidates) * self._each_of(task)
            seconds += max(own * self._scale(name, self._estimated), shared * self._scale(name, self._done))
        return seconds

    def has_time(self, tasks: Iterable[Task]) -> bool:
        """Whether one device can measure these tasks, too."""
        return self._clock() + _CAUTION * self.left_seconds(tasks) < self._end

    def _choices(self, now: float) -> Iterator[Task]:
        """The tasks of the search that may begin."""
        return filter(lambda task: self._slack(task, now) >= 0, self._search.ask(self._end - now))

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

    def _own_seconds(self, task: Task) -> float:
        """Expected seconds of a task alone."""
        before = self._own.get(task.problem)
        if before is None or before[0] != task:
            before = self._own[task.problem] = task, self._pace.measuring(task, 0)
        return before[1]

    def _each_of(self, task: Task) -> float:
        """Expected seconds of a config of a task's problem, as of its first task."""
        if task.problem not in self._each:
            self._each[task.problem] = self._pace.measuring(task, 0) / max(1, len(task.candidates))
        return self._each[task.problem]

    def _expected_seconds(self, task: Task) -> float:
        if task not in self._expected:
            self._expected[task] = self._pace.measuring(task, new_binaries(task, self._seen))
        return self._expected[task]
