"""One problem of the search `plane`: its measurements, and its next task.

In: a problem's candidates, its stored measurements, and the group of its operator. Out: tasks of the configs that
`choice` takes, in a thread. `plane` chooses among problems.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from heapq import nsmallest
from random import Random
from typing import Any

import numpy as np

from normtune.kernels.config import COPY, Config
from normtune.kernels.config_space import spread
from normtune.kernels.problem import Problem
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.paired import chained
from normtune.tuner.search.plane.choice import View, choose
from normtune.tuner.search.plane.features import Candidates, Codes
from normtune.tuner.search.plane.group import LEAST, Group
from normtune.tuner.search.protocol import medians_of

# Places of a task: one for so many measured configs of the problem, or for two shapes of the operator, which are timed
# while the binaries of others are compiled; their least and greatest number.
GROW, FEW, MOST = 6, 4, 12
# Number of the best configs of a problem whose neighbours and children it may choose; of those of a near problem.
PARENTS, NEAR_PARENTS = 6, 2
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
        shapes: all problems of the search, to which it is added by its caller.
        submit: calls a function with arguments in a thread, in the order of submission.
        seed: of the choices.
        advised: the first configs to measure.
        most: most configs to measure; None for no bound.

    Attributes:
        task: the problem with all its candidates.
        expected: about as many candidates as will be timed.
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
        shapes: "Mapping[Problem, ShapeSearch]",
        submit: Callable[..., Future[Any]],
        seed: int,
        advised: Sequence[Config] = (),
        most: int | None = None,
    ) -> None:
        self.task, self._group, self._shapes, self._submit = task, group, shapes, submit
        self._place, self._number = group.places[task.problem], group.configs.number
        self._advised = [self._number[config] for config in advised]
        self._most = task.size if most is None else most
        usual = LEAST + math.isqrt(task.size)
        self._usual = usual if most is None else min(most, LONG * usual)  # a bound is likely to be reached
        self._candidates = Candidates(task, group.configs)
        self._free = ~self._candidates.illegal
        self._pending: Task | None = None
        self._choice: Future[list[int]] | None = None
        self._learning: Future[None] | None = None
        self._seed = zlib.crc32(str(task.problem).encode()), seed
        self.logs: dict[Config, float] = {}
        self.best: Config | None = None
        self.measured = 0
        self.is_found = False
        usable = {config: one for config, one in previous.items() if self.is_free(config)}
        self.logs |= {config: math.log(median) for config, median in medians_of(usable).items()}
        if usable:
            self._learn(group.learn_stored, sorted(usable))
        # Of configs with the same launch a pool keeps the one that it is asked for first: always these.
        pool = self._candidates.pool
        self._drawn = [] if pool is None else pool.draw(max(2, min(self._usual, self._most)), Random(0))
        self.expected = self._expected()

    def is_free(self, config: Config) -> bool:
        """Whether a config is a candidate that was not measured."""
        return config in self._number and bool(self._free[self._number[config]])

    def neighbours(self) -> "list[ShapeSearch]":
        """The nearest measured problems, whose best configs are timed here."""
        problems = [*self._group.places]
        return [self._shapes[problems[place]] for place in self._group.near.of(self._place).tolist()]

    def neighbour_task(self) -> Task | None:
        """A task of the best configs of the nearest problems; None if each, or a tie of it, was timed here."""
        if self.measured >= self._most:
            return None
        near = [(other, self._candidates.of(self._number[other.best])) for other in self.neighbours() if other.best]
        lacking = dict.fromkeys(
            self._number[candidate.config]
            for other, candidate in near
            if candidate and self.is_free(candidate.config) and not any(tie in self.logs for tie in other._ties())
        )
        return self._beside_best([*lacking][: self._most - self.measured]) if lacking else None

    def look(self) -> None:
        """Begin to choose the next task, in a thread, from the present measurements."""
        self._pending = None
        if not self.is_found:
            self._choice = self._submit(choose, self._view(), self._group)

    @property
    def has_chosen(self) -> bool:
        """Whether `next` returns at once."""
        return self._choice is None or self._choice.done()

    def next(self) -> Task | None:
        """The next task, the same until it is measured; None if no config is expected to gain enough."""
        if self._choice is not None:
            if self._learning is not None:
                self._learning.result()  # raises what it raised
            numbers, self._choice = self._choice.result(), None
            self.is_found = not numbers
            self._pending = self._beside_best(numbers) if numbers else None
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
        self._learn(self._group.learn, new)
        self.expected = self._expected()

    def _learn(self, learn: Callable[..., None], new: Sequence[Config]) -> None:
        """Pass the log times of new configs, which are no longer free, to the group."""
        self.best = min(self.logs, key=lambda config: (self.logs[config], config), default=None)
        if self.best is not None:
            self._group.near.add(self._place)
        numbers = self._numbers(new)
        self._free[numbers] = False
        self.measured += len(new)
        logs = np.array([self.logs.get(config, math.inf) for config in new])
        grids, binaries = self._candidates.grids(numbers), self._candidates.binaries(numbers)
        self._learning = self._submit(learn, self._place, numbers, logs, grids, binaries)

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

    def _ties(self) -> list[Config]:
        """Measured configs that are about as fast as the best."""
        least = min(self.logs.values(), default=0.0)
        return [config for config, log in self.logs.items() if log <= least + TIE]

    def _expected(self) -> Task:
        if self.measured >= self._most:
            return Task(self.task.problem, ())
        count = max(2, min(max(LEAST, self._usual - self.measured, self.measured // 3), self._most - self.measured))
        if self._candidates.pool is not None:
            return Task(self.task.problem, tuple(self._drawn[:count]))
        return self._task_of(spread(np.flatnonzero(self._free).tolist(), count))

    def _beside_best(self, numbers: Sequence[int]) -> Task:
        """A task of these configs and the best measured one, to compare with."""
        return self._task_of(sorted({*numbers, *self._fastest(1)}))

    def _task_of(self, numbers: Sequence[int]) -> Task:
        candidates = map(self._candidates.of, numbers)
        return Task(self.task.problem, tuple(candidate for candidate in candidates if candidate is not None))

    def _numbers(self, configs: Sequence[Config]) -> Codes:
        return np.array([self._number[config] for config in configs], np.int64)

    def _fastest(self, count: int) -> list[int]:
        """Numbers of the best measured configs."""
        return [self._number[c] for c in nsmallest(count, self.logs, key=lambda config: (self.logs[config], config))]

    def _view(self) -> View:
        """This problem for a choice of configs."""
        free = self._free & ~self._candidates.illegal
        advised = [number for number in self._advised if free[number]]
        few = max(FEW, len(self._group.places) // 2, self.measured // GROW)
        room = min(few, MOST, self._most - self.measured, int(free.sum()))
        return View(
            place=self._place,
            seed=[*self._seed, self.measured],
            free=free,
            best=self._fastest(PARENTS),
            near=[number for other in self.neighbours() for number in other._fastest(NEAR_PARENTS)],
            advised=advised,
            measured=self.measured,
            room=max(room, len(advised)),
            candidates=self._candidates,
        )
