"""Gain of one config over another, over shapes, with its confidence interval.

Method. Two configs are compared inside rounds, and each block of rounds gives one mean log-ratio (rounds of one block
share their noise). At a shape the blocks give a mean and its variance. The gain over shapes is the weighted mean of
these, with the resulting variance. Its interval is that of a paired t-test with the degrees of freedom of Welch (1947)
and Satterthwaite (1946): at 95 %, for these shapes only, without the variation over other shapes. The saved time of a
block is (ratio - 1) times the first config's time, which is taken as exact.

Independence of blocks was tested on the recorded H200: of 8,130 random pairs of configs (forward in bfloat16, 8 blocks
each) the even and the odd blocks differ by Welch's test at 5 % in 3.9 % and at 1 % in 0.5 %.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.fixed_log import MILLION, fraction
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.regret.paired import block_ratios

CONFIDENCE = 0.95


class ConfidenceInterval(NamedTuple):
    """A mean and the ends of its interval; the ends are None if its variance is unknown."""

    mean: float
    low: float | None
    high: float | None


class Gain(NamedTuple):
    """Gain of the first over the second.

    Attributes:
        shapes: their number.
        weight: their total weight.
        log: log of the second's time over the first's, log_ppm.
        saved: the second's time minus the first's, microseconds a call.
    """

    shapes: int
    weight: int
    log: ConfidenceInterval
    saved: ConfidenceInterval

    @property
    def ratio(self) -> ConfidenceInterval:
        """How much faster the first is, as a fraction: 0.0123 for 1.23 %."""
        mean, *ends = (None if log is None else fraction(log) for log in self.log)
        return ConfidenceInterval(mean or 0.0, *ends)


class Pair(NamedTuple):
    """One shape: its index in the matrix, and the columns of the first and the second config."""

    problem: int
    first: int
    second: int


def gain(matrix: TimingMatrix, pairs: Sequence[Pair]) -> Gain | None:
    """The gain over some shapes; None without shapes.

    Shapes with fewer than two common blocks are left out. If no shape has two, the gain comes from the regrets, without
    an interval.

    Args:
        matrix: the times, with those in nanoseconds; both configs of each pair are usable.
        pairs: the shapes.
    """
    if not pairs or matrix.times is None:
        return None
    blocks = [_blocks(matrix, pair) for pair in pairs]
    paired = any(len(ratios) > 1 for ratios in blocks)
    compared = [(pair, ratios) for pair, ratios in zip(pairs, blocks, strict=True) if len(ratios) > 1 or not paired]
    logs, saved = [], []
    for pair, of_blocks in compared:
        first, second = (float(matrix.regret[pair.problem, column]) for column in (pair.first, pair.second))
        microseconds = matrix.times.best[pair.problem] / 1000 * math.exp(first / MILLION)
        ratios = of_blocks if paired else np.array([second - first])
        logs.append(ratios)
        saved.append(microseconds * np.expm1(ratios / MILLION))
    weights = matrix.weight[[pair.problem for pair, _ in compared]]
    return Gain(len(compared), int(weights.sum()), _interval(logs, weights), _interval(saved, weights))


def _blocks(matrix: TimingMatrix, pair: Pair) -> NDArray[np.float64]:
    """The mean log-ratio, second over first, of each block that has both."""
    if matrix.rounds is None:
        return np.empty(0)
    return block_ratios(matrix.rounds, pair.problem, pair.second, pair.first)


def _interval(values: Sequence[NDArray[np.float64]], weights: NDArray[np.int64]) -> ConfidenceInterval:
    """The weighted mean of the means of several samples, and its interval."""
    shares = weights / weights.sum()
    mean = sum(float(share * sample.mean()) for share, sample in zip(shares, values, strict=True))
    if any(len(sample) < 2 for sample in values):
        return ConfidenceInterval(mean, None, None)
    from scipy.special import stdtrit

    parts = [float(share**2 * sample.var(ddof=1) / len(sample)) for share, sample in zip(shares, values, strict=True)]
    variance = sum(parts)
    if not variance:
        return ConfidenceInterval(mean, mean, mean)
    freedom = variance**2 / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, values, strict=True))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return ConfidenceInterval(mean, mean - half, mean + half)
