"""Medians, intervals and halves against their definitions."""

from math import comb
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.results.statistics import halves, summary

times = st.integers(1, 2**31 - 1)


def test_halves_are_whole_blocks_by_their_number():
    assert halves(np.arange(9, dtype=np.int32)).tolist() == [True] * 2 + [False] * 2 + [True] * 2 + [False] * 2 + [True]
    assert halves(np.array([3, 4, 6], np.int32)).tolist() == [False, True, False]


# Ranks of the interval of the median at 95 %, as tables of the sign test give them.
@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (16, 4, 13), (25, 8, 18)]
)
def test_the_interval_lies_between_the_ranks_of_the_sign_test(count, low, high):
    shuffled = np.random.default_rng(0).permutation(np.arange(1, count + 1)).astype(np.int32)
    assert summary(shuffled) == ((count + 1) // 2, low, high)


@given(st.integers(6, 600))
def test_the_interval_is_the_shortest_that_misses_one_in_twenty(count):
    _, low, high = summary(np.arange(1, count + 1, dtype=np.int32))
    assert low + high == count + 1

    def misses(rank: int) -> int:
        """Of 2**count equally likely sides of the samples, those that put the median beyond a rank or its mirror."""
        return 2 * sum(comb(count, number) for number in range(rank))

    assert 20 * misses(low) <= 2**count < 20 * misses(low + 1)


@given(st.lists(times, min_size=1, max_size=40))
def test_the_median_is_rounded_down_to_a_nanosecond(samples):
    middle, low, high = summary(np.array(samples, np.int32))
    assert middle == int(median(samples) // 1)
    assert min(samples) <= low <= middle <= high <= max(samples)


def test_no_samples_have_no_summary():
    with pytest.raises(ValueError, match="no samples"):
        summary(np.array([], np.int32))
