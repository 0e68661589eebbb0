"""Statistics of samples.

In: samples in nanoseconds and their rounds. Out: a median with an interval, and the split of rounds
into two halves. Comparing configs is left to the fit.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from normtune.results.records import ROUNDS_PER_BLOCK

# The interval of `summary` misses the true median at most once in so many times.
MISSES_ONE_IN = 20


def halves(rounds: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Half of each round: True for rounds of even blocks, False for those of odd ones.

    By whole blocks, because the rounds of a block share their luck; by the number of the block, so that all configs of
    a problem are split alike.
    """
    return (rounds // ROUNDS_PER_BLOCK) % 2 == 0


def summary(samples: NDArray[np.int32]) -> tuple[int, int, int]:
    """Median, and a confidence interval for it that assumes no distribution.

    The interval lies between two order statistics; that it misses the median has a binomial probability (Conover,
    Practical Nonparametric Statistics, section 3.2), at most 5 % from 6 samples on. Fewer than 6 give the least and the
    greatest. Samples of one block are correlated, so the interval is too narrow for them; it is for display only.

    Args:
        samples: int32 of shape (n,), ns, n at least 1.

    Returns:
        Median (the mean of the middle two where n is even, rounded down), low and high, ns.

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
    """Number of samples to drop at each end for an interval that misses rarely enough."""
    depth = 0
    term = tail = 1  # of 2**count equally likely sides of the samples: those with `depth`, and at most so many, on one
    while True:
        term = term * (count - depth) // (depth + 1)
        tail += term
        if MISSES_ONE_IN * 2 * tail > 2**count:
            return depth
        depth += 1
