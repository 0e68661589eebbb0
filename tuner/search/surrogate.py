"""A Gaussian process (`kernel`) that has learned the times of one operator, and draws those of other configs.

In: log times of configs at shapes, as codes of their values. Out: draws of the log times of other configs.

With more times than `MOST_POINTS` the process is projected on that many of them (Quinonero-Candela and Rasmussen, A
unifying view of sparse approximate Gaussian process regression, 2005). The part of the variance that this leaves out
counts as effects of configs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from scipy.linalg import cholesky, solve_triangular

from normtune.tuner.search.kernel import JITTER, LEVEL, Array, Codes, Kernel, Parameters

# Most times that the process is projected on; and most that its parameters are fitted to.
MOST_POINTS, MOST_FITTED = 256, 320
# The parameters are fitted again when the times have grown by this factor, the points chosen again by the other one.
AGAIN, ANEW = 1.6, 1.15
# Log times further than this from the best of their shape are told apart less and less: how slow a slow config is does
# little to find fast ones.
SLOW = 0.5


class Surrogate:
    """The process and the times that it has learned.

    Args:
        distances: see `Kernel`.
        shapes: number of shapes.
        has_levels: whether shapes have levels.

    Attributes:
        distinct: number of configs that have times.
    """

    def __init__(self, distances: Sequence[Array], shapes: int, has_levels: bool = True) -> None:
        self._kernel = Kernel(distances)
        self._values = self._kernel.prior
        self._shapes = shapes if has_levels else 1
        self._has_levels = has_levels
        self._codes: Codes = np.zeros((0, len(distances)), np.int64)
        # Configs by the order in which they came, and this place of each number, -1 before.
        self._configs = np.zeros(0, np.int64)
        self._place_of = np.zeros(0, np.int64)
        self.distinct = 0
        self._places = np.zeros(0, np.int64)
        self._logs = np.zeros(0)
        self._fitted = self._built = self._taken = 0
        self.random = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, codes: Codes, configs: Codes, shape: int, logs: Array) -> None:
        """Learn log times of configs (their numbers) at a shape (its number), which are new."""
        self._codes = np.concatenate([self._codes, codes])
        self._configs = np.concatenate([self._configs, self._known(configs, is_new=True)])
        self._places = np.concatenate([self._places, np.full(len(codes), shape if self._has_levels else 0)])
        self._logs = np.concatenate([self._logs, logs])

    def _known(self, numbers: Codes, is_new: bool = False) -> Codes:
        """Places of configs among those that have times, -1 for others; `is_new`: they get one."""
        if (most := int(numbers.max(initial=-1)) + 1) > len(self._place_of):
            self._place_of = np.concatenate([self._place_of, np.full(most - len(self._place_of), -1)])
        if is_new:
            new = np.unique(numbers[self._place_of[numbers] < 0])
            self._place_of[new] = self.distinct + np.arange(len(new))
            self.distinct += len(new)
        return self._place_of[numbers]

    @property
    def parameters(self) -> Parameters:
        """Those fitted last."""
        return self._kernel.read(self._values)

    def _targets(self) -> Array:
        """Log times relative to the best of their shape, cut off."""
        if not self._has_levels:
            return self._logs
        least = np.full(self._shapes, np.inf)
        np.minimum.at(least, self._places, self._logs)
        return self.bent(self._logs - least[self._places])

    @staticmethod
    def bent(logs: Array) -> Array:
        """Log times relative to the best of their shape, those of slow configs made less."""
        return np.where(logs < SLOW, logs, SLOW * (1 + np.log(np.maximum(logs / SLOW, 1.0))))

    def _chosen(self, count: int, targets: Array) -> Codes:
        """Indices of at most so many times: half of them the fastest of their shapes, the others drawn."""
        if len(targets) <= count:
            return np.arange(len(targets))
        order = np.argsort(targets, kind="stable")
        rest = self.random.permutation(order[count // 2 :])[: count - count // 2]
        return np.sort(np.concatenate([order[: count // 2], rest]))

    def prepare(self) -> None:
        """Fit what has to be fitted again, and solve for all times; nothing, if none is new."""
        if self._taken == len(self._logs):
            return
        targets = self._targets()
        if len(targets) >= AGAIN * self._fitted:
            some = self._chosen(MOST_FITTED, targets)
            mean = targets[some].mean()
            self._values = self._kernel.fitted(
                self._codes[some], self._configs[some], self._places[some], targets[some] - mean, self._values
            )
            self._fitted, self._built = len(targets), 0
        if len(targets) <= MOST_POINTS or len(targets) >= ANEW * self._built:
            self._build(targets)
        self._take()
        self._solve(targets)

    def _build(self, targets: Array) -> None:
        """Choose the points and forget what was projected."""
        p = self.parameters
        self._table = self._kernel.table(p)
        self._points = self._kernel.indicators(self._codes[self._chosen(MOST_POINTS, targets)])
        within = self._smooth(self._points)
        within[np.diag_indices_from(within)] += JITTER
        self._root = cholesky(within, lower=True, check_finite=False)
        self._features = np.zeros((0, len(within)))
        self._built, self._taken = len(targets), 0
        width = len(within) + self._shapes
        self._information = np.diag(np.concatenate([np.ones(len(within)), np.full(self._shapes, LEVEL**-2)]))
        self._sums = np.zeros((self.distinct, width))
        self._counts = np.zeros(len(self._sums))
        left_out = np.zeros(0)
        if len(targets) > len(within):
            part = self._features_of(self._codes[self._chosen(2 * MOST_POINTS, targets)])
            left_out = np.maximum(p.process**2 - (part**2).sum(axis=1), 0.0)
        self._config_variance = p.config**2 + float(left_out.mean() if len(left_out) else 0.0)
        self._error_variance = p.error**2 + JITTER

    def _smooth(self, points: Array) -> Array:
        return self.parameters.process**2 * np.exp(points @ self._table @ self._points.T)

    def _features_of(self, codes: Codes) -> Array:
        """Projections, (codes, points)."""
        across = self._smooth(self._kernel.indicators(codes))
        return np.asarray(solve_triangular(self._root, across.T, lower=True, check_finite=False).T)

    def _take(self) -> None:
        """Project the times that are new, and add what they say."""
        new = slice(self._taken, len(self._logs))
        projected = self._features_of(self._codes[new])
        if (count := len(self._logs)) > len(self._features):  # room for twice as many: all are many megabytes
            self._features = np.concatenate(
                [self._features, np.zeros((2 * count - len(self._features), projected.shape[1]))]
            )
        self._features[new] = projected
        rows = np.concatenate([projected, np.eye(self._shapes)[self._places[new]]], axis=1)
        if (most := self.distinct) > len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros((most - len(self._sums), rows.shape[1]))])
            self._counts = np.concatenate([self._counts, np.zeros(most - len(self._counts))])
        touched = np.unique(self._configs[new])
        before = self._sums[touched] * np.sqrt(self._shrink(touched))[:, None]
        np.add.at(self._sums, self._configs[new], rows)
        np.add.at(self._counts, self._configs[new], 1.0)
        after = self._sums[touched] * np.sqrt(self._shrink(touched))[:, None]
        self._information += (rows.T @ rows + before.T @ before - after.T @ after) / self._error_variance
        self._taken = len(self._logs)

    def _shrink(self, configs: Codes) -> Array:
        """How far the mean of a config's errors moves its effect, over the number of its times."""
        return np.asarray(
            self._config_variance / (self._error_variance + self._counts[configs] * self._config_variance)
        )

    def _solve(self, targets: Array) -> None:
        """The mean of the weights, and the root of their information."""
        shift = targets.mean() if len(targets) else 0.0
        self._mean = shift
        values = targets - shift
        totals = np.zeros(len(self._sums))
        np.add.at(totals, self._configs, values)
        configs = np.unique(self._configs)
        right = np.concatenate(
            [self._features[: len(values)].T @ values, np.bincount(self._places, values, self._shapes)]
        )
        right -= self._sums[configs].T @ (self._shrink(configs) * totals[configs])
        self._totals = totals
        self._factor = cholesky(self._information, lower=True, check_finite=False)
        half = solve_triangular(self._factor, right / self._error_variance, lower=True, check_finite=False)
        self._weights = solve_triangular(self._factor, half, lower=True, trans="T", check_finite=False)

    def draws(self, codes: Codes, configs: Codes, shape: int, count: int, random: Generator) -> Array:
        """Draws of log times, relative to the best of a shape, of configs without a time there, (count, configs)."""
        weights = self._weights[:, None] + solve_triangular(
            self._factor,
            random.standard_normal((len(self._weights), count)),
            lower=True,
            trans="T",
            check_finite=False,
        )
        place = shape if self._has_levels else 0
        features = self._features_of(codes)
        points = features.shape[1]
        result = features @ weights[:points] + weights[points + place] + self._mean
        variance = np.full(len(codes), self._config_variance) + self._error_variance
        if len(self._logs) <= MOST_POINTS:
            variance += np.maximum(self.parameters.process**2 - (features**2).sum(axis=1), 0.0)
        places = self._known(configs)
        known = np.flatnonzero(places >= 0)
        if len(known):
            own = places[known]
            shrink = self._shrink(own)
            result[known] += shrink[:, None] * (self._totals[own][:, None] - self._sums[own] @ weights)
            variance[known] += self._error_variance * shrink - self._config_variance
        return (result + np.sqrt(variance)[:, None] * random.standard_normal(result.shape)).T
