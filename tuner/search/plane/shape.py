"""One problem of the search `plane`: its measurements, and its next task.

In: a problem's candidates, its stored measurements, and its group, which chooses configs. Out: tasks. `plane` chooses
among problems.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from random import Random

import numpy as np

from normtune.kernels.config import COPY, Config
from normtune.kernels.config_space import spread
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate, Pool
from normtune.tuner.search.paired import chained
from normtune.tuner.search.plane.choice import LEAST, Proposal, View
from normtune.tuner.search.plane.group import Group, distance
from normtune.tuner.search.plane.launches import Launches
from normtune.tuner.search.plane.moves import Array, Codes
from normtune.tuner.search.protocol import medians_of

# Places of a task: one for so many measured configs of the problem, or for two shapes of the operator, which are timed
# while the binaries of others are compiled; their least and greatest number.
GROW, FEW, MOST = 6, 4, 12
# Number of the best configs of a problem whose neighbours and children it may choose; of those of a near problem.
PARENTS, NEAR_PARENTS = 6, 2
# Number of nearest shapes whose best configs are timed at a problem.
NEIGHBOURS = 6
# Configs closer than this log ratio are ties.
TIE = 0.005
# A problem is probably done after `LEAST` configs and the root of their number, and after so many times as many at the
# latest: so in recordings and made-up spaces of 15 to 20,000 configs.
LONG = 3


class ShapeSearch:
    """One problem.

    Args:
        task: the problem with all its candidates.
        previous: its stored measurements.
        group: of its operator.
        others: all problems of the group; it becomes the next of them.
        seed: of the choices.
        advised: the first configs to measure.
        most: most configs to measure.
        until: see `choice.View`.

    Attributes:
        task: the problem with all its candidates.
        logs: log times of measured configs, comparable through the best config of each task.
        best: the best measured config; None if there is none.
        measured: number of measured configs.
        is_found: whether no other config is expected to be better than the best measured one.
    """

    def __init__(
        self,
        task: Task,
        previous: Mapping[Config, Coverage],
        group: Group,
        others: "list[ShapeSearch]",
        seed: int,
        advised: Sequence[Config] = (),
        most: int | None = None,
        until: float | None = None,
    ) -> None:
        self.task = task
        self.group = group
        self._place, self._others = len(others), others
        others.append(self)
        self._number = group.configs.number
        self._advised = [self._number[config] for config in advised]
        self._most = task.size if most is None else most
        self._until = until
        usual = LEAST + math.isqrt(task.size)
        self._usual = usual if most is None else min(most, LONG * usual)  # a bound is likely to be reached
        self._pool = task.candidates if isinstance(task.candidates, Pool) else None
        self._launches = Launches(self._candidate, group.binary_number)
        self._free = np.full(len(group.configs.all), self._pool is not None)
        self._closed = np.zeros(len(self._free), np.bool_)
        self._listed: dict[int, Candidate] = {}
        if self._pool is None:
            self._listed = {self._number[candidate.config]: candidate for candidate in task.candidates}
            self._free[[*self._listed]] = True
        self._pending: Task | None = None
        self._choice: Future[Proposal] | None = None
        self._learning: Future[None] | None = None
        self._seed = zlib.crc32(str(task.problem).encode()), seed
        self.logs: dict[Config, float] = {}
        self.best: Config | None = None
        self.measured = 0
        self.is_found = False
        usable = {config: one for config, one in previous.items() if self.is_free(config)}
        self.logs |= {config: math.log(median) for config, median in medians_of(usable).items()}
        if usable:
            group.learn_stored(*self._news(sorted(usable)))

    def _news(self, new: Sequence[Config]) -> tuple[int, Codes, Array, Launches]:
        """What a group learns of configs that were measured, which are no longer free."""
        self.best = min(self.logs, key=lambda config: (self.logs[config], config), default=None)
        self.__dict__.pop("expected", None)
        numbers = self._numbers(new)
        self._free[numbers] = False
        self.measured += len(new)
        return self._place, numbers, np.array([self.logs.get(c, math.inf) for c in new]), self._launches

    def _numbers(self, configs: Sequence[Config]) -> Codes:
        return np.array([self._number[config] for config in configs], np.int64)

    @property
    def _least(self) -> float:
        """The least log time; 0 without one."""
        return 0.0 if self.best is None else self.logs[self.best]

    def ties(self) -> list[Config]:
        """Measured configs that are about as fast as the best."""
        return [config for config, log in self.logs.items() if log <= self._least + TIE]

    def is_free(self, config: Config) -> bool:
        """Whether a config is a candidate that was not measured."""
        return config in self._number and bool(self._free[self._number[config]])

    @cached_property
    def expected(self) -> Task:
        """About as many candidates as will be timed."""
        if self.measured >= self._most:
            return Task(self.task.problem, ())
        count = max(2, min(max(LEAST, self._usual - self.measured, self.measured // 3), self._most - self.measured))
        if self._pool is not None:
            return Task(self.task.problem, tuple(self._pool.draw(count, Random(0))))
        # numpy would let another thread run, and wait for it.
        free = [number for number, is_free in enumerate(self._free.tolist()) if is_free]
        return self._task_of(spread(free, count))

    def _beside_best(self, numbers: Sequence[int]) -> Task:
        """A task of these configs and the best measured one, to compare with."""
        return self._task_of(sorted({*numbers, *self._fastest(1)}))

    def _task_of(self, numbers: Sequence[int]) -> Task:
        candidates = (self._candidate(number) for number in numbers)
        return Task(self.task.problem, tuple(candidate for candidate in candidates if candidate is not None))

    def neighbour_task(self) -> Task | None:
        """A task of the best configs of the nearest problems; None if each, or a tie of it, was timed here."""
        if self.measured >= self._most:
            return None
        near = [(other, self._candidate(self._number[other.best])) for other in self.neighbours() if other.best]
        lacking = dict.fromkeys(
            self._number[candidate.config]
            for other, candidate in near
            if candidate and self.is_free(candidate.config) and not any(tie in self.logs for tie in other.ties())
        )
        return self._beside_best([*lacking][: self._most - self.measured]) if lacking else None

    def look(self) -> None:
        """Begin to choose the next task, in threads, from the present measurements."""
        self._pending = None
        if not self.is_found:
            _ = self.expected  # of configs with the same launch a pool keeps the one that it is asked for first
            self._choice = self.group.begin(self._view())

    @property
    def has_chosen(self) -> bool:
        """Whether `next` returns at once."""
        return self._choice is None or self._choice.done()

    def next(self) -> Task | None:
        """The next task, the same until it is measured; None if no config is expected to gain enough."""
        if self._choice is not None:
            if self._learning is not None:
                self._learning.result()  # raises what it raised
            choice, self._choice = self._choice.result(), None
            self.is_found = not choice.numbers
            self._pending = self._beside_best(choice.numbers) if choice.numbers else None
        return self._pending

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Add the outcomes of a task; empty ones end the problem."""
        self._pending = None
        if not outcomes:
            self.is_found = True
            self._free[self._numbers(task.configs)] = False
            return
        new = [config for config in task.configs if self.is_free(config)]
        self.logs |= self._logs_of(outcomes)
        self._learning = self.group.learn(*self._news(new))

    def _logs_of(self, outcomes: Mapping[Config, Outcome]) -> dict[Config, float]:
        """Log times of the configs of a task: the greater one by means and by medians of a ratio to the best before.

        A few slow rounds of the best one would make all others fast, one of which would then be held the best.
        """
        samples = {c: one for c, one in outcomes.items() if c != COPY and len(one.nanoseconds)}
        logs = chained(self.logs, samples)
        if self.best in samples:
            base = self.logs[self.best] - math.log(np.median(samples[self.best].nanoseconds))
            logs = {c: max(log, base + math.log(np.median(samples[c].nanoseconds))) for c, log in logs.items()}
        return logs

    def neighbours(self) -> "Iterator[ShapeSearch]":
        """The nearest measured problems, whose best configs are timed here."""
        return islice((other for other in self._nearest if other.logs), NEIGHBOURS)

    @cached_property
    def _nearest(self) -> "list[ShapeSearch]":
        problem = self.task.problem
        others = (other for other in self._others if other is not self)
        return sorted(others, key=lambda other: (distance(problem, other.task.problem), other.task.problem))

    def _candidate(self, number: int) -> Candidate | None:
        """The candidate of a config's number: None if it is illegal, in a large space another one with its launch."""
        if self._pool is not None:
            return self._pool.of(self.group.configs.all[number])
        return self._listed.get(number)

    def _fastest(self, count: int) -> list[int]:
        """Numbers of the best measured configs."""
        return [self._number[c] for c in nsmallest(count, self.logs, key=lambda config: (self.logs[config], config))]

    def _view(self) -> View:
        """This problem for a choice of configs."""
        advised = [number for number in self._advised if self._free[number]]
        few = max(FEW, len(self._others) // 2, self.measured // GROW)
        room = min(few, MOST, self._most - self.measured, int(self._free.sum()))
        return View(
            self._place,
            [*self._seed, self.measured],
            self._free.copy(),
            self._closed,
            self._fastest(PARENTS),
            [number for other in self.neighbours() for number in other._fastest(NEAR_PARENTS)],
            advised,
            self.measured,
            max(room, len(advised)),
            self._until,
            self._candidate,
            self._launches,
            self._pool is not None,
        )
