"""Least costs of trees on all rectangles of a grid, by a dynamic program over their cuts.

Source: least-cost guillotine partitions: D[l](R) is the least D[a](low) + D[l - a](high) over the cuts of R and a from
1 to l - 1, and D[1](R) the least cost of one config on R. Each free side of R (`grid.Ranges`) comes from a cut with
another leaf on its other side: of trees of at most L leaves, D[l] is needed only for rectangles with at most L - l free
sides. Costs are approximate; `optimum` sums exactly and picks among the cuts that may attain the least cost.

Precision. Costs are non-negative integers, and so are their sums. Single precision takes half the time and memory of
double. A sum below 2**24 is exact, because all its parts are. Larger ones are rounded once for the leaf and once for
each addition, each time by a factor of at most 1 + u or 1 / (1 + u), u = 2**-24. So D[l] is off by (1 + u)**l at most,
and a cut that attains it has a sum of at most (1 + u)**(2 l) times the computed minimum. The code uses 1 + 4 l u as an
upper bound.
"""

from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normtune.heuristics.solver.grid import Ranges
from normtune.kernels.box import Box

_EXACT_SINGLE = float(1 << 24)


class BinCut(NamedTuple):
    """A rectangle cut in two: the axis, the first bin of the high part, and the leaves of the low part."""

    axis: str
    at: int
    low_leaves: int


class Partitions:
    """Least costs of all rectangles for 1 to `most` leaves, computed on demand."""

    def __init__(self, rows: Ranges, hidden: Ranges, one_leaf: NDArray[np.float64], most: int) -> None:
        """Take the costs of one leaf: double (row ranges, hidden ranges), integers below 2**50, infinite for none.

        `most` is the most leaves of a query on the whole grid, or on its measured part.
        """
        self._rows, self._hidden = rows, hidden
        self._one_leaf = one_leaf
        self.most = most
        self._lay_out(np.float32)

    def for_more(self, most: int) -> "Partitions":
        """A copy for more leaves; it keeps tables that are complete, also for rectangles with four free sides."""
        other = copy(self)
        other.most = most
        complete = max(1, self.most - 4)
        other._by_hidden, other._by_rows = self._by_hidden[:complete], self._by_rows[:complete]
        return other

    def in_doubles(self) -> None:
        """Start again in double precision: exact, at twice the time and memory."""
        self._lay_out(np.float64)

    def is_exact(self, cost: float) -> bool:
        """Whether a computed cost is free of rounding."""
        return cost < _EXACT_SINGLE or self._dtype == np.float64

    def least(self, leaves: int, box: Box) -> float:
        """Least cost of a tree of exactly that many leaves on a rectangle; infinite if there is none."""
        while len(self._by_rows) < leaves:
            self._solve_next()
        rows, hidden = box
        row_range = self._rows.number[rows.least, rows.most + 1]
        return float(self._by_hidden[leaves - 1][hidden.least, hidden.most + 1, row_range])

    def cuts(self, leaves: int, box: Box) -> list[BinCut]:
        """Cuts that may attain the least cost: hidden before rows, then by bin, then fewer low leaves."""
        bound = self.least(leaves, box)
        if not self.is_exact(bound):
            bound *= 1 + 4 * leaves / _EXACT_SINGLE
        (_, row_from, row_most), (_, hidden_from, hidden_most) = box
        row_to, hidden_to = row_most + 1, hidden_most + 1
        row_range, hidden_range = self._rows.number[row_from, row_to], self._hidden.number[hidden_from, hidden_to]
        result = []
        for axis, tables, first, last, other in (
            ("hidden", self._by_hidden, hidden_from, hidden_to, row_range),
            ("rows", self._by_rows, row_from, row_to, hidden_range),
        ):
            parts = tables[: leaves - 1]
            low = np.stack([table[first, first + 1 : last, other] for table in parts], axis=-1)
            high = np.stack([table[first + 1 : last, last, other] for table in reversed(parts)], axis=-1)
            places, fewer = np.nonzero(np.add(low, high, dtype=np.float64) <= bound)
            result += [
                BinCut(axis, first + 1 + offset, 1 + a)
                for offset, a in zip(places.tolist(), fewer.tolist(), strict=True)
            ]
        return result

    def _lay_out(self, dtype: DTypeLike) -> None:
        """Begin with the table of one leaf.

        Each table is stored in two layouts: the bounds of the cut axis in front, the ranges of the other axis behind.
        So cuts of either axis add and compare whole blocks of memory.
        """
        self._dtype = dtype
        self._by_hidden: list[NDArray[np.floating]] = []
        self._by_rows: list[NDArray[np.floating]] = []
        self._add(self._one_leaf)

    def _solve_next(self) -> None:
        free = self.most - len(self._by_rows) - 1
        by_hidden = _least_of_cuts(self._by_hidden, self._hidden, self._rows, free)
        by_rows = _least_of_cuts(self._by_rows, self._rows, self._hidden, free)
        self._add(np.minimum(by_hidden.T, by_rows))

    def _add(self, table: NDArray[np.floating]) -> None:
        """Store a table, (row ranges, hidden ranges), in both layouts."""
        for tables, ranges, others, costs in (
            (self._by_hidden, self._hidden, self._rows, table.T),
            (self._by_rows, self._rows, self._hidden, table),
        ):
            laid_out = np.full((ranges.size, ranges.size, len(others.bounds[0])), np.inf, self._dtype)
            laid_out[ranges.bounds] = costs
            tables.append(laid_out)


def _least_of_cuts(
    tables: list[NDArray[np.floating]], ranges: Ranges, others: Ranges, free: int
) -> NDArray[np.floating]:
    """The least sum over all cuts of an axis into two trees of len(tables) + 1 leaves together.

    Args:
        tables: for 1, 2, ... leaves, (low bounds, high bounds, ranges of the other axis).
        ranges: of the axis that is cut.
        others: of the other axis.
        free: rectangles with more free sides may be left out.

    Returns:
        (ranges, others), infinite if there is no tree or the rectangle is left out.
    """
    least = np.full_like(tables[0], np.inf)
    scratch = np.empty(least.size // 2, least.dtype)
    # Ranges of the other axis have at most two free ends; the remaining free sides belong to the axis that is cut.
    done = 0
    for free_ends in (2, 1, 0):
        count = others.up_to[min(2, free - free_ends)] if free >= free_ends else 0
        for cut, low_bounds, high_bounds in ranges.cuts(free_ends) if count > done else ():
            block = least[low_bounds, high_bounds, done:count]
            sums = scratch[: block.size].reshape(block.shape)
            for low, high in zip(tables, reversed(tables), strict=True):
                np.add(low[low_bounds, cut, None, done:count], high[cut, high_bounds, done:count], out=sums)
                np.minimum(block, sums, out=block)
        done = max(done, count)
    return least[ranges.bounds]
