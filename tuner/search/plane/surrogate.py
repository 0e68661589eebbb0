"""A Gaussian process (`kernel`) that has learned the times of one operator, and predicts those of other configs.

In: log times of configs at shapes. Out: the posterior of the log times of other configs. A point has a shape, a config
and a grid, the rank of its number of programs.

A prediction at a shape uses the times that say most of it: its own, and those of near shapes, the fast ones first
(after Gramacy and Apley, Local Gaussian process approximation for large computer experiments, 2015).

Most of the time of a prediction is taken by matrices of some hundred points, so what many points share is computed
once: a factor of the kernel for each two shapes, for each two grids, and for each two configs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from normtune.tuner.search.plane.cholesky import Cholesky
from normtune.tuner.search.plane.kernel import JITTER, LEVEL, Kernel, at_values
from normtune.tuner.search.plane.moves import Array, Codes
from normtune.tuner.search.plane.threads import Threads

# Most times that a prediction uses, and that the parameters are fitted to.
MOST_POINTS, MOST_FITTED = 400, 320
# The parameters are fitted again when the times have grown by this factor.
AGAIN = 1.6
# Log times further than this from the best of their shape are told apart less and less: how slow a slow config is does
# little to find fast ones.
SLOW = 0.5
# How much less a time at another shape says for each log ratio to the best there.
BY_SLOWNESS = 0.5


class Points(NamedTuple):
    """Numbers of shapes, grids and configs of some points, (points,); those of one shape may have its number once."""

    shapes: Codes
    grids: Codes
    configs: Codes

    def of(self, indices: Codes) -> "Points":
        """Some of the points."""
        shapes = self.shapes[indices] if len(self.shapes) == len(self.configs) else self.shapes
        return Points(shapes, self.grids[indices], self.configs[indices])


class Axes(NamedTuple):
    """The axes of points.

    Attributes:
        distances: of the values of each axis, see `Kernel`: those of sizes, of grids, and of knobs.
        sizes: codes of each shape, (shapes, sizes).
        knobs: codes of each config, (configs, knobs).
    """

    distances: Sequence[Array]
    sizes: Codes
    knobs: Codes

    def codes(self, points: Points) -> Codes:
        """Those of all axes, (points, axes)."""
        return np.column_stack([self.sizes[points.shapes], points.grids, self.knobs[points.configs]])


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
        likeness: logs of the factors of each two shapes, (shapes, shapes).
    """

    def __init__(self, kernel: Kernel, axes: Axes, logs: Array, level: float) -> None:
        self.logs, self.parameters = logs, kernel.read(logs)
        table, grids = kernel.table(self.parameters), kernel.parts[axes.sizes.shape[1]]
        of_sizes = at_values([*map(len, axes.distances[: axes.sizes.shape[1]])], axes.sizes)
        self.likeness: Array = of_sizes @ table[: grids.start, : grids.start] @ of_sizes.T
        self._shapes, self._grids = np.exp(self.likeness), np.exp(table[grids, grids])
        self._table, self._knobs, self._level = table[grids.stop :, grids.stop :], axes.knobs, level
        self._widths = [*map(len, axes.distances[axes.sizes.shape[1] + 1 :])]

    def spread(self, points: Points) -> Spread:
        """The points, prepared for covariances."""
        configs, place = np.unique(points.configs, return_inverse=True)
        return Spread(points, place, at_values(self._widths, self._knobs[configs]))

    def __call__(self, left: Spread, right: Spread) -> Array:
        """That of each two points without their errors, (left, right)."""
        of_configs = self.parameters.process**2 * np.exp(left.knobs @ self._table @ right.knobs.T)
        (shapes, grids, configs), others = left.points, right.points
        result = _pairs(of_configs, left.place, right.place)
        result *= _pairs(self._grids, grids, others.grids)
        result *= _pairs(self._shapes, shapes, others.shapes)
        result.reshape(-1)[np.flatnonzero(configs[:, None] == others.configs)] += self.parameters.config**2
        result += self._level**2 * (shapes[:, None] == others.shapes)
        return result


class Times(NamedTuple):
    """The log times of some points, (points,)."""

    points: Points
    logs: Array

    def targets(self, has_levels: bool) -> Array:
        """Relative to the best of their shape, cut off."""
        if not has_levels:
            return self.logs
        least = np.full(1 + self.points.shapes.max(initial=0), np.inf)
        np.minimum.at(least, self.points.shapes, self.logs)
        return bent(self.logs - least[self.points.shapes])


class Learned(NamedTuple):
    """The process when it has learned some times.

    Attributes:
        times: all of them.
        covariance: that of the fit to them, or to the first of them, when it is done.
        has_levels: whether shapes have levels.
    """

    times: Times
    covariance: Future[Covariance]
    has_levels: bool

    def posterior(self, grids: Codes, configs: Codes, shape: int) -> Posterior:
        """What is expected of configs without a time at a shape."""
        covariance, targets = self.covariance.result(), self.times.targets(self.has_levels)
        some = near(self.times.points, shape, targets, covariance)
        ours = covariance.spread(self.times.points.of(some))
        theirs = covariance.spread(Points(np.array([shape]), grids, configs))
        p, level = covariance.parameters, LEVEL if self.has_levels else 0.0
        error = p.error**2 + JITTER

        factor = Cholesky(_with_errors(covariance(ours, ours), error))
        half = factor.solve(covariance(ours, theirs))
        mean = targets[some].mean() if len(some) else 0.0
        means = factor.solve((targets[some] - mean)[:, None])[:, 0] @ half + mean
        variance = p.process**2 + level**2 + p.config**2 + error - np.einsum("ij,ij->j", half, half)

        def draws(indices: Codes, count: int, random: Generator) -> Array:
            part = half.take(indices, 1, mode="clip")
            points = Spread(theirs.points.of(indices), np.arange(len(indices)), theirs.knobs[theirs.place[indices]])
            root = Cholesky(_with_errors(covariance(points, points) - part.T @ part, error)).lower
            return np.asarray((means[indices, None] + root @ random.standard_normal((len(indices), count))).T)

        return Posterior(means, np.sqrt(np.maximum(variance, JITTER)), draws)


class Surrogate:
    """The process and the times that it has learned.

    Args:
        axes: of the points.
        has_levels: whether shapes have levels.
    """

    def __init__(self, axes: Axes, has_levels: bool = True) -> None:
        self._kernel, self._axes, self._has_levels = Kernel(axes.distances), axes, has_levels
        nothing = np.zeros(0, np.int64)
        self.times = Times(Points(nothing, nothing, nothing), np.zeros(0))
        self._covariance: Future[Covariance] = Future()
        self._covariance.set_result(self._of(self._kernel.prior))
        self._fitted = 0
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.times.logs)

    def add(self, shape: int, grids: Codes, configs: Codes, logs: Array) -> None:
        """Learn log times of configs (their numbers) at a shape (its number), which are new."""
        new = Points(np.full(len(configs), shape), grids, configs)
        points = Points(*map(np.concatenate, zip(self.times.points, new, strict=True)))
        self.times = Times(points, np.concatenate([self.times.logs, logs]))

    def learned(self, threads: Threads) -> Learned:
        """What it has learned until now; where the times have grown by `AGAIN` the parameters are fitted, in a thread.

        A fit waits for the one before, which was given to the threads before.
        """
        if len(self) >= AGAIN * self._fitted:
            self._fitted = len(self)
            self._covariance = threads.submit(self._fit, self.times, self._covariance)
        return Learned(self.times, self._covariance, self._has_levels)

    def _fit(self, times: Times, before: Future[Covariance]) -> Covariance:
        """Fit the parameters to half of the fastest times and some others, from those before."""
        start, targets = before.result().logs, times.targets(self._has_levels)
        order = np.argsort(targets, kind="stable")
        half = MOST_FITTED // 2
        rest = self._random.permutation(order[half:])[:half]
        some = np.sort(np.concatenate([order[:half], rest]))
        points, logs = times.points.of(some), targets[some] - targets[some].mean()
        return self._of(self._kernel.fitted(self._axes.codes(points), points.configs, points.shapes, logs, start))

    def _of(self, logs: Array) -> Covariance:
        return Covariance(self._kernel, self._axes, logs, LEVEL if self._has_levels else 0.0)


def bent(logs: Array) -> Array:
    """Log times relative to the best of their shape, those of slow configs made less."""
    return np.where(logs < SLOW, logs, SLOW * (1 + np.log(np.maximum(logs / SLOW, 1.0))))


def near(points: Points, shape: int, targets: Array, covariance: Covariance) -> Codes:
    """Indices of the times that say most of a shape."""
    if len(targets) <= MOST_POINTS:
        return np.arange(len(targets))
    said = covariance.likeness[:, shape][points.shapes] - BY_SLOWNESS * targets
    return np.sort(np.argsort(np.where(points.shapes == shape, 0.0, -said), kind="stable")[:MOST_POINTS])


def _pairs(table: Array, rows: Codes, columns: Codes) -> Array:
    """The values of each two of these indices, (rows, columns)."""
    return table[rows].take(columns, 1, mode="clip")  # several times as fast as if it checked them


def _with_errors(covariance: Array, variance: float) -> Array:
    """That of times: each has an error of its own."""
    covariance[np.diag_indices_from(covariance)] += variance
    return covariance
