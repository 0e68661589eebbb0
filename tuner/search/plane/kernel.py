"""The covariance of a surrogate over the values of sizes and knobs, and its fit to the times of one operator.

In: the axes, points, and their log times. Out: parameters, covariances. A point has a shape, a config and a grid, the
rank of its number of programs.

The kernel is a product over axes j of (1 + w_j k_j) / (1 + w_j), k_j a Matern 3/2 of the distance of two values: with
small weights a sum of effects of single axes, with large ones of all their interactions (Durrande et al., ANOVA kernels
and RKHS of zero mean functions, 2013). Beside it a config has an effect of its own that all shapes share, a shape has a
level of its own, so that only ratios of its times count, and a time has an error. Weights, length scales and deviations
are those of the greatest posterior density, given weak priors.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from normtune.tuner.search.plane.moves import Array, Codes

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


class Points(NamedTuple):
    """Numbers of shapes, grids and configs of some points, (points,); those of one shape may have its number once."""

    shapes: Codes
    grids: Codes
    configs: Codes

    def of(self, indices: Codes) -> "Points":
        """Some of the points."""
        shapes = self.shapes[indices] if len(self.shapes) == len(self.configs) else self.shapes
        return Points(shapes, self.grids[indices], self.configs[indices])


class Parameters(NamedTuple):
    """Weights and length scales of the axes, and standard deviations of log times: see the module."""

    weights: Array
    lengths: Array
    process: float
    config: float
    error: float


class Kernel:
    """The kernel over points.

    Args:
        distances: of the values of each axis, (values, values): those of sizes, of grids, and of knobs.
        sizes: codes of each shape, (shapes, sizes).
        knobs: codes of each config, (configs, knobs).

    Attributes:
        sizes, knobs: the codes.
        widths: numbers of values of the axes.
        parts: places of the values of each axis among those of all.
        prior: logs of the parameters without times.
    """

    def __init__(self, distances: Sequence[Array], sizes: Codes, knobs: Codes) -> None:
        self._distances, self.sizes, self.knobs = distances, sizes, knobs
        self.widths = [*map(len, distances)]
        self.parts = [slice(end - width, end) for width, end in zip(self.widths, np.cumsum(self.widths), strict=True)]
        axes = np.ones(len(distances))
        self.prior, self._spread = (
            np.concatenate([_WEIGHT[which] * axes, _LENGTH[which] * axes, [one[which] for one in _DEVIATIONS]])
            for which in (0, 1)
        )

    def table(self, parameters: Parameters) -> Array:
        """Logs of the factors, (values of all axes, values of all axes)."""
        table = np.zeros((self.parts[-1].stop, self.parts[-1].stop))
        for part, distance, weight, length in zip(
            self.parts, self._distances, parameters.weights, parameters.lengths, strict=True
        ):
            scaled = math.sqrt(3) * distance / length
            table[part, part] = np.log1p(weight * (1 + scaled) * np.exp(-scaled)) - math.log1p(weight)
        return table

    def read(self, logs: Array) -> Parameters:
        """The parameters of a vector of their logs."""
        count = len(self._distances)
        values = np.exp(logs)
        return Parameters(values[:count], values[count : 2 * count], *map(float, values[2 * count :]))

    def codes(self, points: Points) -> Codes:
        """The values of points on all axes, (points, axes)."""
        return np.column_stack([self.sizes[points.shapes], points.grids, self.knobs[points.configs]])

    def fitted(self, at: Points, logs: Array, start: Array) -> Array:
        """The logs of the parameters of greatest posterior density, from the log times of points."""
        points = at_values(self.widths, self.codes(at))
        same_shape = LEVEL**2 * (at.shapes[:, None] == at.shapes)
        same_config = (at.configs[:, None] == at.configs).astype(np.float64)

        def objective(values: Array) -> tuple[float, Array]:
            p = self.read(values)
            smooth = p.process**2 * np.exp(points @ self.table(p) @ points.T)
            covariance = smooth + p.config**2 * same_config + same_shape
            covariance[np.diag_indices_from(covariance)] += p.error**2 + JITTER
            factor = cholesky(covariance, lower=True, check_finite=False)
            inverse_factor = solve_triangular(factor, np.eye(len(logs)), lower=True, check_finite=False)
            inverse = inverse_factor.T @ inverse_factor
            solved = inverse @ logs
            away = (values - self.prior) / self._spread
            value = 0.5 * float(logs @ solved) + float(np.log(np.diag(factor)).sum()) + 0.5 * float(away @ away)
            slope = 0.5 * (inverse - np.outer(solved, solved))  # by the covariance
            by_table = points.T @ (slope * smooth) @ points
            gradient = np.empty_like(values)
            count = len(self._distances)
            for axis, (part, distance) in enumerate(zip(self.parts, self._distances, strict=True)):
                weight, length = p.weights[axis], p.lengths[axis]
                scaled = math.sqrt(3) * distance / length
                matern = (1 + scaled) * np.exp(-scaled)
                by_matern = by_table[part, part] / (1 + weight * matern)
                gradient[axis] = weight * ((by_matern * matern).sum() - by_table[part, part].sum() / (1 + weight))
                gradient[count + axis] = weight * (by_matern * scaled**2 * np.exp(-scaled)).sum()
            gradient[-3] = 2 * (slope * smooth).sum()
            gradient[-2] = 2 * p.config**2 * (slope * same_config).sum()
            gradient[-1] = 2 * p.error**2 * np.trace(slope)
            return value, gradient + away / self._spread

        bounds = [(p - _BOUND * s, p + _BOUND * s) for p, s in zip(self.prior, self._spread, strict=True)]
        result = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
        return np.asarray(result.x)


def at_values(widths: Sequence[int], codes: Codes) -> Array:
    """1 for each value of a point, (points, values of all axes): `widths` are their numbers of values."""
    starts = np.cumsum([0, *widths])
    result = np.zeros((len(codes), starts[-1]))
    result[np.arange(len(codes))[:, None], codes + starts[:-1]] = 1.0
    return result
