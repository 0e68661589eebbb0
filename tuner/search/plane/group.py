"""What the search `plane` knows of one operator.

In: the tasks of an operator's shapes, then the outcomes of configs; a `View` of a shape. Out: a `Proposal` of the
configs to measure next there (`choice`).

Its methods are called by one thread, in whose order all is learned and chosen; what takes long runs in others.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from itertools import count
from random import Random

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.config_space import Drawn
from normtune.kernels.problem import Problem
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Pool
from normtune.tuner.search.plane.choice import (
    LEAST,
    Expectation,
    Moment,
    Prediction,
    Proposal,
    View,
    blind,
    predicted,
    selected,
)
from normtune.tuner.search.plane.earned import Earned
from normtune.tuner.search.plane.kernel import Kernel
from normtune.tuner.search.plane.launches import WAVES, Launches
from normtune.tuner.search.plane.moves import Array, Codes, Configs
from normtune.tuner.search.plane.surrogate import Surrogate, bent
from normtune.tuner.search.plane.threads import Threads

# Measured configs of an operator before the surrogate is used.
BLIND = 4
# Most configs of an operator that are numbered.
MOST_CONFIGS = 100_000
# Log ratio to the mean of a shape that counts at most in what knobs explain.
_SPREAD = 1.0
# Octaves of rows, of hidden, of the number of programs, that are as far as the range of a knob.
_OCTAVES = 8.0


class Group:
    """The problems of one operator, variant and dtype.

    Args:
        tasks: of the problems; their places are their numbers in this order. Of a space of more than `MOST_CONFIGS`
            configs as many are drawn.
        threads: for what takes long.
        more: configs that belong to the group in any case.

    Attributes:
        configs: the configs of all problems.
        binary_number: of a binary of theirs, the same for the same binary; may be called by several threads.
        earned: what the search has gained.
    """

    def __init__(self, tasks: Sequence[Task], threads: Threads, more: Iterable[Config] = ()) -> None:
        distinct = set(more)
        before: Sequence[Config] = ()
        for task in tasks:
            pool = task.candidates
            configs = pool.space if isinstance(pool, Pool) and not isinstance(pool.space, Drawn) else task.configs
            distinct.update(pool.others if isinstance(pool, Pool) else ())
            if configs is not before and configs != before:
                distinct.update(configs if len(configs) <= MOST_CONFIGS else _subset(configs))
            before = configs
        self.configs = Configs(distinct)
        binaries: dict[Hashable, int] = {}
        following = count()
        self.binary_number: Callable[[Hashable], int] = lambda one: binaries.setdefault(one, next(following))
        values = [[getattr(task.problem, axis) for task in tasks] for axis in ("rows", "hidden")]
        sizes = [np.unique(axis) for axis in values]
        octaves = [*(np.log2(one.astype(np.float64)) for one in sizes), WAVES]
        kernel = Kernel(
            [abs(one[:, None] - one) / _OCTAVES for one in octaves] + self.configs.distances,
            np.column_stack([np.searchsorted(one, axis) for one, axis in zip(sizes, values, strict=True)]),
            self.configs.codes,
        )
        self.earned = Earned(len(tasks), LEAST)
        self._threads = threads
        self._times, self._failures = Surrogate(kernel), Surrogate(kernel, level=0.0)
        self._needed: set[int] = set()  # binaries of some shape
        self._stored = 0  # number of measurements before the search
        self._best = np.full(len(tasks), np.inf)
        self._levels = np.zeros((len(tasks), 2))
        # Of configs that were chosen and are not measured, and of their whole tasks.
        self._expected: dict[tuple[int, int], Expectation] = {}
        self._promises: dict[int, float] = {}

    def learn_stored(self, place: int, numbers: Codes, logs: Array, launches: Launches) -> None:
        """Learn log times from before the search."""
        self._stored += len(numbers)
        self.learn(place, numbers, logs, launches)

    def learn(self, place: int, numbers: Codes, logs: Array, launches: Launches) -> Future[None]:
        """Learn new log times of configs at a problem; infinite ones failed."""
        grids, fine = launches.grids(numbers), np.isfinite(logs)
        self._times.add(place, grids[fine], numbers[fine], logs[fine])
        self._failures.add(place, grids, numbers, np.where(fine, 0.0, 1.0))
        return self._threads.in_order(self._judge, place, numbers, logs, launches)

    def begin(self, view: View) -> Future[Proposal]:
        """Begin to choose the configs to measure next."""
        if self._is_blind or not view.free.any():
            return self._threads.in_order(blind, view, self.configs)
        moment = self._moment()
        return self._threads.in_order(self._choose, view, moment, self._threads.submit(predicted, view, moment))

    @property
    def _is_blind(self) -> bool:
        return len(self._times) < BLIND

    def _moment(self) -> Moment:
        """What is known now; a surrogate is fitted again only if it is asked for."""
        failures = self._failures.learned(self._threads) if self._failures.logs.any() else None
        # A few stored times do not make it a search that knows enough to end.
        before = self._stored if self._stored < self.earned.few else 0
        return Moment(self.configs, self._times.learned(self._threads), failures, len(self._failures) - before)

    def _choose(self, view: View, moment: Moment, prediction: Future[Prediction | None]) -> Proposal:
        """The choice, after all that was learned and chosen before."""
        proposal = selected(view, moment, prediction.result(), self.earned, self._needed)
        for number, expected in zip(proposal.numbers, proposal.expected, strict=True):
            self._expected[view.place, number] = expected
        if proposal.gain is not None:
            self._promises[view.place] = proposal.gain
        return proposal

    def _judge(self, place: int, numbers: Codes, logs: Array, launches: Launches) -> None:
        """Compare new log times with the best one before and with what was expected of them."""
        before, promised = self._best[place], self._promises.pop(place, None)
        for number, log in zip(numbers.tolist(), logs.tolist(), strict=True):
            if (expected := self._expected.pop((place, number), None)) and np.isfinite(before):
                self._compare(place, expected, log)
        self._best[place] = logs.min(initial=before)
        if promised is not None:
            self.earned.gained(before - self._best[place], len(logs), promised)
        fine = np.isfinite(logs)
        self._levels[place] += [logs[fine].sum(), fine.sum()]
        self._needed.update(launches.binaries(numbers))

    def _compare(self, place: int, expected: Expectation, log: float) -> None:
        best, (total, count) = self._best[place], self._levels[place]
        self.earned.credit(expected.way, max(0.0, best - log))
        if math.isfinite(log):
            error = float(bent(log - best)) - expected.mean
            self.earned.checked(error / expected.deviation)
            if expected.is_new and count >= LEAST:
                away = log - total / count
                self.earned.explained(*np.clip([away - error, away], -_SPREAD, _SPREAD).tolist())


def distance(one: Problem, other: Problem) -> float:
    """Distance of two shapes: a step of hidden counts as much as three of rows."""
    return math.hypot(math.log2(one.rows / other.rows), 3 * math.log2(one.hidden / other.hidden))


def _subset(configs: Sequence[Config]) -> list[Config]:
    return [configs[place] for place in Random(0).sample(range(len(configs)), MOST_CONFIGS)]
