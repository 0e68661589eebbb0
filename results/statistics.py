"""Statistics of samples: a median with an interval, and the split of rounds into two halves."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from normtune.results.records import ROUNDS_PER_BLOCK

# The interval of `summary` misses the true median at most once in this many times.
MISSES_ONE_IN = 20


def halves(rounds: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Half of each round: True for rounds of even blocks, False for those of odd ones.

    Rounds of a block are correlated, so they stay together. The number of the block decides, so that all configs of a
    problem have the same split.
    """
    return (rounds // ROUNDS_PER_BLOCK) % 2 == 0


def summary(samples: NDArray[np.int32]) -> tuple[int, int, int]:
    """Median, and a confidence interval for it that assumes no distribution.

    The interval lies between two order statistics. It misses the median with a binomial probability of at most 5 % for
    6 or more samples (Conover, Practical Nonparametric Statistics, section 3.2); with fewer, it goes from the least to
    the greatest. It is for display only: samples of one block are correlated, which makes it too narrow.

    Args:
        samples: int32 of shape (n,), ns, n at least 1.

    Returns:
        Median (the mean of the middle two for even n, rounded down), low and high, ns.

    Raises:
        ValueError: there are no samples.
    """
    count = len(samples)
    if not count:
        raise ValueError("no samples: expected at least one")
    ordered = sorted(samples.tolist())
    depth = _depth(count)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) // 2
    return median, ordered[depth], ordered[count - 1 - depth]


@cache
def _depth(count: int) -> int:
    """Number of samples to leave out at each end of the interval."""
    depth = 0
    # Of 2**count equally likely outcomes, those with exactly, and with at most, `depth` samples below the median.
    term = tail = 1
    while True:
        term = term * (count - depth) // (depth + 1)
        tail += term
        if MISSES_ONE_IN * 2 * tail > 2**count:
            return depth
        depth += 1
