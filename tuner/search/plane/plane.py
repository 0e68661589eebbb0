"""The search that learns from all shapes which configs are worth timing, for spaces too large to be timed in full.

In: see `protocol`. Out: for each problem tasks of some of its configs, and at the end the best configs of the nearest
shapes, so that neighbouring shapes have times of common configs.

Each operator has a model of its own, and problems take turns, so that a task of one uses what all others have shown
(`group`): first each gets a few configs, then more, until no config is expected to gain enough for its time. Slow
configs are timed in one block of rounds only. The choice depends on the seed and on the measurements and their order
only, so that a seed gives the same on a replay. A search begins with all stored measurements, after a stop, too.

Binaries are compiled only for chosen configs. Problems come in the order of `task_queue`, several at a time: some are
timed while others are compiled, and while a thread chooses configs for the next. It learns and chooses in the order of
the calls, so that a choice uses the measurements at the time when its problem was opened, however long any takes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import ConfigsOf, Task
from normtune.tuner.plan.pool import Pool
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.adaptive import FIRST_BLOCKS
from normtune.tuner.search.plane.group import Group
from normtune.tuner.search.plane.shape import ShapeSearch
from normtune.tuner.search.protocol import Batch, Previous, Race, Search
from normtune.tuner.search.rounds import close_to_best
from normtune.tuner.timing.protocol import ALL_BLOCKS

# Number of problems in progress at a time, for each device.
OPEN = 16
# A config is timed in one block if it takes more than this many times as long as the best, and in full if it takes less
# than the other many times.
FAR, CLOSE = 1.4, 1.03
# Of two searches one chooses at a time: the number of threads of BLAS is that of the process.
_BLAS = Lock()


class Plane(Search):
    """A `protocol.Search`.

    Args:
        tasks, previous: see `protocol.Search`.
        advice: the first configs to measure at a problem.
        seed: of the draws; use another one to repeat a search on the data of the first.
        most: most configs of a problem; None for those that are worth their time.
        until: log ratio that the untimed configs of a problem may still be expected to gain, instead of when none of
            them is worth its time; 0 times all.
        devices: number of devices that share the search.
    """

    name = "plane"
    leaves_out = True

    def __init__(
        self,
        tasks: Sequence[Task],
        previous: Previous,
        advice: ConfigsOf | None = None,
        seed: int = 0,
        most: int | None = None,
        until: float | None = None,
        devices: int = 1,
    ) -> None:
        self._most_open = OPEN * devices
        advised = advice or {}
        listed = (
            # A space without a list stands for some of its configs.
            task.subset([*advised.get(task.problem, ()), *previous.get(task.problem, ())], seed)
            if isinstance(task.candidates, Pool) and not task.candidates.is_listed
            else task
            for task in TaskQueue(tasks).pending()
        )
        order = [task for task in listed if task.candidates]
        members: dict[Key, list[Task]] = {}
        for task in order:
            members.setdefault(task.problem.key, []).append(task)
        self._executor = ThreadPoolExecutor(1)
        self._groups = {
            key: Group(of_key, {c for task in of_key for c in advised.get(task.problem, ())}, until)
            for key, of_key in members.items()
        }
        self._shapes: dict[Problem, ShapeSearch] = {}
        for task in order:
            problem, group = task.problem, self._groups[task.problem.key]
            self._shapes[problem] = ShapeSearch(
                task,
                previous.get(problem, {}),
                group,
                self._shapes,
                self._submit,
                seed,
                advised.get(problem, ()),
                most,
            )
        self._neighbour_tasks: dict[Problem, Task | None] = {}
        self._waiting = [*self._shapes.values()]
        self._open: list[ShapeSearch] = []

    def pending(self) -> Sequence[Task]:
        """The problems in which a config may gain, and the tasks with the best configs of neighbours at the others."""
        self._settle()
        return [*(shape.expected for shape in (*self._open, *self._waiting)), *self._with_neighbours()]

    def _with_neighbours(self) -> list[Task]:
        """Of each problem that is done the task with the best configs of its neighbours."""
        tasks, done = self._neighbour_tasks, [problem for problem, shape in self._shapes.items() if shape.is_found]
        tasks |= {problem: self._shapes[problem].neighbour_task() for problem in done if problem not in tasks}
        return [task for problem in done if (task := tasks[problem]) is not None]

    def ask(self) -> Iterator[Task]:
        """The tasks of the open problems, the oldest first; at the end those with the best configs of neighbours."""
        self._settle()
        if not self._open:
            yield from self._with_neighbours()
        for place, shape in enumerate(self._open):
            if (place == 0 or shape.has_chosen) and (task := shape.next()) is not None:
                yield task

    def report(self) -> Mapping[str, list[str]]:
        """`unguided`: operators and dtypes whose knobs do not tell which configs are fast."""
        self._submit(int).result()  # the last task is learned
        return {"unguided": [str(key) for key, group in self._groups.items() if group.earned.knobs_say_nothing]}

    def _submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in the thread, after those before."""
        return self._executor.submit(_on_one_core, call, *arguments)

    def _settle(self) -> None:
        """Replace finished open problems by waiting ones; afterwards the first open problem has a task."""
        while True:
            while self._waiting and len(self._open) < self._most_open:
                self._open.append(self._waiting.pop(0))
                self._open[-1].look()
            if not self._open or self._open[0].next() is not None:
                return
            del self._open[0]

    def race(self, task: Task) -> Race:
        """See `short_race`."""
        shape = self._shapes[task.problem]
        return short_race(task.configs, shape.best, with_copy=not shape.logs)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes of a task and begin to choose the next configs of its problem."""
        shape = self._shapes[task.problem]
        shape.learn(task, outcomes)
        for other in [self._shapes[problem] for problem in self._neighbour_tasks]:
            if shape is other or shape in other.neighbours():
                del self._neighbour_tasks[other.task.problem]
        if shape in self._open:
            self._open.remove(shape)
            self._waiting.append(shape)


def short_race(configs: Sequence[Config], best: Config | None, with_copy: bool) -> Race:
    """One block for all configs, then as in `adaptive` for those that are not far from the best.

    Args:
        configs: of the task.
        best: the best one before, which the others are compared with; if none is close to it, it is not timed in full.
        with_copy: whether the copy is timed beside them.
    """
    samples = yield Batch(configs, 1, with_copy)
    contenders = {*close_to_best(samples, FAR), best}  # its first block may be a slow one by chance
    samples = yield Batch([config for config in configs if config in contenders], FIRST_BLOCKS - 1, with_copy)
    close = close_to_best(samples, CLOSE)
    if len(close) > 1 or best not in close:
        yield Batch(close, ALL_BLOCKS - FIRST_BLOCKS, with_copy)


def _on_one_core(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function while BLAS has one thread: other cores are compiling."""
    with _BLAS, _libraries().limit(limits=1):
        return call(*arguments)


@cache
def _libraries() -> ThreadpoolController:
    """The loaded BLAS; searching for it takes longer than a choice."""
    return ThreadpoolController()
