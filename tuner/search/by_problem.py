"""Base class of searches that measure each problem once, in the order of `task_queue`.

In: see `protocol`. A subclass defines the race of a task and may define which configs to measure.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from normtune.kernels.config import Config
from normtune.results.records import ROUNDS_PER_BLOCK, Coverage, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.protocol import Previous, Race, Search, medians_of


class ByProblem(Search):
    """A `protocol.Search`.

    Attributes:
        least_blocks: a config timed in this many blocks is not measured again.
    """

    least_blocks: int

    def __init__(self, tasks: Sequence[Task], previous: Previous) -> None:
        lacking = (self._lacking(task, previous.get(task.problem, {})) for task in tasks)
        medians = {problem: medians_of(configs) for problem, configs in previous.items()}
        self._queue = TaskQueue([task for task in lacking if task], medians)

    @abstractmethod
    def batches(self, task: Task) -> Race:
        """The race of a task."""

    def remaining(self, task: Task, previous: Mapping[Config, Coverage]) -> Sequence[Candidate]:
        """The candidates of a problem still to be measured; none if it is done."""
        least = ROUNDS_PER_BLOCK * self.least_blocks
        done = {config for config, coverage in previous.items() if coverage.status != "ok" or coverage.samples >= least}
        return [candidate for candidate in task.candidates if candidate.config not in done]

    def pending(self) -> Sequence[Task]:
        """The tasks not yet begun, in the order of coverage."""
        return self._queue.pending()

    def ask(self) -> Iterator[Task]:
        """The tasks, most useful first."""
        return self._queue.choices()

    def race(self, task: Task) -> Race:
        """The batches of a task, which `ask` no longer yields."""
        self._queue.take(task)
        return self.batches(task)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the median times of a problem to the queue, which orders the rest by them."""
        medians = {c: int(np.median(o.nanoseconds)) for c, o in outcomes.items() if len(o.nanoseconds)}
        self._queue.learn(task.problem, medians)

    def _lacking(self, task: Task, previous: Mapping[Config, Coverage]) -> Task | None:
        """The remaining configs of a task, with the best measured config as an anchor; None if there are none."""
        remaining, medians = self.remaining(task, previous), medians_of(previous)
        if not remaining:
            return None
        done = set(task.candidates).difference(remaining)
        timed = [(medians[candidate.config], candidate) for candidate in done if candidate.config in medians]
        anchors = [min(timed)[1]] if timed else []
        return Task(task.problem, tuple(sorted([*remaining, *anchors])))
