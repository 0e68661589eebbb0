"""The search at the shapes where the thresholds of a table are least certain.

In: see `protocol`; the trees of the table's functions, and a loss. Out: the tasks of disputed shapes, raced as in
`race`; first those that may lose most and lie farthest from measured shapes. It ends when all disputes of a function
together can raise its mean loss by no more than the given loss, which is estimated anew after each task.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.tree import Tree, told
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.disputes import Disputes, MedianTimes
from normtune.tuner.search.protocol import Known, Race

# Number of uncertain thresholds that are printed for each function.
_SHOWN = 2


class Refinement(NamedTuple):
    """The functions of a table to refine.

    Attributes:
        trees: of the functions.
        until: loss that all thresholds of a function together may have, a fraction.
        shapes: shapes that can be measured, by function.
    """

    trees: Mapping[Key, Tree]
    until: float
    shapes: Mapping[Key, Sequence[Shape]]

    def disputes(self, known: Known) -> dict[Key, Disputes]:
        """The disputes of each function that has measurements."""
        measured: dict[Key, dict[Shape, MedianTimes]] = {key: {} for key in self.trees}
        for problem, configs in known.items():
            medians = {config: state.median_ns for config, state in configs.items() if state.median_ns is not None}
            if problem.key in measured and medians:
                measured[problem.key][problem.shape] = medians
        return {key: Disputes(self.trees[key], self.shapes[key], shapes) for key, shapes in measured.items() if shapes}


class Refine:
    """A `protocol.Search`.

    Args:
        tasks: of shapes that may be disputed.
        known: stored measurements, including those that the table was fitted to.
        refinement: the table's trees, and when to stop.
    """

    name = "refine"
    expected_blocks = 6.0  # as `race`

    def __init__(self, tasks: Sequence[Task], known: Known, refinement: Refinement) -> None:
        self._until = refinement.until
        self._tasks = {task.problem: task for task in tasks}
        self._disputes = refinement.disputes(known)
        self._left: Sequence[Task] | None = None

    def left(self) -> Sequence[Task]:
        """The tasks that have to be measured, from the present estimate, the most useful first."""
        if self._left is None:
            self._left = self._wanted()
        return self._left

    def ask(self, seconds: float) -> Iterator[Task]:
        """As `left`, whatever the budget."""
        return iter(self.left())

    def race(self, task: Task) -> Race:
        """A race of all configs; `ask` no longer yields the task."""
        from normtune.tuner.search.race import race  # loads scipy, which a sweep with nothing to measure does not need

        self._left = None
        del self._tasks[task.problem]
        self._of(task).take(task.problem.shape)
        return race(task.configs)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the median times of a shape."""
        self._left = None
        times = {config: outcomes[config].nanoseconds for config in task.configs if config in outcomes}
        medians = {config: float(np.median(values)) for config, values in times.items() if len(values)}
        self._of(task).learn(task.problem.shape, medians)

    def lines(self) -> list[str]:
        """The loss that the thresholds of each function can still have, with the least certain ones."""
        lines = []
        for key, disputes in self._disputes.items():
            total = sum(dispute.loss * dispute.share for dispute in disputes.open())
            uncertain = [
                f"{told(threshold.axis, threshold.at)} (measured at {threshold.below} and {threshold.above}): "
                f"{100 * threshold.loss:.2f} %"
                for threshold in disputes.thresholds()[:_SHOWN]
            ]
            text = f"{key}: thresholds can lose {100 * total:.2f} % of the mean"
            lines.append("; ".join([text, *uncertain]))
        return lines

    def _wanted(self) -> Sequence[Task]:
        wanted: list[tuple[float, Task]] = []
        for key, disputes in self._disputes.items():
            disputed = disputes.open()
            rest = sum(dispute.loss * dispute.share for dispute in disputed)
            for dispute in disputed:
                if rest <= self._until:
                    break
                rest -= dispute.loss * dispute.share
                task = self._tasks.get(Problem(key, *dispute.shape))
                if task:
                    wanted.append((dispute.worth, task))
        return [task for _, task in sorted(wanted, key=lambda pair: (-pair[0], pair[1].problem.columns))]

    def _of(self, task: Task) -> Disputes:
        return self._disputes[task.problem.key]
