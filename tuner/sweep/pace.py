"""The pace of a sweep: whether a further task ends in time, and how long the rest takes.

In: the seconds of measured tasks, the end of the budget. Out: seconds.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.tuner.plan.plan import Task

# Part of the budget that is kept for closing the device and the store.
_MARGIN_SECONDS = 1.0
# A task may begin if this many times the duration of the longest so far is left, or of these seconds for the first.
_CAUTION = 1.2
_FIRST_SECONDS = 1.0
# Number of measured problems before which nothing is said of the time left.
_FEW = 3


class Pace:
    """What the tasks of a search took.

    Args:
        end: time on the clock at which everything must be stored; infinite without a budget.
        clock: returns seconds.
    """

    def __init__(self, end: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._end, self._clock = end - _MARGIN_SECONDS, clock
        self._tasks, self._longest = 0, _FIRST_SECONDS
        # The configs that were measured at each problem; seconds and configs by operator.
        self._measured: dict[Problem, set[Config]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._configs: Counter[str] = Counter()

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

    def slack(self, tasks: int = 1) -> float:
        """Longest wait before so many tasks that still lets them end in time, seconds; negative if there is none."""
        return self._end - self._clock() - _CAUTION * tasks * self._longest

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
