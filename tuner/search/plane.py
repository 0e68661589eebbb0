"""The search that learns from nearby shapes which configs are worth timing, for spaces too large to time in whole.

In: see `protocol`. Out: for each problem a few tasks of some of its configs, and at the end the best configs of the
nearest shapes, so that a table finds one config that was timed at all of them.

A Gaussian process (`surrogate`) draws the times of all configs of a problem from what was measured there and at shapes
nearby. Configs are taken, greedily, that lower the mean of the best time over the draws most for what they cost, until
none is expected to gain enough; they are timed as in `adaptive`, and the problem is asked for again if there is more to
gain by then. What is asked for, and when a problem is done, follows from the seed and from what is measured: a search
that was stopped goes on, and what another one measured counts as its own.

A config costs more where no other problem had its binary compiled. Binaries are compiled only for what is taken.
Problems come in the order of `agenda`, a few at a time, so that some are timed while others are compiled, and while a
thread chooses for the next: what it knows is what was known when a problem's last task ended, so that its choice does
not depend on how long it takes.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import Problem
from normtune.results.database.store import Coverage
from normtune.results.records import Outcome
from normtune.tuner.plan.agenda import Agenda, group_of
from normtune.tuner.plan.plan import Always, Task, spread
from normtune.tuner.search.adaptive import two_batches
from normtune.tuner.search.paired import chained
from normtune.tuner.search.protocol import Known, Race
from normtune.tuner.search.surrogate import MOST_CELLS, Array, Axes, Cells, distance, draws

# Log ratio by which a config has to lower the expected best time of a problem, for each config that could be timed in
# its place; and how many are timed while a binary is compiled, on the 16 cores of an H200's host.
WORTH, BINARY = 0.0025, 5.0
# Problems of an operator, below which a config is worth timing for less: a short sweep may take longer at each of them.
MANY = 150
# Most configs of a task.
MOST = 12
# Configs of a problem from which on another one has to gain more, by the square of their number: of those the model
# promises much and knows little.
ENOUGH = 40
# Distinct configs of an operator that are measured, or that share of all, before shapes learn of each other: a quick
# sweep of 12 of them would keep the search close to the best of these.
BLIND, BLIND_SHARE = 96, 0.25
# Problems begun and not yet done.
OPEN = 16
# Times the best, up to which a config is timed to the end.
CLOSE = 1.03
# Log time, in place of the best one of a problem where none is known.
_NEVER = 100.0
# Shapes whose best configs a problem is timed with.
NEIGHBOURS = 6
# Log ratio of configs of which one does as well as the other there.
TIE = 0.005
# So many configs of a problem are measured at least: fewer say too little of whether the model holds. And so many on
# average, of RMSNorm's full space on an H200.
LEAST, USUAL = 6, 14


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
        order = [task for task in Agenda(tasks).left() if task.candidates]
        groups: dict[tuple[str, str, str], _Group] = {}
        for task in order:
            groups.setdefault(group_of(task.problem), _Group([], set(), set(), set())).configs.update(task.configs)
        axes = {name: Axes(group.configs) for name, group in groups.items()}
        self._shapes: dict[Problem, _Shape] = {}
        for task in order:
            name, problem = group_of(task.problem), task.problem
            advised = (advice or {}).get(problem, ())
            shape = _Shape(task, known.get(problem, {}), axes[name], groups[name], seed, advised)
            groups[name].shapes.append(shape)
            self._shapes[problem] = shape
        self._served: dict[Problem, Task | None] = {}
        self._waiting = [shape for shape in self._shapes.values() if not shape.settle()]
        self._open: list[_Shape] = []
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


class _Group(NamedTuple):
    """The problems of one operator, variant and dtype.

    Attributes:
        shapes: the problems.
        configs: of all of them.
        binaries: those that were asked for.
        tried: configs that were measured or failed somewhere.
    """

    shapes: "list[_Shape]"
    configs: set[Config]
    binaries: set[Any]
    tried: set[Config]

    @property
    def is_blind(self) -> bool:
        """Whether too few configs were tried for shapes to learn of each other."""
        return len(self.tried) < min(BLIND, BLIND_SHARE * len(self.configs))

    def worth(self, known: int) -> float:
        """The log ratio that another config has to gain where so many are known."""
        return WORTH * min(1.0, len(self.shapes) / MANY) * max(1.0, known / ENOUGH) ** 2


class _Shape:
    """One problem.

    Attributes:
        task: with all its candidates.
        logs: log times of measured configs, chained through the best of each task.
        best: the best measured config; None without one.
        is_found: whether its best config is expected to be known.
    """

    def __init__(
        self,
        task: Task,
        known: Mapping[Config, Coverage],
        axes: Axes,
        group: _Group,
        seed: int,
        advised: Sequence[Config] = (),
    ) -> None:
        self.task = task
        self._axes = axes
        self._group = group
        self._advised = advised
        self._index = {candidate.config: index for index, candidate in enumerate(task.candidates)}
        self._failed: set[Config] = set()
        self._skipped: set[Config] = set()
        self._pending: Task | None = None
        self._choice: Future[list[Config]] | None = None
        self._seed = zlib.crc32(str(task.problem).encode()), seed
        self.logs: dict[Config, float] = {}
        for config, coverage in known.items():
            if config in self._index and coverage.median_ns is not None:
                self.logs[config] = math.log(coverage.median_ns)
            elif config in self._index:
                self._failed.add(config)
        group.tried.update(self._measured)
        group.binaries.update(self._binaries[self._index[config]] for config in self._measured)
        self.best = self._fastest()
        self.is_found = False

    @property
    def _measured(self) -> list[Config]:
        """The configs that were measured, and those that failed."""
        return [*self.logs, *sorted(self._failed)]

    def settle(self) -> bool:
        """Whether nothing is expected to be gained here, by what is stored."""
        if len(self._measured) >= LEAST:
            self.is_found = not self._chosen(self.cells, [*self._known_near()], set(self._group.binaries))
        return self.is_found

    def ties(self) -> list[Config]:
        """Measured configs that are about as fast as the best."""
        least = min(self.logs.values(), default=math.inf)
        return [config for config, log in self.logs.items() if log <= least + TIE]

    def is_free(self, config: Config) -> bool:
        """Whether a config is a candidate that was not measured."""
        return config in self._index and not any(config in one for one in (self.logs, self._failed, self._skipped))

    @cached_property
    def expected(self) -> Task:
        """About as many candidates as will be timed."""
        free = [candidate for candidate in self.task.candidates if self.is_free(candidate.config)]
        return Task(self.task.problem, tuple(spread(free, max(LEAST, USUAL - len(self._measured)))))

    def task_of(self, configs: Sequence[Config]) -> Task:
        """A task of these configs and the best measured one, to compare with."""
        chosen = sorted(self._index[config] for config in {*configs, self.best} if config is not None)
        return Task(self.task.problem, tuple(self.task.candidates[index] for index in chosen))

    def served(self) -> Task | None:
        """The task of the best configs of the nearest problems; None if each, or a tie of it, was timed here."""
        lacking = dict.fromkeys(
            other.best
            for other in self.neighbours()
            if other.best and self.is_free(other.best) and not any(tie in self.logs for tie in other.ties())
        )
        return self.task_of([*lacking]) if lacking else None

    def look(self, thread: Executor) -> None:
        """Begin to choose the next task from what is known now."""
        self._pending = None
        if not self.is_found:
            self._choice = thread.submit(self._chosen, self.cells, [*self._known_near()], self._group.binaries)

    @property
    def has_chosen(self) -> bool:
        """Whether `next` returns at once."""
        return self._choice is None or self._choice.done()

    def next(self) -> Task | None:
        """The task that looks for the best config; the same one until it is measured; None if that is found."""
        if self._choice is not None:
            chosen = self._choice.result()
            self._choice, self.is_found = None, not chosen
            self._pending = self.task_of(chosen) if chosen else None
        return self._pending

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Take the outcomes of a task; empty ones end the problem."""
        self._pending = None
        if not outcomes:
            self.is_found = True
            self._skipped.update(task.configs)
            return
        self.logs |= chained(self.logs, {config: one for config, one in outcomes.items() if config != COPY})
        self._failed |= {config for config in task.configs if config not in self.logs}
        self._group.tried.update(task.configs)
        self.best = self._fastest()
        for name in ("cells", "expected"):
            self.__dict__.pop(name, None)

    def _fastest(self) -> Config | None:
        return min(self.logs, key=lambda config: (self.logs[config], config), default=None)

    @cached_property
    def cells(self) -> Cells:
        """The measured configs, until `learn` adds others; those that failed take for ever."""
        logs = [self.logs.get(config, math.inf) for config in self._measured]
        return Cells(self._points[[self._index[config] for config in self._measured]], np.array(logs))

    @cached_property
    def _points(self) -> Array:
        return self._axes.points(self.task.problem, self.task.candidates)

    @cached_property
    def _binaries(self) -> list[Any]:
        return [candidate.launch.binary for candidate in self.task.candidates]

    def neighbours(self) -> "Iterator[_Shape]":
        """The measured problems whose best configs are timed here."""
        return islice(self._near(), NEIGHBOURS)

    def _near(self) -> "Iterator[_Shape]":
        """Measured problems of the same kind, the nearest first."""
        return (other for other in self._nearest if other.logs)

    def _known_near(self) -> Iterator[Cells]:
        """The measured configs of the nearest problems, as many as a prediction looks at."""
        count = len(self.cells.logs)
        for other in self._nearest:
            if count >= MOST_CELLS or self._group.is_blind:
                return
            if len(other.cells.logs):
                count += len(other.cells.logs)
                yield other.cells

    @cached_property
    def _nearest(self) -> "list[_Shape]":
        own = self.task.problem
        others = (other for other in self._group.shapes if other is not self)
        return sorted(others, key=lambda other: (distance(own, other.task.problem), other.task.problem))

    def _chosen(self, own: Cells, near: Sequence[Cells], binaries: set[Any]) -> list[Config]:
        """Configs that are worth measuring now: each lowers the expected least time most, after those before it.

        Their binaries are added to those that were asked for.
        """
        random = np.random.default_rng([*self._seed, len(self._measured)])
        times = draws(own, self._points, near, random)
        configs, fastest = self.task.configs, min(self.logs.values(), default=0.0)
        for config, log in self.logs.items():
            times[:, self._index[config]] = log - fastest
        times[:, [self._index[config] for config in self._failed]] = np.inf
        index, free = self._index, np.ones(len(configs), np.bool_)
        free[[index[config] for config in (*self._measured, *self._skipped)]] = False
        found = times[:, [index[config] for config in self.logs]].min(axis=1, initial=_NEVER)
        chosen: list[int] = []
        advised = [index[config] for config in self._advised if self.is_free(config)]
        while free.any() and len(chosen) < MOST:
            known = len(self._measured) + len(chosen)
            gain = np.where(free, found.mean() - np.minimum(found[:, None], times).mean(axis=0), -np.inf)
            if known:
                gain /= [1.0 if binary in binaries else 1.0 + BINARY for binary in self._binaries]
            best = int(gain.argmax())
            if len(chosen) < len(advised):
                best = advised[len(chosen)]
            elif known >= LEAST and gain[best] < self._group.worth(known):
                break
            found, free[best] = np.minimum(found, times[:, best]), False
            binaries.add(self._binaries[best])
            chosen.append(best)
        return [configs[one] for one in chosen]
