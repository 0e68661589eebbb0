"""The tree of relative sizes with the least regret on several GPUs together, every GPU with the same weight.

Rows per multiprocessor are an ordered axis like rows, so `solver.optimum` proves the tree.

Between two neighbouring sizes any threshold separates the data equally well. The most readable one in the middle half
of the gap, by ratio, is taken: a power of two or its reciprocal, else a round integer (by `grid`) or its reciprocal,
else the simplest fraction.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.any_gpu.legality import EveryGpu
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import beyond
from normtune.heuristics.solver.grid import Axis, axis, coarsened, middle_half, roundest
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.config import Config
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.tablefile.relative_tree import HIDDEN, ROWS_PER_SM, RelativeSplit, RelativeTree
from normtune.kernels.tablefile.tree import Leaf, Tree
from normtune.kernels.target import Target

# Relative sizes are integers of this scale, fine enough to separate GPUs that differ by one multiprocessor.
_SCALE = 1 << 48


class Part(NamedTuple):
    """Data of one GPU.

    Attributes:
        target: the GPU's limits, with its own multiprocessors and L2 cache.
        matrix: the GPU's timing matrix.
    """

    target: Target
    matrix: TimingMatrix


class Joint:
    """The best trees of several GPUs together."""

    def __init__(self, parts: Sequence[Part], legal: EveryGpu, max_leaves: int) -> None:
        """Solve for 1 to `max_leaves` leaves; `parts` has at least one GPU, all of one key."""
        configs = tuple(sorted({config for part in parts for config in part.matrix.configs}))
        values = sorted({_scaled(part, shape[0]) for part in parts for shape in part.matrix.problems})
        thresholds = _neighbours(values)
        starts = [floor(threshold * _SCALE) for threshold in thresholds]
        self._thresholds = dict(zip(starts, thresholds, strict=True))
        rows = Axis("rows", (*(start - 1 for start in starts), MAX_ROWS * _SCALE), True)
        sizes = {shape[1] for part in parts for shape in part.matrix.problems}
        hidden = axis("hidden", sizes, legal.spec.max_hidden)
        rows, hidden = coarsened((rows, hidden))
        barred = ~legal.over_rows_per_sm(configs, rows.tops, _SCALE, hidden.tops)
        cost = np.zeros(barred.shape, np.int64)
        most = max(len(part.matrix.problems) for part in parts)
        self._weight = 0
        for part in parts:
            weights = part.matrix.weight * most // len(part.matrix.problems)
            self._weight += int(weights.sum())
            self._add(part, configs, (rows, hidden), weights, cost, barred)
        self._optima = Optima((rows, hidden), configs, cost, barred, np.ones_like(barred), max_leaves)

    def least(self, leaves: int) -> int | None:
        """Mean regret of the best tree of at most that many leaves, log_ppm; None if there is none."""
        least = self._optima.least(leaves)
        return None if least is None else least // self._weight

    def tree(self, leaves: int) -> RelativeTree | None:
        """The best tree of at most that many leaves; None if there is none."""
        tree = self._optima.tree(leaves)
        return None if tree is None else self._relative(tree)

    def _relative(self, tree: Tree) -> RelativeTree:
        if isinstance(tree, Leaf):
            return tree
        low, high = self._relative(tree.low), self._relative(tree.high)
        if tree.axis == HIDDEN:
            return RelativeSplit(HIDDEN, 1, tree.threshold, low, high)
        threshold = self._thresholds[tree.threshold]
        return RelativeSplit(ROWS_PER_SM, threshold.denominator, threshold.numerator, low, high)

    def _add(
        self,
        part: Part,
        configs: Sequence[Config],
        axes: tuple[Axis, ...],
        weights: NDArray[np.int64],
        cost: NDArray[np.int64],
        barred: NDArray[np.bool_],
    ) -> None:
        """Add the problems of a GPU to cost and barred, both (configs, bins of size, bins of hidden)."""
        rows, hidden = axes
        costs, bars = (np.moveaxis(cells, 0, -1) for cells in (cost, barred))  # views, by bin
        columns = [configs.index(config) for config in part.matrix.configs]
        for index, shape in enumerate(part.matrix.problems):
            usable = np.zeros(len(configs), np.bool_)
            usable[columns] = part.matrix.usable[index]
            regret = np.zeros(len(configs), np.int64)
            regret[columns] = np.where(part.matrix.usable[index], part.matrix.regret[index], 0)
            cell = rows.bin(_scaled(part, shape[0])), hidden.bin(shape[1])
            bars[cell] |= ~usable
            costs[cell] += regret * int(weights[index])
            # Sizes beyond the measured ones have no problems: they get the nearest problem's regret with a weight of 1.
            filled = np.where(usable, regret, regret.max())
            for outer in beyond(cell, axes):
                costs[outer] += filled


def _scaled(part: Part, rows: int) -> int:
    """Rows per multiprocessor, times `_SCALE`."""
    return rows * _SCALE // part.target.sms


def _neighbours(values: Sequence[int]) -> list[Fraction]:
    """Thresholds between neighbours of ascending scaled sizes, and one above the last."""
    thresholds = [between(Fraction(low, _SCALE), Fraction(high, _SCALE)) for low, high in pairwise(values)]
    return [*thresholds, Fraction(values[-1] // _SCALE + 1)]


def between(low: Fraction, high: Fraction) -> Fraction:
    """The most readable threshold in the middle half of the gap, above `low` and at most `high`, both positive."""
    least, most = (Fraction(end, _SCALE) for end in middle_half(floor(low * _SCALE), floor(high * _SCALE)))
    powers = [power for bit in range(-48, 49) if least <= (power := Fraction(2) ** bit) <= most]
    if powers:
        middle = low * high
        return min(powers, key=lambda power: (max(power**2 / middle, middle / power**2), power))
    if ceil(least) <= most:
        return Fraction(roundest(ceil(least), floor(most), floor(low * high)))
    if ceil(1 / most) <= 1 / least:
        return Fraction(1, roundest(ceil(1 / most), floor(1 / least), floor(1 / (low * high))))
    return _simplest(least, most)


def _simplest(least: Fraction, most: Fraction) -> Fraction:
    """The fraction of least denominator from `least` to `most`, ends included, by continued fractions."""
    whole = floor(least)
    if whole == least:
        return Fraction(whole)
    if whole + 1 <= most:
        return Fraction(whole + 1)
    return whole + 1 / _simplest(1 / (most - whole), 1 / (least - whole))
