"""The bins in which trees are fitted: each cut between two measured sizes has one fixed threshold.

The data cannot tell which threshold between two sizes is best, so the roundest is taken: a power of two, else a
multiple of 1024, 512, 256, 128, 64, 100 or 10, else any; among equally round ones the nearest to the geometric middle,
and the smaller of two as near.

Hidden sizes without a remainder (powers of two, which tiles fill, and multiples of 4096, which chunks fill) are unlike
their neighbours, so the gap beside one belongs to its other end. (On the recorded H200 at 64 shapes off the grid, in
three dtypes: 64 leaves lose 0.44 % backward, 6.6 % at worst, with this rule; 0.80 and 25 % with the roundest integer of
each gap.) Between two sizes both with or both without a remainder, any integer of the gap will do: blocks of columns
are powers of two, so what is true of the smaller size ends there.

Row thresholds stay in the middle half of the gap, by ratio: if all measured row counts are powers of two, the roundest
integer of a gap is its end, and all sizes between would go to one side. `crossing` moves those of the chosen tree.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np

from normtune.kernels.tablefile.tree import first_of, threshold_of

# Columns of the longest chunk.
_CHUNK = 4096
_ROUND = (1024, 512, 256, 128, 64, 100, 10, 1)


class Axis(NamedTuple):
    """Bins of one axis.

    Attributes:
        name: of the axis.
        tops: the largest integer of each bin, ascending; bin i starts above the top of bin i - 1.
        beyond: whether the last bin lies beyond all measured sizes.
    """

    name: str
    tops: tuple[int, ...]
    beyond: bool

    def bin(self, size: int) -> int:
        """The bin of a size; the last one if it exceeds all tops."""
        return min(bisect_left(self.tops, size), len(self.tops) - 1)

    def threshold(self, cut: int) -> int:
        """The threshold between bins cut - 1 and cut, as the code compares it."""
        return threshold_of(self.name, self.tops[cut - 1] + 1)

    def cut(self, threshold: int) -> int:
        """The cut of a threshold: the inverse of `threshold` on this axis, else the nearest cut below it."""
        return bisect_right(self.tops, first_of(self.name, threshold) - 1)

    def without_beyond(self) -> "Axis":
        """The axis without the bin beyond: the last measured bin answers for all larger sizes."""
        return Axis(self.name, (*self.tops[:-2], self.tops[-1]), False) if self.beyond else self


class Ranges:
    """The ranges of an axis's bins, as bounds (low, high), numbered by ascending number of free ends.

    An end is free if it is neither an end of the axis nor of its measured sizes: in a tree, another leaf begins there.

    Attributes:
        size: number of bounds.
        bounds: the low and the high bound of each range, int64.
        number: of the range (low, high), int64 (size, size).
        up_to: number of ranges with 0, at most 1, and at most 2 free ends.
    """

    def __init__(self, axis: Axis) -> None:
        """Take an axis of R bins, which has R (R + 1) / 2 ranges."""
        self.size = len(axis.tops) + 1
        self._stop = self.size - 1 - axis.beyond
        low, high = np.triu_indices(self.size, 1)
        free = (low > 0).astype(np.int64) + (high < self._stop)
        order = np.argsort(free, kind="stable")
        self.bounds = low[order], high[order]
        self.number = np.zeros((self.size, self.size), np.int64)
        self.number[self.bounds] = np.arange(len(order))
        self.up_to: list[int] = np.searchsorted(free[order], [0, 1, 2], side="right").tolist()

    def cuts(self, free: int) -> Iterator[tuple[int, slice, slice]]:
        """Each cut, with the low and the high bounds of ranges that it divides, with at most `free` free ends."""
        for cut in range(1, self.size - 1):
            low, high = slice(0, cut), slice(cut + 1, self.size)
            first, last = slice(0, 1), slice(max(cut + 1, self._stop), self.size)
            yield from {
                2: [(cut, low, high)],
                1: [(cut, first, high), (cut, slice(1, cut), last)],
                0: [(cut, first, last)],
            }[free]


def axis(name: str, sizes: Iterable[int], limit: int) -> Axis:
    """The axis, `rows` or `hidden`, of measured sizes in any order, at least one, none above `limit`.

    If `limit` exceeds the largest measured size, a last bin holds the sizes beyond, with its threshold at that size.
    """
    values: Sequence[int] = sorted(set(sizes))
    tops = [
        hidden_threshold(low, high) if name == "hidden" else rows_threshold(low, high) - 1
        for low, high in pairwise(values)
    ]
    beyond = values[-1] < limit
    return Axis(name, (*tops, values[-1], limit) if beyond else (*tops, values[-1]), beyond)


def coarsened(rows: Axis, hidden: Axis, most: int) -> tuple[Axis, Axis]:
    """The axes with at most `most` pairs of bins: bins of the nearest sizes, by ratio, are merged first."""
    axes = {"rows": rows, "hidden": hidden}
    while len(axes["rows"].tops) * len(axes["hidden"].tops) > most:
        _, name, index = min(
            (Fraction(tops[index + 1], tops[index]), name, index)
            for name, (_, tops, beyond) in axes.items()
            # The bin beyond is never merged with measured sizes.
            for index in range(len(tops) - 1 - beyond)
        )
        _, tops, beyond = axes[name]
        axes[name] = Axis(name, (*tops[:index], *tops[index + 1 :]), beyond)
    return axes["rows"], axes["hidden"]


def hidden_threshold(low: int, high: int) -> int:
    """T of `hidden <= T`, with low <= T < high."""
    if _is_filled(low) != _is_filled(high):
        return low if _is_filled(low) else high - 1
    return roundest(low, high - 1, low * high)


def _is_filled(hidden: int) -> bool:
    """Whether tiles or chunks fill a row without a remainder."""
    return hidden & (hidden - 1) == 0 or hidden % _CHUNK == 0


def rows_threshold(low: int, high: int) -> int:
    """T of `rows >= T`, with low < T <= high, from the middle half of the gap if that has an integer."""
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
