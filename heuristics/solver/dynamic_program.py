"""Least costs of trees on all rectangles of a grid, by a dynamic program over their cuts.

In: for each rectangle the least cost of one leaf. Out: `Partitions`: for each rectangle and number of leaves about the
least cost, and the cuts that may attain it. Which of them does is left to `optimum`, which sums exactly.

Source: least-cost guillotine partitions: D[l](R) is the least D[a](low) + D[l - a](high) over the cuts of R and a from
1 to l - 1, and D[1](R) the least cost of one config on R. Each side of R that is free (`grid.Ranges`) took a cut, and
beyond it lies another leaf: of trees of at most L leaves, D[l] is needed where L - l sides or fewer are free.

Precision. Costs are integers, not negative, and so is each sum. Singles take half of the time and memory of doubles.
A sum below 2**24 is exact in them, as all its parts are. Others are rounded once for the leaf and once a sum, each time
by a factor of at most 1 + u or 1 / (1 + u), u = 2**-24, so D[l] is off by (1 + u)**l at most and a cut that attains it
has a sum of at most (1 + u)**(2 l) times what is found, for which 1 + 4 l u stands.
"""

from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normtune.heuristics.solver.grid import Ranges
from normtune.heuristics.tablefile.tree import Box

_EXACT_SINGLE = float(1 << 24)


class Cut(NamedTuple):
    """A rectangle cut in two: the axis, the bin that the high part begins with, and the leaves of the low part."""

    axis: str
    at: int
    low_leaves: int


class Partitions:
    """Least costs of all rectangles for 1 to `most` leaves, as far as anybody asked."""

    def __init__(self, rows: Ranges, hidden: Ranges, one_leaf: NDArray[np.float64], most: int) -> None:
        """Take the costs of one leaf.

        Args:
            rows: the ranges of that axis.
            hidden: the ranges of that axis.
            one_leaf: double (row ranges, hidden ranges), integers below 2**50 from 0 on; infinite where there is none.
            most: the most leaves that are asked for; on all of the grid, or all that was measured.
        """
        self._rows, self._hidden = rows, hidden
        self._one_leaf = one_leaf
        self.most = most
        self._lay_out(np.float32)

    def for_more(self, most: int) -> "Partitions":
        """The same for more leaves; what was solved for all rectangles, with four free sides, stays."""
        other = copy(self)
        other.most = most
        complete = max(1, self.most - 4)
        other._by_hidden, other._by_rows = self._by_hidden[:complete], self._by_rows[:complete]
        return other

    def in_doubles(self) -> None:
        """From here on everything is exact, and takes twice the time and memory."""
        self._lay_out(np.float64)

    def is_exact(self, cost: float) -> bool:
        """Whether a cost that was found is not rounded."""
        return cost < _EXACT_SINGLE or self._dtype == np.float64

    def least(self, leaves: int, box: Box) -> float:
        """Least cost of a tree of exactly that many leaves on a rectangle; infinite where there is none."""
        while len(self._by_rows) < leaves:
            self._solve_next()
        row_range = self._rows.number[box.least_rows, box.most_rows + 1]
        return float(self._by_hidden[leaves - 1][box.least_hidden, box.most_hidden + 1, row_range])

    def cuts(self, leaves: int, box: Box) -> list[Cut]:
        """The cuts that may attain the least cost: hidden before rows, then smaller places, then fewer low leaves."""
        bound = self.least(leaves, box)
        if not self.is_exact(bound):
            bound *= 1 + 4 * leaves / _EXACT_SINGLE
        row_from, row_to, hidden_from, hidden_to = (
            box.least_rows,
            box.most_rows + 1,
            box.least_hidden,
            box.most_hidden + 1,
        )
        row_range, hidden_range = self._rows.number[row_from, row_to], self._hidden.number[hidden_from, hidden_to]
        found = []
        for axis, tables, first, last, other in (
            ("hidden", self._by_hidden, hidden_from, hidden_to, row_range),
            ("rows", self._by_rows, row_from, row_to, hidden_range),
        ):
            parts = tables[: leaves - 1]
            low = np.stack([table[first, first + 1 : last, other] for table in parts], axis=-1)
            high = np.stack([table[first + 1 : last, last, other] for table in reversed(parts)], axis=-1)
            places, fewer = np.nonzero(np.add(low, high, dtype=np.float64) <= bound)
            found += [Cut(axis, first + 1 + at, 1 + a) for at, a in zip(places.tolist(), fewer.tolist(), strict=True)]
        return found

    def _lay_out(self, dtype: DTypeLike) -> None:
        """Begin with the table of one leaf.

        Each table is there in two layouts, the bounds of the axis that is cut in front and the ranges of the other one
        behind, so that cuts of either axis add and compare whole blocks of memory.
        """
        self._dtype = dtype
        self._by_hidden: list[NDArray[np.floating]] = []
        self._by_rows: list[NDArray[np.floating]] = []
        self._add(self._one_leaf)

    def _solve_next(self) -> None:
        """Add the table of one leaf more."""
        free = self.most - len(self._by_rows) - 1
        by_hidden = _least_of_cuts(self._by_hidden, self._hidden, self._rows, free)
        by_rows = _least_of_cuts(self._by_rows, self._rows, self._hidden, free)
        self._add(np.minimum(by_hidden.T, by_rows))

    def _add(self, table: NDArray[np.floating]) -> None:
        """Lay out a table, (row ranges, hidden ranges)."""
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
        (ranges, others), infinite where there is no tree or it is left out.
    """
    least = np.full_like(tables[0], np.inf)
    scratch = np.empty(least.size // 2, least.dtype)
    # Ranges of the other axis have at most two free ends, and leave the rest to the axis that is cut.
    known = 0
    for own in (2, 1, 0):
        count = others.up_to[min(2, free - own)] if free >= own else 0
        for cut, low_bounds, high_bounds in ranges.cuts(own) if count > known else ():
            block = least[low_bounds, high_bounds, known:count]
            sums = scratch[: block.size].reshape(block.shape)
            for low, high in zip(tables, reversed(tables), strict=True):
                np.add(low[low_bounds, cut, None, known:count], high[cut, high_bounds, known:count], out=sums)
                np.minimum(block, sums, out=block)
        known = max(known, count)
    return least[ranges.bounds]
