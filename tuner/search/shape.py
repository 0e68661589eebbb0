"""One problem of the search `plane`: its measurements, and the configs that are worth measuring next.

In: a problem's candidates, its stored measurements, and the other problems of its group. Out: its next task, and the
expected gain of the configs that are never timed. `plane` chooses among problems.
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
from normtune.kernels.config_space import spread
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.paired import chained
from normtune.tuner.search.surrogate import MOST_CELLS, Array, Axes, Cells, distance, draws, expected_gains

# Log ratio by which a config has to lower the expected best time of a problem to be worth timing; and the cost of
# compiling a binary, in configs timed meanwhile on the 16 cores of an H200's host.
WORTH, BINARY = 0.0025, 5.0
# With fewer problems of an operator, `WORTH` is less in proportion: a short sweep may spend more time on each.
MANY = 150
# Most configs of a task.
MOST = 12
# With more measured configs of a problem, `WORTH` grows with the square of their number: the model overestimates the
# gain of the remaining ones.
ENOUGH = 40
# Shapes use each other's measurements only after this many distinct configs of an operator, or this share of all, were
# measured: otherwise a search after a quick sweep of 12 configs would stay close to the best of them.
BLIND, BLIND_SHARE = 96, 0.25
# Log time that stands for the best one of a problem without times.
_NEVER = 100.0
# Number of nearest shapes whose best configs are timed at a problem.
NEIGHBOURS = 6
# Configs closer than this log ratio are ties.
TIE = 0.005
# Least number of measured configs of a problem, to check the model, and the mean number in RMSNorm's full space on an
# H200.
LEAST, USUAL = 6, 14


class Group(NamedTuple):
    """The problems of one operator, variant and dtype.

    Attributes:
        shapes: the problems.
        configs: the configs of all problems.
        binaries: binaries of the chosen configs.
        tried: configs that were measured or failed at some problem.
    """

    shapes: "list[ShapeSearch]"
    configs: set[Config]
    binaries: set[Any]
    tried: set[Config]

    @property
    def is_blind(self) -> bool:
        """Whether too few configs were tried for shapes to use each other's measurements."""
        return len(self.tried) < min(BLIND, BLIND_SHARE * len(self.configs))

    def worth(self, count: int) -> float:
        """The log ratio that another config has to gain at a problem with `count` measured configs."""
        return WORTH * min(1.0, len(self.shapes) / MANY) * max(1.0, count / ENOUGH) ** 2


class ShapeSearch:
    """One problem.

    Attributes:
        task: the problem with all its candidates.
        logs: log times of measured configs, comparable through the best config of each task.
        best: the best measured config; None if there is none.
        is_found: whether no other config is expected to be better than the best measured one.
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
        """The configs that were timed, then those that failed."""
        return [*self.logs, *sorted(self._failed)]

    def settle(self) -> bool:
        """Whether, from the stored measurements, no further config is expected to gain enough."""
        if len(self._measured) >= LEAST:
            self._take(self._chosen(self.cells, [*self._known_near()], set(self.group.binaries)))
        return self.is_found

    def compare(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Add the expected and the real gains of new configs over the best; to be called before `learn`."""
        new = [config for config in task.configs if self.is_free(config)]
        expected = expected_gains(self.cells, self._points, self._known_near())[[self._index[config] for config in new]]
        times = chained(self.logs, {config: outcome for config, outcome in outcomes.items() if config != COPY})
        gains = [max(0.0, self._least - times.get(config, math.inf)) for config in new]
        self.audited += [expected.sum(), sum(gains)]

    @property
    def missed(self) -> float:
        """The expected gain of the best config that was not tried, a log ratio."""
        gain, least = self._expected
        return max(0.0, gain - (least - self._least))

    @property
    def _least(self) -> float:
        """The least log time; 0 without one."""
        return min(self.logs.values(), default=0.0)

    def _take(self, choice: "Proposal") -> list[Config]:
        """Note a choice and return its configs; without any the problem is done."""
        self.is_found = not choice.configs
        self._expected = choice.missed, self._least
        return choice.configs

    def ties(self) -> list[Config]:
        """Measured configs that are about as fast as the best."""
        least = min(self.logs.values(), default=math.inf)
        return [config for config, log in self.logs.items() if log <= least + TIE]

    def is_free(self, config: Config) -> bool:
        """Whether a config is a candidate that was not measured."""
        tried = self.logs, self._failed, self._skipped
        return config in self._index and not any(config in configs for configs in tried)

    @cached_property
    def expected(self) -> Task:
        """About as many candidates as will be timed."""
        free = [candidate for candidate in self.task.candidates if self.is_free(candidate.config)]
        return Task(self.task.problem, tuple(spread(free, max(LEAST, USUAL - len(self._measured)))))

    def task_of(self, configs: Sequence[Config]) -> Task:
        """A task of these configs and the best measured one, to compare with."""
        chosen = sorted(self._index[config] for config in {*configs, self.best} if config is not None)
        return Task(self.task.problem, tuple(self.task.candidates[index] for index in chosen))

    def neighbour_task(self) -> Task | None:
        """A task of the best configs of the nearest problems; None if each, or a tie of it, was timed here."""
        lacking = dict.fromkeys(
            other.best
            for other in self.neighbours()
            if other.best and self.is_free(other.best) and not any(tie in self.logs for tie in other.ties())
        )
        return self.task_of([*lacking]) if lacking else None

    def look(self, thread: Executor) -> None:
        """Begin to choose the next task, in a thread, from the present measurements."""
        self._pending = None
        if not self.is_found:
            self._choice = thread.submit(self._chosen, self.cells, [*self._known_near()], self.group.binaries)

    @property
    def has_chosen(self) -> bool:
        """Whether `next` returns at once."""
        return self._choice is None or self._choice.done()

    def next(self) -> Task | None:
        """The next task, the same until it is measured; None if no config is expected to gain enough."""
        if self._choice is not None:
            chosen = self._take(self._choice.result())
            self._choice = None
            self._pending = self.task_of(chosen) if chosen else None
        return self._pending

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Add the outcomes of a task; empty ones end the problem."""
        self._pending = None
        if not outcomes:
            self.is_found = True
            self._skipped.update(task.configs)
            return
        self._add([candidate for candidate in task.candidates if candidate.config not in self._index])
        self.logs |= chained(self.logs, {config: outcome for config, outcome in outcomes.items() if config != COPY})
        self._failed |= {config for config in task.configs if config not in self.logs}
        self.group.tried.update(task.configs)
        self.best = self._fastest()
        for name in ("cells", "expected"):
            self.__dict__.pop(name, None)

    def _add(self, candidates: Sequence[Candidate]) -> None:
        """Add candidates that were drawn from a large space for the audit."""
        if not candidates:
            return
        self._index |= {one.config: place for place, one in enumerate(candidates, len(self._index))}
        self.task = Task(self.task.problem, (*self.task.candidates, *candidates))
        for name in ("_points", "_binaries"):
            self.__dict__.pop(name, None)

    def _fastest(self) -> Config | None:
        return min(self.logs, key=lambda config: (self.logs[config], config), default=None)

    @cached_property
    def cells(self) -> Cells:
        """The measured configs; `learn` resets them."""
        logs = [self.logs.get(config, math.inf) for config in self._measured]
        return Cells(self._points[[self._index[config] for config in self._measured]], np.array(logs))

    @cached_property
    def _points(self) -> Array:
        return self._axes.points(self.task.problem, self.task.candidates)

    @cached_property
    def _binaries(self) -> list[Any]:
        return [candidate.launch.binary for candidate in self.task.candidates]

    def neighbours(self) -> "Iterator[ShapeSearch]":
        """The nearest measured problems, whose best configs are timed here."""
        return islice((other for other in self._nearest if other.logs), NEIGHBOURS)

    def _known_near(self) -> Iterator[Cells]:
        """The measured configs of the nearest problems, as many as a prediction uses."""
        count = len(self.cells.logs)
        for other in self._nearest:
            if count >= MOST_CELLS or self.group.is_blind:
                return
            if len(other.cells.logs):
                count += len(other.cells.logs)
                yield other.cells

    @cached_property
    def _nearest(self) -> "list[ShapeSearch]":
        problem = self.task.problem
        others = (other for other in self.group.shapes if other is not self)
        return sorted(others, key=lambda other: (distance(problem, other.task.problem), other.task.problem))

    def _chosen(self, cells: Cells, near: Sequence[Cells], binaries: set[Any]) -> "Proposal":
        """Choose configs greedily by how much each lowers the expected best time; adds their binaries to `binaries`."""
        random = np.random.default_rng([*self._seed, len(self._measured)])
        times = draws(cells, self._points, near, random)
        configs, fastest = self.task.configs, self._least
        for config, log in self.logs.items():
            times[:, self._index[config]] = log - fastest
        times[:, [self._index[config] for config in self._failed]] = np.inf
        index, free = self._index, np.ones(len(configs), np.bool_)
        free[[index[config] for config in (*self._measured, *self._skipped)]] = False
        best_times = times[:, [index[config] for config in self.logs]].min(axis=1, initial=_NEVER)
        missed = float(np.maximum(-times[:, free].min(axis=1, initial=0.0), 0.0).mean())
        chosen: list[int] = []
        advised = [index[config] for config in self._advised if self.is_free(config)]
        while free.any() and len(chosen) < MOST:
            count = len(self._measured) + len(chosen)
            gain = np.where(free, best_times.mean() - np.minimum(best_times[:, None], times).mean(axis=0), -np.inf)
            if count:
                gain /= [1.0 if binary in binaries else 1.0 + BINARY for binary in self._binaries]
            best = int(gain.argmax())
            if len(chosen) < len(advised):
                best = advised[len(chosen)]
            elif count >= LEAST and gain[best] < self.group.worth(count):
                break
            best_times, free[best] = np.minimum(best_times, times[:, best]), False
            binaries.add(self._binaries[best])
            chosen.append(best)
        return Proposal([configs[index] for index in chosen], missed)


class Proposal(NamedTuple):
    """Configs that are worth measuring, and the expected gain of the best unmeasured config, a log ratio."""

    configs: list[Config]
    missed: float
