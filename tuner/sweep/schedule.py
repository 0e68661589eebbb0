"""Which task of a search begins next on a device, and how long the rest takes.

In: the search, compiled binaries, the seconds of measured tasks. Out: the next task, the seconds left.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Search

# Part of the budget that is kept for closing the device and the store.
_MARGIN_SECONDS = 1.0
# A task may begin if this many times the duration of the longest so far is left, or of these seconds for the first.
_CAUTION = 1.2
_FIRST_SECONDS = 1.0
# Most tasks that a task with compiled binaries may overtake.
_OVERTAKEN = 16
# Number of measured problems before which nothing is said of the time left.
_FEW = 3


class Schedule:
    """Chooses the next task of a search, and tells the time left by what the measured tasks took.

    Args:
        bench: a device of those that share the search.
        search: over the tasks.
        tasks: of the search, at the start.
        end: time on the clock at which everything must be stored; infinite without a budget.
        clock: returns seconds.
        on_compiled: called from another thread with the number of compiled binaries.
    """

    def __init__(
        self,
        bench: Bench,
        search: Search,
        tasks: Iterable[Task],
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        on_compiled: Callable[[int], None] | None = None,
    ) -> None:
        self._bench = bench
        self._search = search
        self._clock = clock
        self._on_compiled = on_compiled
        self._end = end - _MARGIN_SECONDS
        self._turn = {task.problem: turn for turn, task in enumerate(tasks)}
        self._tasks, self._longest = 0, _FIRST_SECONDS
        # The configs that were measured at each problem; seconds and configs by operator.
        self._measured: dict[Problem, set[Config]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._configs: Counter[str] = Counter()

    def next(self, may_begin: Callable[[Task], bool] = lambda task: True, waits: bool = True) -> Task | None:
        """The next task, with compiled binaries and enough time left; None without one.

        Args:
            may_begin: whether the device may take a task.
            waits: whether to wait for the binaries of the first task if none is ready.
        """
        slack = self._slack()
        if slack < 0:
            return None
        self._bench.prepare(self._search.ask(), self._on_compiled)
        waiting: list[Task] = []
        for task in filter(may_begin, self._search.ask()):
            if self._bench.compiled(task, 0.0):
                return task
            waiting.append(task)
            if len(waiting) == _OVERTAKEN:
                break
        if not waiting or not waits:
            return None
        first = min(waiting, key=lambda task: self._turn.get(task.problem, math.inf))
        return first if self._bench.compiled(first, None if math.isinf(slack) else slack) else None

    def measured(self, task: Task, seconds: float) -> None:
        """Record the duration of a task."""
        # The first task loads kernels, so that it tells nothing of the others.
        self._longest = max(self._longest, seconds) if self._tasks > 1 else seconds
        self._tasks += 1
        configs = self._measured.setdefault(task.problem, set())
        before = len(configs)
        configs.update(task.configs)
        self._configs[task.problem.operator] += len(configs) - before
        self._seconds[task.problem.operator] += seconds

    def left_seconds(self, tasks: Iterable[Task]) -> float | None:
        """Time of the tasks left on one device, seconds; None before a few problems were measured.

        A config takes as long as the measured ones of its operator did, in all of their tasks; those of an operator
        without any as long as all others.
        """
        if len(self._measured) < _FEW:
            return None
        mean = sum(self._seconds.values()) / self._configs.total()
        rates = {name: self._seconds[name] / count for name, count in self._configs.items()}
        return sum(len(task.candidates) * rates.get(task.problem.operator, mean) for task in tasks)

    def has_time(self, tasks: int) -> bool:
        """Whether one device can measure so many tasks more."""
        return self._slack(tasks) >= 0

    def _slack(self, tasks: int = 1) -> float:
        """Longest wait before so many tasks that still lets them end in time, seconds; negative if there is none."""
        return self._end - self._clock() - _CAUTION * tasks * self._longest
