"""The bins in which trees are fitted: each cut between two measured sizes has one fixed threshold.

The data do not determine the best threshold between two sizes, so the roundest is taken: a power of two, else a
multiple of 1024, 512, 256, 128, 64, 100 or 10, else any integer; among equally round ones the nearest to the geometric
middle, and of two as near the smaller.

An axis that the code compares by `<=` is a length, such as hidden. Lengths without a remainder (powers of two, which
tiles fill, and multiples of 4096, which chunks fill) behave differently from their neighbours, so the gap beside one
belongs to the size at its other end. (On the recorded H200 at 64 shapes off the grid, in three dtypes: 64 leaves lose
0.44 % backward, 6.6 % at worst, with this rule; 0.80 and 25 % with the roundest integer of each gap.) Between two sizes
both with or both without a remainder, any integer of the gap is allowed.

An axis compared by `>=` is a count, such as rows. Its thresholds stay in the middle half of the gap, by ratio: if all
measured counts are powers of two, the roundest integer of a gap is its end, and all sizes between would be on one side.
`crossing` moves the thresholds of the chosen tree.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isqrt, prod
from typing import NamedTuple

from normtune.kernels.sizes import is_derived
from normtune.kernels.tablefile.tree import comparison, first_of, threshold_of

# Columns of the longest chunk.
_CHUNK = 4096
_ROUND = (1024, 512, 256, 128, 64, 100, 10, 1)
# The most bins of one or two axes, and of three: bounds on memory, which grows with their square. For 24 leaves, 1947
# bins of two axes take 0.2 GB and 3 s, 3840 bins of three axes 0.7 GB and 6 s.
MAX_BINS, MAX_BINS_OF_THREE = 2600, 4000
_DERIVED_BINS = 8


class Axis(NamedTuple):
    """Bins of one axis.

    Attributes:
        name: of the axis.
        tops: the largest integer of each bin, ascending; bin i starts above the top of bin i - 1.
        has_outer_bin: whether the last bin lies beyond all measured sizes.
    """

    name: str
    tops: tuple[int, ...]
    has_outer_bin: bool

    def bin(self, size: int) -> int:
        """The bin of a size; the last one if it exceeds all tops."""
        return min(bisect_left(self.tops, size), len(self.tops) - 1)

    def threshold(self, cut: int) -> int:
        """The threshold in the code's comparison between bins cut - 1 and cut."""
        return threshold_of(self.name, self.tops[cut - 1] + 1)

    def cut(self, threshold: int) -> int:
        """The cut of a threshold: the inverse of `threshold` on this axis, else the nearest cut below it."""
        return bisect_right(self.tops, first_of(self.name, threshold) - 1)

    def without_outer_bin(self) -> "Axis":
        """The axis with the last measured bin extended to all larger sizes."""
        return Axis(self.name, (*self.tops[:-2], self.tops[-1]), False) if self.has_outer_bin else self


def axis(name: str, sizes: Iterable[int], limit: int) -> Axis:
    """The axis of measured sizes in any order, at least one, none above `limit`.

    If `limit` exceeds the largest measured size, a last bin holds the sizes beyond, with its threshold at that size.
    """
    values: Sequence[int] = sorted(set(sizes))
    tops = [
        length_threshold(low, high) if comparison(name) == "<=" else count_threshold(low, high) - 1
        for low, high in pairwise(values)
    ]
    has_outer_bin = values[-1] < limit
    return Axis(name, (*tops, values[-1], limit) if has_outer_bin else (*tops, values[-1]), has_outer_bin)


def most_bins(sizes: Sequence[int]) -> int:
    """The most bins for which an optimum is computed, on axes with these numbers of bins."""
    return MAX_BINS if sum(size > 1 for size in sizes) < 3 else MAX_BINS_OF_THREE


def coarsened(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes with at most `most_bins` bins: bins of the nearest sizes, by ratio, are merged first.

    Of equal ratios, those of the last axis are. Bins of a derived size, which the other axes can often replace, are
    merged before all others down to `_DERIVED_BINS`.
    """
    merged = list(axes)
    while prod(sizes := [len(axis.tops) for axis in merged]) > most_bins(sizes):
        has_more = [is_derived(axis.name) and len(axis.tops) > _DERIVED_BINS for axis in merged]
        _, back, index = min(
            (Fraction(tops[index + 1], tops[index]), -place, index)
            for place, (_, tops, has_outer_bin) in enumerate(merged)
            if has_more[place] or not any(has_more)
            # The outer bin is never merged with measured sizes.
            for index in range(len(tops) - 1 - has_outer_bin)
        )
        tops = merged[-back].tops
        merged[-back] = merged[-back]._replace(tops=(*tops[:index], *tops[index + 1 :]))
    return tuple(merged)


def length_threshold(low: int, high: int) -> int:
    """The threshold T of `length <= T`, with low <= T < high."""
    if _is_filled(low) != _is_filled(high):
        return low if _is_filled(low) else high - 1
    return roundest(low, high - 1, low * high)


def _is_filled(length: int) -> bool:
    """Whether tiles or chunks fill a row without a remainder."""
    return length & (length - 1) == 0 or length % _CHUNK == 0


def count_threshold(low: int, high: int) -> int:
    """The threshold T of `count >= T`, with low < T <= high, from the middle half of the gap if it has an integer."""
    least, most = middle_half(low, high)
    return roundest(least, most, low * high) if least <= most else roundest(low + 1, high, low * high)


def middle_half(low: int, high: int) -> tuple[int, int]:
    """The least and the largest integer from low (high / low)^(1/4) to low (high / low)^(3/4), for 0 < low < high.

    The first is greater than the second if there is none.
    """
    return isqrt(isqrt(low**3 * high - 1)) + 1, isqrt(isqrt(low * high**3))


def roundness(threshold: int) -> int:
    """Rank of an integer's roundness: 0 for a power of two, larger for less round ones."""
    if threshold & (threshold - 1) == 0:
        return 0
    return 1 + next(rank for rank, unit in enumerate(_ROUND) if threshold % unit == 0)


def roundest(least: int, most: int, middle_squared: int) -> int:
    """The roundest integer from `least` to `most`, ends included, both positive.

    Among equally round ones, the nearest to the middle whose square is `middle_squared`, at least 1.
    """
    powers = [1 << bit for bit in range(most.bit_length()) if least <= 1 << bit <= most]
    if powers:
        return _nearest(powers, middle_squared)
    middle = isqrt(middle_squared)
    for unit in _ROUND:
        first, last = -(-least // unit) * unit, most // unit * unit
        if first <= last:
            below = min(max(middle // unit * unit, first), last)
            return _nearest([below, min(below + unit, last)], middle_squared)
    raise ValueError(f"no integer from {least} to {most}")


def _nearest(candidates: list[int], middle_squared: int) -> int:
    """The candidate whose ratio to the middle is least; of ascending candidates, the first of equals."""
    best = candidates[0]
    for candidate in candidates[1:]:
        # Ratios of squares, compared as products to avoid rounding.
        near = max(candidate * candidate, middle_squared) * min(best * best, middle_squared)
        far = max(best * best, middle_squared) * min(candidate * candidate, middle_squared)
        if near < far:
            best = candidate
    return best
