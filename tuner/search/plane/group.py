"""What the search `plane` knows of one operator: surrogates of its times and failures, and what choices have gained.

In: the tasks of an operator's shapes, then outcomes of configs, and what was expected of them. Out: what `choice` asks.
Of the methods one thread calls all but the constructor's.
"""

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.config_space import Drawn
from normtune.kernels.problem import AXES, Problem
from normtune.tuner.plan.neighbours import Neighbours
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Pool
from normtune.tuner.search.plane.features import WAVES, Array, Codes, Configs, at_values
from normtune.tuner.search.plane.gp import Kernel, Surrogate, bent

# Measured configs of a problem before the search ends there.
LEAST = 6
# Number of nearest shapes whose best configs are timed at a problem.
NEIGHBOURS = 6
# With fewer distinct configs tried, or a lesser share of all, no problem ends: a sweep of 16 configs at each
# shape says little of the others.
NARROW, NARROW_SHARE = 96, 0.25
# Most configs of an operator that are numbered.
MOST_CONFIGS = 100_000
# Log ratio to the mean of a shape that counts at most in what knobs explain.
_SPREAD = 1.0
# Octaves of rows, of hidden, of the number of programs, that are as far as the range of a knob.
_OCTAVES = 8.0
# Ways to choose a config, with the gain, a log ratio, that is expected of each until this many were tried.
WAYS = {"model": 0.02, "neighbour": 0.0007, "child": 0.0007, "stranger": 0.0007}
TRUST = 10.0
# Timings over which it is judged what a timing gains: so many, and so many of each shape.
WINDOW, WINDOW_OF_SHAPE = 80.0, 5.0
# How many times as much as it expects a gain counts before: it knows little then of configs that are unlike the first.
EARLY = 10.0
# Weight of the prior that expected gains come true, a log ratio.
PROMISE = 0.05
# Errors of predictions, in deviations: where the surrogate is not used; their cut, and the number of those assumed
# before. Share of them that each new one replaces.
MOST_ERROR, _CUT, _ERRORS, FORGET = 3.0, 6.0, 20.0, 0.005
# Share of the variance of times that knobs explain below which they say nothing, and least number of new configs.
NOTHING, FEW_NEW = 0.1, 40


class Expectation(NamedTuple):
    """By which way a config was chosen, what was expected of its log time, and whether it had none at any shape."""

    way: str
    mean: float
    deviation: float
    is_new: bool


class Group:
    """The problems of one operator, variant and dtype.

    Args:
        tasks: of the problems. Of a space of more than `MOST_CONFIGS` configs as many are drawn.
        advised: configs that belong to the group in any case.
        until: log ratio that the untimed configs of a problem may still be expected to gain when it ends; None to end
            where no config is worth its time.

    Attributes:
        configs: the configs of all problems.
        places: numbers of the problems.
        near: the nearest problems of each that have a time, by number.
        until: see above.
        times: the surrogate of log times.
        tried: numbers of the configs that have a time at some problem.
        binaries: those that some problem needs.
        earned: what the search has gained.
    """

    def __init__(self, tasks: Sequence[Task], advised: Iterable[Config] = (), until: float | None = None) -> None:
        problems = sorted(task.problem for task in tasks)
        self.configs, self.until = Configs(_configs_of(tasks).union(advised)), until
        self.places = {problem: place for place, problem in enumerate(problems)}
        self.near = Neighbours(np.array([point(problem) for problem in problems]), most=NEIGHBOURS)
        sizes = [[getattr(problem, axis) for problem in problems] for axis in AXES]
        distinct, codes = zip(*(np.unique(np.log2(axis), return_inverse=True) for axis in sizes), strict=True)
        distances = [abs(one[:, None] - one) / _OCTAVES for one in (*distinct, WAVES)] + self.configs.distances
        knobs = at_values(self.configs.codes, map(len, self.configs.distances))
        axes = distances, at_values(np.stack(codes, axis=1), map(len, distinct)), knobs
        self.times = Surrogate(Kernel(*axes))
        self._failures = Surrogate(Kernel(*axes, level=0.0))  # 1 for each failure
        self.tried: set[int] = set()
        self.binaries: set[Hashable] = set()
        self.earned = Earned(len(problems))
        self._stored = 0  # number of measurements before the search
        self._best = np.full(len(problems), np.inf)
        self._levels = np.zeros((len(problems), 2))
        # Of configs that were chosen and are not measured, and of their whole tasks.
        self._expected: dict[tuple[int, int], Expectation] = {}
        self._promises: dict[int, float] = {}

    @property
    def is_narrow(self) -> bool:
        """Whether too few configs were tried for any problem to end."""
        return len(self.tried) < min(NARROW, NARROW_SHARE * len(self.configs.all))

    @property
    def measured(self) -> int:
        """Number of measurements: a few stored ones do not make it a search that knows enough to end."""
        return len(self._failures) - (self._stored if self._stored < self.earned.few else 0)

    def chances(self, place: int, grids: Codes, numbers: Codes) -> Array:
        """Probabilities that configs fail at a problem, (configs,)."""
        if not self._failures.logs.any():
            return np.zeros(len(numbers))
        return self._failures.posterior(place, grids, numbers).mean.clip(0.0, 0.99)

    def expect(self, place: int, expected: dict[int, Expectation], gain: float | None) -> None:
        """Note what is expected of configs chosen at a problem, by number, and of all of them, a log ratio."""
        self._expected |= {(place, number): one for number, one in expected.items()}
        if gain is not None:
            self._promises[place] = gain

    def learn_stored(self, place: int, numbers: Codes, logs: Array, grids: Codes, binaries: Iterable[Hashable]) -> None:
        """Learn log times from before the search."""
        self._stored += len(numbers)
        self.learn(place, numbers, logs, grids, binaries)

    def learn(self, place: int, numbers: Codes, logs: Array, grids: Codes, binaries: Iterable[Hashable]) -> None:
        """Learn new log times of configs at a problem, infinite ones failed; compare them with what was expected."""
        fine = np.isfinite(logs)
        self.times.add(place, grids[fine], numbers[fine], logs[fine])
        self._failures.add(place, grids, numbers, np.where(fine, 0.0, 1.0))
        self.tried.update(numbers[fine].tolist())
        self.binaries.update(binaries)
        before, promised = self._best[place], self._promises.pop(place, None)
        for number, log in zip(numbers.tolist(), logs.tolist(), strict=True):
            if (expected := self._expected.pop((place, number), None)) and np.isfinite(before):
                self._compare(place, expected, log)
        self._best[place] = logs.min(initial=before)
        if promised is not None:
            self.earned.gained(before - self._best[place], len(logs), promised)
        self._levels[place] += [logs[fine].sum(), fine.sum()]

    def _compare(self, place: int, expected: Expectation, log: float) -> None:
        best, (total, count) = self._best[place], self._levels[place]
        self.earned.credit(expected.way, max(0.0, best - log))
        if math.isfinite(log):
            error = float(bent(log - best)) - expected.mean
            self.earned.checked(error / expected.deviation)
            if expected.is_new and count >= LEAST:
                away = log - total / count
                self.earned.explained(*np.clip([away - error, away], -_SPREAD, _SPREAD).tolist())


class Earned:
    """What the search has gained by each way to choose configs, and how well its surrogate predicts.

    Args:
        problems: their number.

    Attributes:
        few: number of measurements with fewer of which little is known.
    """

    def __init__(self, problems: int) -> None:
        self._credit = {way: np.array([TRUST * gain, TRUST]) for way, gain in WAYS.items()}
        self._window = WINDOW + WINDOW_OF_SHAPE * problems
        self.few = LEAST * problems + self._window
        self._gained: deque[tuple[float, int]] = deque()
        self._timings = 0
        self._sums = np.full(2, PROMISE)  # gained, promised
        self._errors = np.array([_ERRORS, _ERRORS])
        self._unexplained = np.zeros(3)

    def credit(self, way: str, gain: float) -> None:
        """Note what a config has gained over the best before, a log ratio."""
        self._credit[way] += [gain, 1.0]

    def gained(self, gain: float, timings: int, promised: float) -> None:
        """Note by how much so many timings have lowered the best log time of a shape, and by how much they should."""
        self._sums = math.exp(-timings / self._window) * self._sums + [gain, promised]
        self._gained.append((gain, timings))
        self._timings += timings
        while self._timings - self._gained[0][1] >= self._window:
            self._timings -= self._gained.popleft()[1]

    def checked(self, error: float) -> None:
        """Note the error of a predicted log time, in expected deviations."""
        self._errors = (1.0 - FORGET) * self._errors + [min(error**2, _CUT**2), 1.0]

    def explained(self, predicted: float, log: float) -> None:
        """Note the predicted and the real log time of a config without a time before, relative to its shape's mean."""
        self._unexplained += [(log - predicted) ** 2, log**2, 1.0]

    @property
    def shares(self) -> Array:
        """Share of each of `WAYS` in what the next configs are chosen by; none of a surrogate that errs too much."""
        shares = np.array([gain / tries for gain, tries in self._credit.values()])
        shares[0] *= self._errors[0] < MOST_ERROR**2 * self._errors[1]
        return shares / shares.sum()

    def likely(self, expected: float, measured: int) -> float:
        """What the next timing is likely to gain: what timings have lately; before, what the surrogate expects.

        Its expectation counts as far as such expectations have come true, and more while few configs are `measured`.
        """
        if self._timings >= self._window:
            return sum(gain for gain, _ in self._gained) / self._timings
        return float(expected * self._sums[0] / self._sums[1]) * (EARLY if measured < self.few else 1.0)

    @property
    def knobs_say_nothing(self) -> bool:
        """Whether the surrogate could not tell fast from slow configs before one of them was timed at any shape."""
        errors, variance, count = self._unexplained
        return bool(count >= FEW_NEW and errors > (1.0 - NOTHING) * variance)


def point(problem: Problem) -> tuple[float, float]:
    """A problem among those near it: a step of hidden counts as much as three of rows."""
    return math.log2(problem.rows), 3 * math.log2(problem.hidden)


def _configs_of(tasks: Sequence[Task]) -> set[Config]:
    distinct: set[Config] = set()
    before: Sequence[Config] = ()
    for task in tasks:
        pool = task.candidates
        configs = pool.space if isinstance(pool, Pool) and not isinstance(pool.space, Drawn) else task.configs
        distinct.update(pool.others if isinstance(pool, Pool) else ())
        if configs is not before and configs != before:
            few = Random(0).sample(range(len(configs)), min(MOST_CONFIGS, len(configs)))
            distinct.update(configs[place] for place in few)
        before = configs
    return distinct
