"""A Gaussian process over shapes and configs that predicts times that were not measured.

In: log times of configs at problems, with features. Out: draws of the log times of all configs of a problem.

The kernel is Matern 5/2 over one distance. Its length scales are constants, about the geometric mean of those with the
greatest marginal likelihood on twelve recorded operators of an H200. The level of a problem is unknown, so that
problems are compared only through the ratios of their configs' times. A config that failed counts as a slow one.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.tuner.plan.pool import Candidate

Array = NDArray[np.float64]

# Length scales in octaves of rows, of hidden, of an integer knob, of the number of programs; for a knob that is a text,
# the distance of two values. Rows matter mostly through the number of programs.
_ROWS, _HIDDEN, _KNOB, _WAVES = 8.0, 2.5, 2.5, 6.0
_TEXT = 0.4
# Number of programs that run at once, roughly: fewer take as long as one.
_AT_ONCE = 128
# Standard deviations of log times: of a config, of a problem's level, of the noise of a measurement.
_CONFIG, _LEVEL, _NOISE = 0.4, 3.0, 0.03
# Log ratios to the best are cut off here: how slow a bad config is does not help to predict good ones.
_SLOW = 0.7
# Most measured configs that a prediction uses, those of the nearest shapes.
MOST_CELLS = 240
DRAWS = 128
# Most configs that are drawn: those with the least mean minus this many standard deviations.
_MOST_DRAWN, _UNLIKELY = 160, 2.5


class Cells(NamedTuple):
    """Features, (configs, features), and log times, (configs,), of the measured configs of a problem.

    Configs that failed have infinite times.
    """

    points: Array
    logs: Array

    @property
    def has_times(self) -> bool:
        """Whether any config did not fail."""
        return bool(np.isfinite(self.logs).any())


class Axes:
    """The features of an operator's configs at its problems, in length scales.

    Args:
        configs: all of them; they may have different classes, as those of implementations of other libraries.
    """

    def __init__(self, configs: Iterable[Config]) -> None:
        texts: dict[str, set[str]] = {}
        numbers: set[str] = set()
        for config in set(configs):
            for knob, value in config._asdict().items():
                if isinstance(value, str):
                    texts.setdefault(knob, set()).add(value)
                else:
                    numbers.add(knob)
        self._numbers = sorted(numbers)
        self._texts = sorted((knob, value) for knob, values in texts.items() for value in values)

    def points(self, problem: Problem, candidates: Sequence[Candidate]) -> Array:
        """Features of the candidates of a problem: (candidates, features)."""
        points = np.zeros((len(candidates), 3 + len(self._numbers) + len(self._texts)))
        points[:, 0] = math.log2(problem.rows) / _ROWS
        points[:, 1] = math.log2(problem.hidden) / _HIDDEN
        points[:, 2] = [math.log2(1 + candidate.launch.grid / _AT_ONCE) / _WAVES for candidate in candidates]
        for row, candidate in enumerate(candidates):
            values = candidate.config._asdict()
            points[row, 3:] = [
                *(math.copysign(math.log2(1 + abs(n := float(values.get(k, 0)))), n) / _KNOB for k in self._numbers),
                *(_TEXT / math.sqrt(2) * (values.get(knob) == text) for knob, text in self._texts),
            ]
        return points


def distance(left: Problem, right: Problem) -> float:
    """Distance of two shapes, in length scales."""
    return math.hypot(math.log2(left.rows / right.rows) / _ROWS, math.log2(left.hidden / right.hidden) / _HIDDEN)


def draws(cells: Cells, all_points: Array, others: Iterable[Cells], random: Generator) -> Array:
    """Draws of the log times of all configs of a problem, relative to the least measured one, (`DRAWS`, configs).

    Configs that are most probably slower than others are not drawn: their times are infinite.

    Args:
        cells: the measured configs of the problem.
        all_points: features of all configs of the problem, (configs, features).
        others: measured configs of the nearest problems of the same operator.
        random: source of the draws.
    """
    with _libraries().limit(limits=1):  # one thread: the other cores are compiling
        measured = [group for group in (cells, *others) if len(group.logs)]
        mean, spread, root = _posterior(cells, all_points, measured)
        # Shuffled, so that ties are broken at random: without a time all are equal.
        order = random.permutation(len(mean))
        kept = order[np.argsort((mean - _UNLIKELY * spread)[order], kind="stable")[:_MOST_DRAWN]]
        part = all_points[kept]
        covariance = _kernel(part, part) - root[:, kept].T @ root[:, kept] + _LEVEL**2 * cells.has_times
        # Rounding leaves small negative eigenvalues.
        factor = cholesky(covariance + 1e-4 * np.eye(len(kept)), lower=True)
        times = np.full((DRAWS, len(mean)), np.inf)
        times[:, kept] = mean[kept] + random.standard_normal((DRAWS, len(kept))) @ factor.T
        return times


def expected_gains(cells: Cells, all_points: Array, others: Iterable[Cells]) -> Array:
    """Expected gain of each config over the best measured one, a log ratio, (configs,); arguments as in `draws`."""
    with _libraries().limit(limits=1):
        mean, spread, _ = _posterior(cells, all_points, [group for group in (cells, *others) if len(group.logs)])
    spread = np.hypot(spread, _NOISE)
    density = np.exp(-((mean / spread) ** 2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(spread * density - mean * ndtr(-mean / spread))


@cache
def _libraries() -> ThreadpoolController:
    """The loaded BLAS; searching for it takes a fifth of the time of a call of `draws`."""
    return ThreadpoolController()


def _posterior(cells: Cells, all_points: Array, measured: Sequence[Cells]) -> tuple[Array, Array, Array]:
    """Mean and standard deviation of each config, and the root of the reduction of the prior covariance.

    The level of a problem without times does not affect which of its configs is the best, so it is left out.
    """
    if not measured:
        return np.zeros(len(all_points)), np.full(len(all_points), _CONFIG), np.zeros((0, len(all_points)))
    points = np.concatenate([group.points for group in measured])
    has_times = np.array([group.has_times for group in measured])
    least = [group.logs.min() if group.has_times else 0.0 for group in measured]
    logs = np.concatenate([np.minimum(group.logs - log, _SLOW) for group, log in zip(measured, least, strict=True)])
    number = np.repeat(np.arange(len(measured)), [len(group.logs) for group in measured])
    level, own_level = _LEVEL**2 * has_times[number], _LEVEL**2 * cells.has_times
    covariance = _kernel(points, points) + level * (number[:, None] == number) + _NOISE**2 * np.eye(len(points))
    factor = cho_factor(covariance, lower=True)
    across = _kernel(all_points, points) + own_level * (number == 0)
    root = solve_triangular(factor[0], across.T, lower=True)
    variance = np.maximum(_CONFIG**2 + own_level - (root**2).sum(axis=0), 0.0)
    return across @ cho_solve(factor, logs), np.sqrt(variance), root


def _kernel(left: Array, right: Array) -> Array:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    distance = np.sqrt(5 * np.maximum(squares, 0.0))
    return np.asarray(_CONFIG**2 * (1 + distance + distance**2 / 3) * np.exp(-distance))
