"""A Gaussian process (`kernel`) that has learned the times of one operator, and predicts those of other configs.

In: log times of configs at shapes. Out: the posterior of the log times of other configs.

A prediction at a shape uses the times that say most of it: its own, and those of near shapes, the fast ones first
(after Gramacy and Apley, Local Gaussian process approximation for large computer experiments, 2015).

Most of the time of a prediction is taken by matrices of some hundred points, so what many points share is computed
once: a factor of the kernel for each two shapes, for each two grids, and for each two configs.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from normtune.tuner.search.plane.cholesky import Cholesky
from normtune.tuner.search.plane.kernel import JITTER, LEVEL, Kernel, Points, at_values
from normtune.tuner.search.plane.moves import Array, Codes
from normtune.tuner.search.plane.threads import Threads

# Most times that a prediction uses, and that the parameters are fitted to.
MOST_POINTS, MOST_FITTED = 400, 320
# The parameters are fitted again when the times have grown by this factor.
REFIT = 1.6
# Log times further than this from the best of their shape are told apart less and less: how slow a slow config is does
# little to find fast ones.
SLOW = 0.5
# How much less a time at another shape says for each log ratio to the best there.
BY_SLOWNESS = 0.5


class Posterior(NamedTuple):
    """What is expected of the log times of some configs at a shape, relative to the best there.

    Attributes:
        mean, deviation: of each config, (configs,).
        draws: of the indices of some of them, a number of draws and a generator: joint draws, (draws, indices).
    """

    mean: Array
    deviation: Array
    draws: Callable[[Codes, int, Generator], Array]


class Spread(NamedTuple):
    """Points, and their configs, each once.

    Attributes:
        points: the points.
        place: of each point's config among these, (points,).
        knobs: 1 for each value of these, (configs, values of all knobs).
    """

    points: Points
    place: Codes
    knobs: Array


class Covariance:
    """The covariance of points with the parameters of a fit.

    Attributes:
        logs: of the parameters.
        parameters: of the fit.
        level: deviation of a shape's level.
        likeness: logs of the factors of each two shapes, (shapes, shapes).
    """

    def __init__(self, kernel: Kernel, logs: Array, level: float) -> None:
        self.logs, self.parameters, self.level = logs, kernel.read(logs), level
        axes = kernel.sizes.shape[1]
        table, grids = kernel.table(self.parameters), kernel.parts[axes]
        of_sizes = at_values(kernel.widths[:axes], kernel.sizes)
        self.likeness: Array = of_sizes @ table[: grids.start, : grids.start] @ of_sizes.T
        self._shapes, self._grids = np.exp(self.likeness), np.exp(table[grids, grids])
        self._table, self._knobs = table[grids.stop :, grids.stop :], kernel.knobs
        self._widths = kernel.widths[axes + 1 :]

    def spread(self, points: Points) -> Spread:
        """The points, prepared for covariances."""
        configs, place = np.unique(points.configs, return_inverse=True)
        return Spread(points, place, at_values(self._widths, self._knobs[configs]))

    def __call__(self, first: Spread, second: Spread) -> Array:
        """That of each two points without their errors, (first, second)."""
        of_configs = self.parameters.process**2 * np.exp(first.knobs @ self._table @ second.knobs.T)
        (shapes, grids, configs), others = first.points, second.points
        result = _pairs(of_configs, first.place, second.place)
        result *= _pairs(self._grids, grids, others.grids)
        result *= _pairs(self._shapes, shapes, others.shapes)
        result.reshape(-1)[np.flatnonzero(configs[:, None] == others.configs)] += self.parameters.config**2
        result += self.level**2 * (shapes[:, None] == others.shapes)
        return result


class Learned(NamedTuple):
    """The process when it has learned the log times of some points.

    Attributes:
        points: all of them.
        targets: their log times, relative to the best of their shape and cut off where shapes have levels, (points,).
        covariance: that of the fit to them, or to the first of them, when it is done.
    """

    points: Points
    targets: Array
    covariance: Future[Covariance]

    def posterior(self, grids: Codes, configs: Codes, shape: int) -> Posterior:
        """What is expected of configs without a time at a shape."""
        covariance = self.covariance.result()
        some = near(self.points, shape, self.targets, covariance)
        ours, targets = covariance.spread(self.points.of(some)), self.targets[some]
        theirs = covariance.spread(Points(np.array([shape]), grids, configs))
        p, error = covariance.parameters, covariance.parameters.error**2 + JITTER

        factor = Cholesky(_with_errors(covariance(ours, ours), error))
        half = factor.solve(covariance(ours, theirs))
        mean = targets.mean() if len(some) else 0.0
        means = factor.solve((targets - mean)[:, None])[:, 0] @ half + mean
        variance = p.process**2 + covariance.level**2 + p.config**2 + error - np.einsum("ij,ij->j", half, half)

        def draws(indices: Codes, count: int, random: Generator) -> Array:
            part = half.take(indices, 1, mode="clip")
            points = Spread(theirs.points.of(indices), np.arange(len(indices)), theirs.knobs[theirs.place[indices]])
            root = Cholesky(_with_errors(covariance(points, points) - part.T @ part, error)).lower
            return np.asarray((means[indices, None] + root @ random.standard_normal((len(indices), count))).T)

        return Posterior(means, np.sqrt(np.maximum(variance, JITTER)), draws)


class Surrogate:
    """The process and the times that it has learned.

    Args:
        kernel: over the points.
        level: deviation of a shape's level; 0 for values that are compared across shapes.
    """

    def __init__(self, kernel: Kernel, level: float = LEVEL) -> None:
        self._kernel, self._level = kernel, level
        nothing = np.zeros(0, np.int64)
        self.points, self.logs = Points(nothing, nothing, nothing), np.zeros(0)
        self._least = np.full(len(kernel.sizes), np.inf)  # of each shape
        self._covariance: Future[Covariance] = Future()
        self._covariance.set_result(Covariance(kernel, kernel.prior, level))
        self._fitted = 0
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.logs)

    def add(self, shape: int, grids: Codes, configs: Codes, logs: Array) -> None:
        """Learn log times of configs (their numbers) at a shape (its number), which are new."""
        new = Points(np.full(len(configs), shape), grids, configs)
        self.points = Points(*map(np.concatenate, zip(self.points, new, strict=True)))
        self.logs = np.concatenate([self.logs, logs])
        self._least[shape] = logs.min(initial=self._least[shape])

    def learned(self, threads: Threads) -> Learned:
        """What it has learned until now; where the times have grown by `REFIT` the parameters are fitted, in a thread.

        A fit waits for the one before, which was given to the threads before.
        """
        targets = self.logs
        if self._level:
            targets = bent(self.logs - self._least[self.points.shapes])
        if len(self) >= REFIT * self._fitted:
            self._fitted = len(self)
            self._covariance = threads.submit(self._fit, self.points, targets, self._covariance)
        return Learned(self.points, targets, self._covariance)

    def _fit(self, points: Points, targets: Array, before: Future[Covariance]) -> Covariance:
        """Fit the parameters to half of the fastest times and some others, from those before."""
        order, half = np.argsort(targets, kind="stable"), MOST_FITTED // 2
        some = np.sort(np.concatenate([order[:half], self._random.permutation(order[half:])[:half]]))
        logs = targets[some] - targets[some].mean()
        return Covariance(self._kernel, self._kernel.fitted(points.of(some), logs, before.result().logs), self._level)


def bent(logs: Array) -> Array:
    """Log times relative to the best of their shape, those of slow configs made less."""
    return np.where(logs < SLOW, logs, SLOW * (1 + np.log(np.maximum(logs / SLOW, 1.0))))


def near(points: Points, shape: int, targets: Array, covariance: Covariance) -> Codes:
    """Indices of the times that say most of a shape."""
    if len(targets) <= MOST_POINTS:
        return np.arange(len(targets))
    said = covariance.likeness[:, shape][points.shapes] - BY_SLOWNESS * targets
    unsaid = np.where(points.shapes == shape, 0.0, -said)
    most = np.partition(unsaid, MOST_POINTS - 1)[MOST_POINTS - 1]
    sure = np.flatnonzero(unsaid < most)
    return np.sort(np.concatenate([sure, np.flatnonzero(unsaid == most)[: MOST_POINTS - len(sure)]]))


def _pairs(table: Array, rows: Codes, columns: Codes) -> Array:
    """The values of each two of these indices, (rows, columns)."""
    return table[rows].take(columns, 1, mode="clip")  # several times as fast as if it checked them


def _with_errors(covariance: Array, variance: float) -> Array:
    """That of times: each has an error of its own."""
    covariance[np.diag_indices_from(covariance)] += variance
    return covariance
