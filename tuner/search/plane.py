"""The search that learns from nearby shapes which configs are worth timing, for spaces too large to time in whole.

In: see `protocol`. Out: for each problem a few tasks of some of its configs, and at the end the best configs of the
nearest shapes, so that a table finds one config that was timed at all of them.

A Gaussian process (`surrogate`) draws the times of all configs of a problem from what was measured there and at shapes
nearby. Configs are taken, greedily, that lower the mean of the best time over the draws most for what they cost, until
none is expected to gain enough; they are timed as in `adaptive`, and the problem is asked for again if there is more to
gain by then. What is asked for, and when a problem is done, follows from the seed and from what is measured: a search
that was stopped goes on, and what another one measured counts as its own.

A config costs more where no other problem had its binary compiled. Binaries are compiled only for what is taken.
Problems come in the order of `queue`, a few at a time, so that some are timed while others are compiled, and while a
thread chooses for the next: what it knows is what was known when a problem's last task ended, so that its choice does
not depend on how long it takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import Always, Task
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.adaptive import two_batches
from normtune.tuner.search.protocol import Known, Race
from normtune.tuner.search.shape import Group, ShapeSearch
from normtune.tuner.search.surrogate import Axes

# Problems begun and not yet done.
OPEN = 16
# Times the best, up to which a config is timed to the end.
CLOSE = 1.03
# Gain of audited configs, a log ratio, that doubles what the model expects to have missed where it expected none.
SURPRISE = 0.02


class Plane:
    """A `protocol.Search`.

    Args:
        tasks, known: see `protocol.Search`.
        advice: the first configs to measure at a problem.
        seed: of the draws; another one is a repeat that depends on the first by its data alone.
    """

    name = "plane"
    leaves_out = True
    # Of the candidates that `left` names, which are about as many as are timed.
    expected_blocks = 6.0

    def __init__(self, tasks: Sequence[Task], known: Known, advice: Always | None = None, seed: int = 0) -> None:
        order = [task for task in TaskQueue(tasks).left() if task.candidates]
        groups: dict[Key, Group] = {}
        for task in order:
            groups.setdefault(task.problem.key, Group([], set(), set(), set())).configs.update(task.configs)
        axes = {name: Axes(group.configs) for name, group in groups.items()}
        self._shapes: dict[Problem, ShapeSearch] = {}
        for task in order:
            name, problem = task.problem.key, task.problem
            advised = (advice or {}).get(problem, ())
            shape = ShapeSearch(task, known.get(problem, {}), axes[name], groups[name], seed, advised)
            groups[name].shapes.append(shape)
            self._shapes[problem] = shape
        self._served: dict[Problem, Task | None] = {}
        self._waiting = [shape for shape in self._shapes.values() if not shape.settle()]
        self._open: list[ShapeSearch] = []
        self._thread = ThreadPoolExecutor(1)

    def left(self) -> Sequence[Task]:
        """The problems that are not done, each with about as many configs as will be timed."""
        self._settle()
        looked_for = [shape.expected for shape in (*self._open, *self._waiting)]
        if looked_for:
            return looked_for
        self._served |= {problem: one.served() for problem, one in self._shapes.items() if problem not in self._served}
        return [task for problem in self._shapes if (task := self._served[problem]) is not None]

    def ask(self, seconds: float) -> Iterator[Task]:
        """The tasks of the open problems, the longest asked for first; when all are found, those of the neighbours."""
        self._settle()
        if not self._open:
            yield from self.left()
        for place, shape in enumerate(self._open):
            if (place == 0 or shape.has_chosen) and (task := shape.next()) is not None:
                yield task

    def hear(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes of a task of the audit, and what they say of the model."""
        self._shapes[task.problem].compare(task, outcomes)
        self.tell(task, outcomes)

    def missed(self) -> dict[str, float]:
        """What the untried configs are expected to gain: mean log ratio over problems, by operator and dtype.

        The model's expectation, times what the audited configs gained relative to what it expected of them.
        """
        found = {}
        for group in {id(shape.group): shape.group for shape in self._shapes.values()}.values():
            name = str(group.shapes[0].task.problem.key)
            expected, gained = np.sum([SURPRISE * np.ones(2), *(shape.audited for shape in group.shapes)], axis=0)
            found[name] = float(np.mean([shape.missed for shape in group.shapes]) * gained / expected)
        return found

    def _settle(self) -> None:
        """Open problems as others are found; the first of them has a task then."""
        while True:
            while self._waiting and len(self._open) < OPEN:
                self._open.append(self._waiting.pop(0))
                self._open[-1].look(self._thread)
            if not self._open or self._open[0].next() is not None:
                return
            del self._open[0]

    def race(self, task: Task) -> Race:
        """As in `adaptive`, with fewer candidates for the best: what is asked for is close to it already."""
        is_first = not self._shapes[task.problem].logs  # later tasks are compared through the best config
        return two_batches(task.configs, CLOSE, with_copy=is_first)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes of a task; look for more to gain."""
        shape = self._shapes[task.problem]
        shape.learn(task, outcomes)
        for other in [self._shapes[problem] for problem in self._served]:
            if shape is other or shape in other.neighbours():
                del self._served[other.task.problem]
        if shape in self._open:
            self._open.remove(shape)
            self._open.append(shape)
            shape.look(self._thread)
