"""The search at the shapes where the thresholds of a table are least certain.

In: see `protocol`; the trees of the table's functions, and a loss. Out: the tasks whose shapes are disputed, those that
may lose most and lie farthest from what was measured first, raced as `race` does. It ends when all disputes of each
function together can lose no more than that in its mean, so no threshold can. The estimate is made again after each
task.
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

# Uncertain thresholds that are printed of each function.
_SHOWN = 2


class Refinement(NamedTuple):
    """What a search refines.

    Attributes:
        trees: of the functions of the table.
        until: loss that all thresholds of a function together may have: a fraction.
        shapes: that can be measured, by function.
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
        tasks: of shapes that may be disputed; others are never asked for.
        known: stored measurements, those that the table was fitted to among them.
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
        """The tasks that have to be measured as far as is known now, the most useful first."""
        if self._left is None:
            self._left = self._wanted()
        return self._left

    def ask(self, seconds: float) -> Iterator[Task]:
        """As `left`: the estimate of what is disputed has no use for a budget."""
        return iter(self.left())

    def race(self, task: Task) -> Race:
        """A race of all configs; the task is not asked for again."""
        from normtune.tuner.search.race import race  # loads scipy, which a sweep with nothing to do has no use for

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
            total = sum(one.loss * one.share for one in disputes.open())
            uncertain = [
                f"{told(one.axis, one.at)} (measured at {one.below} and {one.above}): {100 * one.loss:.2f} %"
                for one in disputes.thresholds()[:_SHOWN]
            ]
            text = f"{key}: thresholds can lose {100 * total:.2f} % of the mean"
            lines.append("; ".join([text, *uncertain]))
        return lines

    def _wanted(self) -> Sequence[Task]:
        wanted: list[tuple[float, Task]] = []
        for key, disputes in self._disputes.items():
            disputed = disputes.open()
            rest = sum(one.loss * one.share for one in disputed)
            for one in disputed:
                if rest <= self._until:
                    break
                rest -= one.loss * one.share
                task = self._tasks.get(Problem(key, *one.shape))
                if task:
                    wanted.append((one.worth, task))
        return [task for _, task in sorted(wanted, key=lambda pair: (-pair[0], pair[1].problem.columns))]

    def _of(self, task: Task) -> Disputes:
        return self._disputes[task.problem.key]
