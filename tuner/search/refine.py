"""The search at the shapes where a table is expected to lose most.

In: see `protocol`; the trees of the table's functions, and a loss. Out: tasks of shapes, raced as in `race`: first
those that may lose most and lie farthest from measured shapes, with the table's configs and those that are nearly the
best at measured neighbours; every third one is drawn at random and has all configs. It ends when the mean loss of a
function at the shapes that were not measured is expected to be no more than the given loss, which is estimated anew
after each task. Before them come the table's own configs without a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.results.records import Outcome
from normtune.tuner.plan.neighbours import MedianTimes
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.disputes import LEAST_DRAWN, Disputes
from normtune.tuner.search.exhaustive import all_rounds
from normtune.tuner.search.protocol import Previous, Race, Search, medians_of

# Of so many shapes one is drawn at random and all of its configs are raced, so that the loss at the others is estimated
# without bias.
_DRAW_EVERY = 3


class Refinement(NamedTuple):
    """The functions of a table to refine.

    Attributes:
        choices: trees of these and of the batch-invariant ones; their configs are timed wherever a shape is measured.
        until: mean loss that a function may have at shapes that were not measured, a fraction.
        shapes: shapes that can be measured, by function.
    """

    choices: Mapping[Key, Tree]
    until: float
    shapes: Mapping[Key, Sequence[Shape]]

    def disputes(self, previous: Previous) -> dict[Key, Disputes]:
        """The disputes of each function that has measurements."""
        measured: dict[Key, dict[Shape, MedianTimes]] = {key: {} for key in self.shapes}
        for problem, configs in previous.items():
            if problem.key in measured and (medians := medians_of(configs)):
                measured[problem.key][problem.shape] = medians
        return {key: Disputes(self.shapes[key], shapes) for key, shapes in measured.items() if shapes}


def answers_at(trees: Mapping[Key, Tree], problem: Problem) -> set[Config]:
    """The configs of the functions that serve a problem, the usual and the batch-invariant one."""
    keys = (problem.key, problem.key.batch_invariant)
    serving = (next((trees[name] for name in key.names if name in trees), None) for key in keys)
    return {choose(tree, problem.shape) for tree in serving if tree is not None}


class Refine(Search):
    """A `protocol.Search`.

    Args:
        tasks: of the disputed shapes.
        previous: includes the measurements that the table was fitted to.
        refinement: see the class.
        untimed: come first, with all rounds: of measured shapes, with the table's configs that have no time there.
    """

    name = "refine"

    def __init__(
        self, tasks: Sequence[Task], previous: Previous, refinement: Refinement, untimed: Sequence[Task] = ()
    ) -> None:
        self._untimed = {task.problem: task for task in untimed}
        self._until, self._choices = refinement.until, refinement.choices
        self._tasks = {task.problem: task for task in tasks}
        self._disputes = refinement.disputes(previous)
        for key, disputes in self._disputes.items():
            for shape in disputes.shapes:
                if Problem(key, *shape) not in self._tasks:
                    disputes.take(shape)
        self._pending: Sequence[Task] | None = None
        # By problem its neighbours, and the task of the configs that are nearly the best there.
        self._reduced_tasks: dict[Problem, tuple[tuple[Shape, ...], Task]] = {}

    def pending(self) -> Sequence[Task]:
        """The untimed configs, then the tasks to measure from the present estimate, the most useful first."""
        if self._pending is None:
            self._pending = [*self._untimed.values(), *self._choose()]
        return self._pending

    def ask(self) -> Iterator[Task]:
        """As `pending`."""
        return iter(self.pending())

    def race(self, task: Task) -> Race:
        """A race of the task's configs, or all rounds of untimed ones; `ask` no longer yields a disputed problem."""
        if task.problem in self._untimed:
            return all_rounds(task)
        from normtune.tuner.search.race import race  # loads scipy, which a sweep with nothing to measure does not need

        self._pending = None
        self._tasks.pop(task.problem, None)  # it is no longer there if the device of its first race was lost
        self._of(task).take(task.problem.shape)
        return race(task.configs)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the median times of a shape."""
        self._pending = None
        if self._untimed.pop(task.problem, None):
            return
        times = {config: outcomes[config].nanoseconds for config in task.configs if config in outcomes}
        medians = {config: float(np.median(values)) for config, values in times.items() if len(values)}
        self._of(task).learn(task.problem.shape, medians)

    def expected(self) -> dict[Key, float | None]:
        """The mean loss, a log ratio, of each function to be expected where nobody measured; see `Disputes`."""
        return {key: disputes.expected for key, disputes in self._disputes.items()}

    def report(self) -> Mapping[str, list[str]]:
        """`refinement`: for each function the loss to be expected elsewhere."""
        lines = []
        for key, disputes in self._disputes.items():
            loss = disputes.expected
            text = f"too few shapes ({LEAST_DRAWN} drawn at random) to say" if loss is None else f"{100 * loss:.2f} %"
            lines.append(f"{key}: expected loss at shapes that were not measured: {text}")
        return {"refinement": lines}

    def _choose(self) -> Sequence[Task]:
        by_worth: list[tuple[float, Task]] = []
        for key, disputes in self._disputes.items():
            loss = disputes.expected
            if loss is not None and loss <= self._until:
                continue
            by_worth += [(one.worth, self._tasks[Problem(key, *one.shape)]) for one in disputes.open()]
        by_worth.sort(key=lambda pair: (-pair[0], pair[1].problem.columns))
        if by_worth and len(self._tasks) % _DRAW_EVERY == 0:
            key = by_worth[0][1].problem.key
            shape = self._disputes[key].draw()
            first = [self._tasks[Problem(key, *shape)]] if shape else []
        else:
            first = []
        return [*first, *(self._reduced(task) for _, task in by_worth if task not in first)]

    def _reduced(self, task: Task) -> Task:
        """The task with the table's configs and those that are nearly the best at a neighbour; itself without any."""
        disputes, shape = self._of(task), task.problem.shape
        near = disputes.neighbours(shape)
        before = self._reduced_tasks.get(task.problem)
        if before is None or before[0] != near:
            candidates = task.among(disputes.hopeful(shape) | answers_at(self._choices, task.problem))
            self._reduced_tasks[task.problem] = near, Task(task.problem, tuple(candidates)) if candidates else task
        return self._reduced_tasks[task.problem][1]

    def _of(self, task: Task) -> Disputes:
        return self._disputes[task.problem.key]
