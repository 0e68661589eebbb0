"""Ranges of bins along axes, numbered by ascending number of free ends.

An end of a range is free if it is neither an end of the axis nor of its measured sizes: in a tree, another leaf is on
its other side.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from normtune.heuristics.solver.grid import Axis


class Ranges:
    """The ranges of an axis's bins, as bounds (low, high).

    Attributes:
        size: number of bounds.
        bounds: the low and the high bound of each range, int64.
        free: number of free ends of each range, int64, ascending.
        number: of the range (low, high), int64 (size, size).
    """

    def __init__(self, axis: Axis) -> None:
        """Take an axis of R bins, which has R (R + 1) / 2 ranges."""
        self.size = len(axis.tops) + 1
        self._stop = self.size - 1 - axis.has_outer_bin
        low, high = np.triu_indices(self.size, 1)
        free = (low > 0).astype(np.int64) + (high < self._stop)
        order = np.argsort(free, kind="stable")
        self.bounds = low[order], high[order]
        self.free = free[order]
        self.number = np.zeros((self.size, self.size), np.int64)
        self.number[self.bounds] = np.arange(len(order))

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


class Sections:
    """The combinations of one range of each axis, numbered by ascending number of free ends.

    Attributes:
        shape: number of ranges of each axis.
        order: index into a flattened array of that shape, to order it by number.
        numbers: the inverse index.
    """

    def __init__(self, axes: Sequence[Ranges]) -> None:
        self.shape = tuple(len(ranges.free) for ranges in axes)
        free = sum(np.ix_(*(ranges.free for ranges in axes)), np.zeros(self.shape, np.int64)).ravel()
        order = np.argsort(free, kind="stable")
        self._numbers = np.argsort(order).reshape(self.shape)
        # The ranges of a single axis already have this order: nothing needs to be copied.
        self.order = order if len(axes) > 1 else slice(None)
        self.numbers = self._numbers.ravel() if len(axes) > 1 else slice(None)
        self._free = free[order]

    def count(self, free: int) -> int:
        """How many combinations have at most that many free ends."""
        return int(np.searchsorted(self._free, free, side="right"))

    def number(self, ranges: Sequence[int]) -> int:
        """The number of a combination of ranges, given by their numbers."""
        return int(self._numbers[tuple(ranges)])
