"""A Gaussian process that has learned the times of one operator, and predicts those of other configs.

In: log times of configs at shapes. Out: the posterior of the log times of other configs. A point has a shape, a config
and a grid, the rank of its number of programs.

The kernel is a product over axes j of (1 + w_j k_j) / (1 + w_j), k_j a Matern 3/2 of the distance of two values: with
small weights a sum of effects of single axes, with large ones of all their interactions (Durrande et al., ANOVA kernels
and RKHS of zero mean functions, 2013). Beside it a config has an effect of its own that all shapes share, a shape has a
level of its own, so that only ratios of its times count, and a time has an error. Weights, length scales and deviations
are those of the greatest posterior density, given weak priors.

A prediction at a shape uses the times that say most of it: its own, and those of near shapes, the fast ones first
(after Gramacy and Apley, Local Gaussian process approximation for large computer experiments, 2015).

Most of the time of a prediction is taken by matrices of some hundred points, so what many points share is computed
once: a factor of the kernel for each two shapes, for each two grids, and for each two configs.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import block_diag
from scipy.linalg.lapack import dtrtri
from scipy.optimize import minimize

from normtune.tuner.search.plane.features import Array, Codes

# Priors: means and deviations of the logs of weight and length scale of each axis; of the deviations of the process, of
# a config, of an error.
_WEIGHT, _LENGTH = (math.log(0.5), 1.5), (math.log(0.7), 1.0)
_DEVIATIONS = ((math.log(0.35), 0.7), (math.log(0.05), 1.2), (math.log(0.02), 1.2))
# A fit stays within this many deviations of the prior, and ends after so many steps.
_BOUND, _STEPS = 3.5, 40
# Deviation of a shape's level.
LEVEL = 2.0
# Added to variances, because rounding leaves small negative eigenvalues.
JITTER = 1e-6
# Most times that a prediction uses, and that the parameters are fitted to.
MOST_POINTS, MOST_FITTED = 400, 320
# The parameters are fitted again when the times have grown by this factor.
REFIT = 1.6
# Log times further than this from the best of their shape are told apart less and less: how slow a slow config is does
# little to find fast ones.
SLOW = 0.5
# How much less a time at another shape says for each log ratio to the best there.
BY_SLOWNESS = 0.5
# Rows of a block of a factor: with half or twice as many a solve takes longer.
_ROWS = 32


class Points(NamedTuple):
    """Numbers of shapes, grids and configs of some points, (points,); those of one shape may have its number once."""

    shapes: Codes
    grids: Codes
    configs: Codes

    def of(self, indices: Codes) -> "Points":
        """Some of the points."""
        shapes = self.shapes[indices] if len(self.shapes) == len(self.configs) else self.shapes
        return Points(shapes, self.grids[indices], self.configs[indices])


class Kernel:
    """The covariance of log times with some parameters.

    Args:
        distances: of the values of each axis, (values, values): those of sizes, of grids, and of knobs.
        sizes: 1 for each value of a shape, (shapes, values of all sizes).
        knobs: 1 for each value of a config, (configs, values of all knobs).
        level: deviation of a shape's level; 0 for values that are compared across shapes.
        logs: of the parameters: weights and length scales of the axes, deviations of the process, of a config, of an
            error; None for the means of the prior.

    Attributes:
        logs: of the parameters.
        prior: means of the logs.
        level: deviation of a shape's level.
        variance, error: those of a time, and of its error alone.
        likeness: logs of the factors of each two shapes, (shapes, shapes).
    """

    def __init__(
        self, distances: Sequence[Array], sizes: Array, knobs: Array, level: float = LEVEL, logs: Array | None = None
    ) -> None:
        self._distances, self._sizes, self._knobs, self.level = distances, sizes, knobs, level
        axes = np.ones(len(distances))
        self.prior, self._spread = (
            np.concatenate([_WEIGHT[which] * axes, _LENGTH[which] * axes, [one[which] for one in _DEVIATIONS]])
            for which in (0, 1)
        )
        self.logs = self.prior if logs is None else logs
        weights, lengths, (process, config, error) = self._parameters(self.logs)
        self._process, self._config, self.error = process**2, config**2, error**2 + JITTER
        self.variance = self._process + level**2 + self._config + self.error
        table, first, last = self._table(weights, lengths), sizes.shape[1], -knobs.shape[1]
        self.likeness: Array = sizes @ table[:first, :first] @ sizes.T
        self._of_shapes, self._of_grids = np.exp(self.likeness), np.exp(table[first:last, first:last])
        self._of_knobs = table[last:, last:]

    def __call__(self, first: Points, second: Points) -> Array:
        """The covariance of each two points without their errors, (first, second)."""
        (ours, rows), (theirs, columns) = (np.unique(one.configs, return_inverse=True) for one in (first, second))
        of_configs = self._process * np.exp(self._knobs[ours] @ self._of_knobs @ self._knobs[theirs].T)
        result = _pairs(of_configs, rows, columns)
        result *= _pairs(self._of_grids, first.grids, second.grids)
        result *= _pairs(self._of_shapes, first.shapes, second.shapes)
        result.reshape(-1)[np.flatnonzero(first.configs[:, None] == second.configs)] += self._config
        result += self.level**2 * (first.shapes[:, None] == second.shapes)
        return result

    def fitted(self, points: Points, targets: Array) -> "Kernel":
        """The kernel with the parameters of greatest posterior density, from the log times of points."""
        grids = np.eye(len(self._of_grids))[points.grids]
        values = np.column_stack([self._sizes[points.shapes], grids, self._knobs[points.configs]])
        same_shape = LEVEL**2 * (points.shapes[:, None] == points.shapes)
        same_config = (points.configs[:, None] == points.configs).astype(np.float64)

        def objective(logs: Array) -> tuple[float, Array]:
            weights, lengths, (process, config, error) = self._parameters(logs)
            smooth = process**2 * np.exp(values @ self._table(weights, lengths) @ values.T)
            covariance = smooth + config**2 * same_config + same_shape
            covariance[np.diag_indices_from(covariance)] += error**2 + JITTER
            factor = np.linalg.cholesky(covariance)
            inverse_factor = solved(factor, np.eye(len(targets)))
            inverse = inverse_factor.T @ inverse_factor
            scaled = inverse @ targets
            away = (logs - self.prior) / self._spread
            value = 0.5 * float(targets @ scaled) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(away @ away)
            slope = 0.5 * (inverse - np.outer(scaled, scaled))  # by the covariance
            by_table = values.T @ (slope * smooth) @ values
            by_weights, by_lengths = [], []
            for part, distance, weight, length in self._axes(weights, lengths):
                matern, by_length = _matern(distance, length)
                by_matern = by_table[part, part] / (1 + weight * matern)
                by_weights.append(weight * ((by_matern * matern).sum() - by_table[part, part].sum() / (1 + weight)))
                by_lengths.append(weight * (by_matern * by_length).sum())
            by_process, by_config = 2 * (slope * smooth).sum(), 2 * config**2 * (slope * same_config).sum()
            gradient = np.array([*by_weights, *by_lengths, by_process, by_config, 2 * error**2 * np.trace(slope)])
            return value, gradient + away / self._spread

        bounds = [*zip(self.prior - _BOUND * self._spread, self.prior + _BOUND * self._spread, strict=True)]
        result = minimize(objective, self.logs, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
        return Kernel(self._distances, self._sizes, self._knobs, self.level, np.asarray(result.x))

    def _parameters(self, logs: Array) -> tuple[Array, Array, Array]:
        """Weights, length scales, and deviations of the process, of a config and of an error."""
        axes = len(self._distances)
        weights, lengths, deviations = np.split(np.exp(logs), [axes, 2 * axes])
        return weights, lengths, deviations

    def _axes(self, weights: Array, lengths: Array) -> Iterator[tuple[slice, Array, float, float]]:
        """Of each axis the places of its values among those of all, their distances, its weight and length scale."""
        ends = np.cumsum([*map(len, self._distances)]).tolist()
        parts = [slice(start, end) for start, end in pairwise([0, *ends])]
        return zip(parts, self._distances, weights.tolist(), lengths.tolist(), strict=True)

    def _table(self, weights: Array, lengths: Array) -> Array:
        """Logs of the factors, (values of all axes, values of all axes)."""
        factors = [
            np.log1p(weight * _matern(distance, length)[0]) - math.log1p(weight)
            for _, distance, weight, length in self._axes(weights, lengths)
        ]
        return np.asarray(block_diag(*factors))


class Posterior:
    """What is expected of the log times of some points, relative to the best of their shape.

    Args:
        kernel: of all points.
        known, targets: points with a time, and their log times.
        points: points without one.

    Attributes:
        mean, deviation: of each point, (points,).
    """

    def __init__(self, kernel: Kernel, known: Points, targets: Array, points: Points) -> None:
        self._kernel, self._points = kernel, points
        factor = np.asarray(np.linalg.cholesky(_with_errors(kernel(known, known), kernel.error)), np.float64)
        self._half = solved(factor, kernel(known, points))
        mean = targets.mean()
        self.mean = np.asarray(solved(factor, (targets - mean)[:, None])[:, 0] @ self._half + mean)
        variance = kernel.variance - np.einsum("ij,ij->j", self._half, self._half)
        self.deviation = np.sqrt(np.maximum(variance, JITTER))

    def draws(self, indices: Codes, count: int, random: Generator) -> Array:
        """Joint draws of the log times of some of the points, (draws, indices)."""
        points, half = self._points.of(indices), self._half.take(indices, 1, mode="clip")
        covariance = self._kernel(points, points) - half.T @ half
        root = np.linalg.cholesky(_with_errors(covariance, self._kernel.error))
        return np.asarray((self.mean[indices, None] + root @ random.standard_normal((len(indices), count))).T)


class Surrogate:
    """The process and the times that it has learned.

    Args:
        kernel: over the points.

    Attributes:
        points: all that were learned.
        logs: their log times, (points,).
        kernel: with the parameters of the last fit.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        nothing = np.zeros(0, np.int64)
        self.points, self.logs = Points(nothing, nothing, nothing), np.zeros(0)
        self._fitted = 0
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.logs)

    @property
    def targets(self) -> Array:
        """The log times; where shapes have levels, relative to the best of their shape and bent, (points,)."""
        if not self.kernel.level:
            return self.logs
        least = np.full(len(self.kernel.likeness), np.inf)
        np.minimum.at(least, self.points.shapes, self.logs)
        return bent(self.logs - least[self.points.shapes])

    def add(self, shape: int, grids: Codes, configs: Codes, logs: Array) -> None:
        """Learn log times of configs (their numbers) at a shape (its number), which are new."""
        new = Points(np.full(len(configs), shape), grids, configs)
        self.points = Points(*map(np.concatenate, zip(self.points, new, strict=True)))
        self.logs = np.concatenate([self.logs, logs])

    def posterior(self, shape: int, grids: Codes, configs: Codes) -> Posterior:
        """What is expected of configs without a time at a shape; fits the parameters where the times have grown."""
        targets = self.targets
        if len(self) >= REFIT * self._fitted:
            self._fitted = len(self)
            self._fit(targets)
        some = near(self.points, shape, targets, self.kernel)
        return Posterior(self.kernel, self.points.of(some), targets[some], Points(np.array([shape]), grids, configs))

    def _fit(self, targets: Array) -> None:
        """Fit the parameters to half of the fastest times and some others, from those before."""
        order, half = np.argsort(targets, kind="stable"), MOST_FITTED // 2
        some = np.sort(np.concatenate([order[:half], self._random.permutation(order[half:])[:half]]))
        self.kernel = self.kernel.fitted(self.points.of(some), targets[some] - targets[some].mean())


def solved(lower: Array, right: Array) -> Array:
    """The solution x of lower x = right, for a lower triangular matrix, (n, columns).

    Takes two thirds of the time of scipy's for 400 rows, and numpy's products let other threads run.
    """
    solution = np.empty_like(right)
    for start in range(0, len(lower), _ROWS):
        rows, before = slice(start, start + _ROWS), slice(start)
        rest = right[rows] - lower[rows, before] @ solution[before]
        np.matmul(dtrtri(lower[rows, rows], lower=1)[0], rest, out=solution[rows])
    return solution


def bent(logs: Array) -> Array:
    """Log times relative to the best of their shape, those of slow configs made less."""
    return np.where(logs < SLOW, logs, SLOW * (1 + np.log(np.maximum(logs / SLOW, 1.0))))


def near(points: Points, shape: int, targets: Array, kernel: Kernel) -> Codes:
    """Indices of the times that say most of a shape."""
    said = kernel.likeness[:, shape][points.shapes] - BY_SLOWNESS * targets
    unsaid = np.where(points.shapes == shape, 0.0, -said)
    return np.sort(np.argsort(unsaid, kind="stable")[:MOST_POINTS])


def _matern(distance: Array, length: float) -> tuple[Array, Array]:
    """The Matern 3/2 of distances, and its slope by the log of the length scale."""
    scaled = math.sqrt(3) * distance / length
    decay = np.exp(-scaled)
    return (1 + scaled) * decay, scaled**2 * decay


def _pairs(table: Array, rows: Codes, columns: Codes) -> Array:
    """The values of each two of these indices, (rows, columns)."""
    return table[rows].take(columns, 1, mode="clip")  # several times as fast as if it checked them


def _with_errors(covariance: Array, variance: float) -> Array:
    """That of times: each has an error of its own."""
    covariance[np.diag_indices_from(covariance)] += variance
    return covariance
