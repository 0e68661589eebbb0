"""Least costs of trees on all boxes of a grid, by a dynamic program over their cuts.

Source: least-cost guillotine partitions: D[l](B) is the least D[a](low) + D[l - a](high) over the cuts of B and a from
1 to l - 1, and D[1](B) the least cost of one config on B. Each free side of B (`ranges`) comes from a cut with another
leaf on its other side: of trees of at most L leaves, D[l] is needed only for boxes with at most L - l free sides. Costs
are approximate; `optimum` sums exactly and picks among the cuts that may attain the least cost.

Precision. Costs are non-negative integers, and so are their sums. Single precision takes half the time and memory of
double. A sum below 2**24 is exact, because all its parts are. Larger ones are rounded once for the leaf and once for
each addition, each time by a factor of at most 1 + u or 1 / (1 + u), u = 2**-24. So D[l] is off by (1 + u)**l at most,
and a cut that attains it has a sum of at most (1 + u)**(2 l) times the computed minimum. The code uses 1 + 4 l u as an
upper bound.
"""

from collections.abc import Sequence
from copy import copy
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from normtune.heuristics.solver.ranges import Ranges, Sections
from normtune.kernels.box import Box

_EXACT_SINGLE = float(1 << 24)
_Tables = list[NDArray[np.floating]]


class BinCut(NamedTuple):
    """A box cut in two: the axis, the first bin of the high part, and the leaves of the low part."""

    axis: str
    at: int
    low_leaves: int


class Partitions:
    """Least costs of all boxes for 1 to `most` leaves, computed on demand."""

    def __init__(self, axes: Sequence[Ranges], one_leaf: NDArray[np.float64], most: int) -> None:
        """Take the costs of one leaf: double (ranges of each axis), integers below 2**50, infinite for none.

        `most` is the most leaves of a query on the whole grid, or on its measured part.
        """
        self._axes = tuple(axes)
        self._others = tuple(Sections([*self._axes[:place], *self._axes[place + 1 :]]) for place in range(len(axes)))
        self._section_numbers: dict[Box, tuple[int, ...]] = {}
        self._one_leaf = one_leaf
        self.most = most
        self._lay_out(np.float32)

    def for_more(self, most: int) -> "Partitions":
        """A copy for more leaves; it keeps the complete tables, which also have boxes whose sides are all free."""
        other = copy(self)
        other.most = most
        complete = min(len(self._tables[0]), self.most - 2 * len(self._axes)) // 2 * 2  # two share an array
        if complete > 0:
            other._tables = tuple(tables[:complete] for tables in self._tables)
        else:
            other._lay_out(self._dtype)
        return other

    def in_doubles(self) -> None:
        """Start again in double precision: exact, at twice the time and memory."""
        self._lay_out(np.float64)

    def is_exact(self, cost: float) -> bool:
        """Whether a computed cost is free of rounding."""
        return cost < _EXACT_SINGLE or self._dtype == np.float64

    def least(self, leaves: int, box: Box) -> float:
        """Least cost of a tree of exactly that many leaves on a box; infinite if none exists."""
        while len(self._tables[0]) < leaves:
            self._solve_next()
        _, first, most = box[0]
        return float(self._tables[0][leaves - 1][first, most + 1, self._sections(box)[0]])

    def cuts(self, leaves: int, box: Box) -> list[BinCut]:
        """Cuts that may attain the least cost: the last axis before the first, then by bin, then fewer low leaves."""
        bound = self.least(leaves, box)
        if not self.is_exact(bound):
            bound *= 1 + 4 * leaves / _EXACT_SINGLE
        result = []
        for (axis, first, most), section, tables in reversed(
            [*zip(box, self._sections(box), self._tables, strict=True)]
        ):
            last, parts = most + 1, tables[: leaves - 1]
            low = np.stack([table[first, first + 1 : last, section] for table in parts], axis=-1)
            high = np.stack([table[first + 1 : last, last, section] for table in reversed(parts)], axis=-1)
            places, fewer = np.nonzero(np.add(low, high, dtype=np.float64) <= bound)
            result += [
                BinCut(axis, first + 1 + offset, 1 + a)
                for offset, a in zip(places.tolist(), fewer.tolist(), strict=True)
            ]
        return result

    def _sections(self, box: Box) -> tuple[int, ...]:
        """For each axis, the number of the box's section of the other axes."""
        if box not in self._section_numbers:
            numbers = [
                int(ranges.number[least, most + 1]) for ranges, (_, least, most) in zip(self._axes, box, strict=True)
            ]
            self._section_numbers[box] = tuple(
                others.number(numbers[:place] + numbers[place + 1 :]) for place, others in enumerate(self._others)
            )
        return self._section_numbers[box]

    def _lay_out(self, dtype: DTypeLike) -> None:
        """Begin with the table of one leaf.

        Each table is stored once for each axis, with the bounds of that axis in front and the sections of the others
        behind. So cuts of any axis add and compare whole blocks of memory.
        """
        self._dtype = dtype
        self._tables: tuple[_Tables, ...] = tuple([] for _ in self._axes)
        self._add(self._one_leaf)

    def _solve_next(self) -> None:
        free = self.most - len(self._tables[0]) - 1
        of_axes = []
        for place, (tables, ranges, others) in enumerate(zip(self._tables, self._axes, self._others, strict=True)):
            of_cuts = _least_of_cuts(tables, ranges, others, free)[:, others.numbers]
            of_axes.append(np.moveaxis(of_cuts.reshape(-1, *others.shape), 0, place))
        self._add(reduce(np.minimum, of_axes))

    def _add(self, table: NDArray[np.floating]) -> None:
        """Store a table, (ranges of each axis), in each layout.

        A low bound is below a high one: of two tables in one array, the second lies on the other side of the diagonal.
        """
        free = self.most - len(self._tables[0]) - 1
        for place, (tables, ranges, others) in enumerate(zip(self._tables, self._axes, self._others, strict=True)):
            costs = np.moveaxis(table, place, 0).reshape(len(ranges.free), -1)[:, others.order]
            if len(tables) % 2:
                laid_out = tables[-1].transpose(1, 0, 2)
            else:
                laid_out = np.empty((ranges.size, ranges.size, others.count(free)), self._dtype)
            laid_out[ranges.bounds] = costs[:, : laid_out.shape[2]]
            tables.append(laid_out)


def _least_of_cuts(tables: _Tables, ranges: Ranges, others: Sections, free: int) -> NDArray[np.floating]:
    """The least sum over all cuts of an axis into two trees of len(tables) + 1 leaves together.

    Args:
        tables: for 1, 2, ... leaves, (low bounds, high bounds, sections of the other axes).
        ranges: of the axis that is cut.
        others: of the other axes.
        free: boxes with more free sides may be left out.

    Returns:
        (ranges, sections), infinite if there is no tree or the box is left out.
    """
    least = np.full((ranges.size, ranges.size, prod(others.shape)), np.inf, tables[0].dtype)
    scratch = np.empty(least.size // 2, least.dtype)
    # The free sides that those of the other axes leave belong to the axis that is cut.
    done = 0
    for free_ends in (2, 1, 0):
        count = others.count(free - free_ends)
        for cut, low_bounds, high_bounds in ranges.cuts(free_ends) if count > done else ():
            block = least[low_bounds, high_bounds, done:count]
            sums = scratch[: block.size].reshape(block.shape)
            for low, high in zip(tables, reversed(tables), strict=True):
                np.add(low[low_bounds, cut, None, done:count], high[cut, high_bounds, done:count], out=sums)
                np.minimum(block, sums, out=block)
        done = max(done, count)
    return least[ranges.bounds]
