"""What the search of one operator has gained, by each way to choose configs, and how well its surrogate predicts.

In: what was expected of configs, and what came. Out: shares of the ways to choose configs, what the next timing is
likely to gain, and whether the surrogate is to be believed. `group` has the choice.
"""

import math
from collections import deque

import numpy as np

from normtune.tuner.search.plane.moves import Array

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


class Earned:
    """Sums over what was measured at so many shapes, the `first` configs at each before it may end.

    Attributes:
        few: number of measurements with fewer of which little is known.
    """

    def __init__(self, shapes: int, first: int) -> None:
        self._credit = {way: np.array([TRUST * gain, TRUST]) for way, gain in WAYS.items()}
        self._window = WINDOW + WINDOW_OF_SHAPE * shapes
        self.few = first * shapes + self._window
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
