"""One problem of the search `plane`: what is known of it, and which of its configs are worth measuring next.

In: a problem's candidates, what is stored of it, and the other problems of its group. Out: its next task, and what the
model expects of the configs that are never timed. `plane` says which problem is asked for.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from normtune.kernels.config import COPY, Config
from normtune.results.database.store import Coverage
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import Task, spread
from normtune.tuner.search.paired import chained
from normtune.tuner.search.surrogate import MOST_CELLS, Array, Axes, Cells, distance, draws, expected_gains

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
# Log time, in place of the best one of a problem where none is known.
_NEVER = 100.0
# Shapes whose best configs a problem is timed with.
NEIGHBOURS = 6
# Log ratio of configs of which one does as well as the other there.
TIE = 0.005
# So many configs of a problem are measured at least: fewer say too little of whether the model holds. And so many on
# average, of RMSNorm's full space on an H200.
LEAST, USUAL = 6, 14


class Group(NamedTuple):
    """The problems of one operator, variant and dtype.

    Attributes:
        shapes: the problems.
        configs: of all of them.
        binaries: those that were asked for.
        tried: configs that were measured or failed somewhere.
    """

    shapes: "list[ShapeSearch]"
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


class ShapeSearch:
    """One problem.

    Attributes:
        task: with all its candidates.
        logs: log times of measured configs, chained through the best of each task.
        best: the best measured config; None without one.
        is_found: whether its best config is expected to be known.
        audited: sums of the expected and the real gains of audited configs over the best one, log ratios.
    """

    def __init__(
        self,
        task: Task,
        known: Mapping[Config, Coverage],
        axes: Axes,
        group: Group,
        seed: int,
        advised: Sequence[Config] = (),
    ) -> None:
        self.task = task
        self._axes = axes
        self.group = group
        self._advised = advised
        self._index = {candidate.config: index for index, candidate in enumerate(task.candidates)}
        self._failed: set[Config] = set()
        self._skipped: set[Config] = set()
        self._pending: Task | None = None
        self._choice: Future[Proposal] | None = None
        self._expected: tuple[float, float] = 0.0, 0.0
        self.audited = np.zeros(2)
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
            self._take(self._chosen(self.cells, [*self._known_near()], set(self.group.binaries)))
        return self.is_found

    def compare(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Note what new configs gain over the best, and what they should, before they are learned."""
        new = [config for config in task.configs if self.is_free(config)]
        expected = expected_gains(self.cells, self._points, self._known_near())[[self._index[config] for config in new]]
        times = chained(self.logs, {config: one for config, one in outcomes.items() if config != COPY})
        gains = [max(0.0, self._least - times.get(config, math.inf)) for config in new]
        self.audited += [expected.sum(), sum(gains)]

    @property
    def missed(self) -> float:
        """What the model expects the best of the untried configs to gain, a log ratio."""
        gain, least = self._expected
        return max(0.0, gain - (least - self._least))

    @property
    def _least(self) -> float:
        """The least log time; 0 without one."""
        return min(self.logs.values(), default=0.0)

    def _take(self, choice: "Proposal") -> list[Config]:
        """The configs that were chosen; without any the problem is done."""
        self.is_found = not choice.configs
        self._expected = choice.missed, self._least
        return choice.configs

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
            self._choice = thread.submit(self._chosen, self.cells, [*self._known_near()], self.group.binaries)

    @property
    def has_chosen(self) -> bool:
        """Whether `next` returns at once."""
        return self._choice is None or self._choice.done()

    def next(self) -> Task | None:
        """The task that looks for the best config; the same one until it is measured; None if that is found."""
        if self._choice is not None:
            chosen = self._take(self._choice.result())
            self._choice = None
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
        self.group.tried.update(task.configs)
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

    def neighbours(self) -> "Iterator[ShapeSearch]":
        """The measured problems whose best configs are timed here."""
        return islice(self._near(), NEIGHBOURS)

    def _near(self) -> "Iterator[ShapeSearch]":
        """Measured problems of the same kind, the nearest first."""
        return (other for other in self._nearest if other.logs)

    def _known_near(self) -> Iterator[Cells]:
        """The measured configs of the nearest problems, as many as a prediction looks at."""
        count = len(self.cells.logs)
        for other in self._nearest:
            if count >= MOST_CELLS or self.group.is_blind:
                return
            if len(other.cells.logs):
                count += len(other.cells.logs)
                yield other.cells

    @cached_property
    def _nearest(self) -> "list[ShapeSearch]":
        own = self.task.problem
        others = (other for other in self.group.shapes if other is not self)
        return sorted(others, key=lambda other: (distance(own, other.task.problem), other.task.problem))

    def _chosen(self, own: Cells, near: Sequence[Cells], binaries: set[Any]) -> "Proposal":
        """Configs that are worth measuring now: each lowers the expected least time most, after those before it.

        Their binaries are added to those that were asked for.
        """
        random = np.random.default_rng([*self._seed, len(self._measured)])
        times = draws(own, self._points, near, random)
        configs, fastest = self.task.configs, self._least
        for config, log in self.logs.items():
            times[:, self._index[config]] = log - fastest
        times[:, [self._index[config] for config in self._failed]] = np.inf
        index, free = self._index, np.ones(len(configs), np.bool_)
        free[[index[config] for config in (*self._measured, *self._skipped)]] = False
        found = times[:, [index[config] for config in self.logs]].min(axis=1, initial=_NEVER)
        missed = float(np.maximum(-times[:, free].min(axis=1, initial=0.0), 0.0).mean())
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
            elif known >= LEAST and gain[best] < self.group.worth(known):
                break
            found, free[best] = np.minimum(found, times[:, best]), False
            binaries.add(self._binaries[best])
            chosen.append(best)
        return Proposal([configs[one] for one in chosen], missed)


class Proposal(NamedTuple):
    """Configs that are worth measuring, and what the best that was not measured is expected to gain, a log ratio."""

    configs: list[Config]
    missed: float
