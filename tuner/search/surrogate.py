"""A Gaussian process (`kernel`) that has learned the times of one operator, and predicts those of other configs.

In: log times of configs at shapes, as codes of their values. Out: the posterior of the log times of other configs.

A prediction at a shape uses the times that say most of it: its own, and those of near shapes, the fast ones first
(after Gramacy and Apley, Local Gaussian process approximation for large computer experiments, 2015).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import cholesky, solve_triangular

from normtune.tuner.search.kernel import JITTER, LEVEL, Array, Codes, Kernel, Parameters

# Most times that a prediction uses, and that the parameters are fitted to.
MOST_POINTS, MOST_FITTED = 400, 320
# The parameters are fitted again when the times have grown by this factor.
AGAIN = 1.6
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


class Surrogate:
    """The process and the times that it has learned.

    Args:
        distances: see `Kernel`; those of the sizes come first.
        sizes: codes of each shape, (shapes, sizes).
        has_levels: whether shapes have levels.

    Attributes:
        distinct: number of configs that have times.
    """

    def __init__(self, distances: Sequence[Array], sizes: Codes, has_levels: bool = True) -> None:
        self._kernel = Kernel(distances)
        self._values = self._kernel.prior
        self._sizes = sizes
        self._has_levels = has_levels
        self._codes: Codes = np.zeros((0, len(distances)), np.int64)
        self._configs = np.zeros(0, np.int64)
        self._places = np.zeros(0, np.int64)
        self._logs = np.zeros(0)
        self._fitted = 0
        self._random = np.random.default_rng(0)
        self._known: set[int] = set()

    def __len__(self) -> int:
        return len(self._logs)

    @property
    def distinct(self) -> int:
        """Number of configs that have times."""
        return len(self._known)

    def add(self, codes: Codes, configs: Codes, shape: int, logs: Array) -> None:
        """Learn log times of configs (their numbers) at a shape (its number), which are new."""
        self._codes = np.concatenate([self._codes, codes])
        self._configs = np.concatenate([self._configs, configs])
        self._places = np.concatenate([self._places, np.full(len(codes), shape)])
        self._logs = np.concatenate([self._logs, logs])
        self._known.update(configs.tolist())

    @property
    def parameters(self) -> Parameters:
        """Those fitted last."""
        return self._kernel.read(self._values)

    def has(self, config: int) -> bool:
        """Whether a config has a time at any shape."""
        return config in self._known

    def _targets(self) -> Array:
        """Log times relative to the best of their shape, cut off."""
        if not self._has_levels:
            return self._logs
        least = np.full(len(self._sizes), np.inf)
        np.minimum.at(least, self._places, self._logs)
        return self.bent(self._logs - least[self._places])

    @staticmethod
    def bent(logs: Array) -> Array:
        """Log times relative to the best of their shape, those of slow configs made less."""
        return np.where(logs < SLOW, logs, SLOW * (1 + np.log(np.maximum(logs / SLOW, 1.0))))

    def _fit(self, targets: Array) -> None:
        """Fit the parameters to half of the fastest times and some others."""
        order = np.argsort(targets, kind="stable")
        half = MOST_FITTED // 2
        rest = self._random.permutation(order[half:])[:half]
        some = np.sort(np.concatenate([order[:half], rest]))
        mean = targets[some].mean()
        self._values = self._kernel.fitted(
            self._codes[some], self._configs[some], self._places[some], targets[some] - mean, self._values
        )
        self._fitted = len(targets)

    def _near(self, shape: int, targets: Array, table: Array) -> Codes:
        """Indices of the times that say most of a shape."""
        if len(targets) <= MOST_POINTS:
            return np.arange(len(targets))
        starts = self._kernel.starts[: self._sizes.shape[1]]
        likeness = table[self._sizes + starts, self._sizes[shape] + starts].sum(axis=1)
        said = np.where(self._places == shape, 0.0, likeness[self._places] - BY_SLOWNESS * targets)
        return np.sort(np.argsort(-said, kind="stable")[:MOST_POINTS])

    def posterior(self, codes: Codes, configs: Codes, shape: int) -> Posterior:
        """What is expected of configs without a time at a shape."""
        targets = self._targets()
        if len(targets) >= AGAIN * self._fitted:
            self._fit(targets)
        p = self.parameters
        table = self._kernel.table(p)
        some = self._near(shape, targets, table)
        level = LEVEL if self._has_levels else 0.0
        ours, theirs = self._kernel.indicators(self._codes[some]), self._kernel.indicators(codes)
        weighted = ours @ table

        places, numbers = self._places[some], self._configs[some]
        within = p.process**2 * np.exp(weighted @ ours.T)
        within += p.config**2 * (numbers[:, None] == numbers) + level**2 * (places[:, None] == places)
        within[np.diag_indices_from(within)] += p.error**2 + JITTER
        across = p.process**2 * np.exp(weighted @ theirs.T)
        across += p.config**2 * (numbers[:, None] == configs) + level**2 * (places == shape)[:, None]
        factor = cholesky(within, lower=True, check_finite=False)
        half = solve_triangular(factor, across, lower=True, check_finite=False)
        mean = targets[some].mean() if len(some) else 0.0
        solved = solve_triangular(factor, targets[some] - mean, lower=True, check_finite=False)
        own = p.config**2 + p.error**2 + JITTER
        variance = p.process**2 + level**2 + own - (half**2).sum(axis=0)
        means = half.T @ solved + mean

        def draws(indices: Codes, count: int, random: Generator) -> Array:
            part, points = half[:, indices], theirs[indices]
            covariance = p.process**2 * np.exp(points @ table @ points.T) + level**2 - part.T @ part
            covariance[np.diag_indices_from(covariance)] += own
            root = cholesky(covariance, lower=True, check_finite=False)
            return np.asarray((means[indices, None] + root @ random.standard_normal((len(indices), count))).T)

        return Posterior(means, np.sqrt(np.maximum(variance, JITTER)), draws)
