"""The best threshold tree for every number of leaves, proved by a dynamic program.

In: costs of configs on the bins of a grid, and where a config may not answer. Out: `Optima`: for each number of leaves
the tree of least total cost, among all trees whose cuts lie between bins.

Ties are broken by a total order: fewer leaves; then, from the root down, the first cut in the order hidden before rows
and smaller thresholds before larger; then fewer leaves on the low side; in a leaf, the smallest config.

Source: least-cost guillotine partitions, by dynamic programming over all sub-rectangles: D[l](R) is the least
D[a](low) + D[l - a](high) over the cuts of R and a from 1 to l - 1, and D[1](R) the least cost of one config on R.
Each side of R that is none of the whole took a cut, beyond which another leaf lies: of trees of at most L leaves, D[l]
is needed where L - l sides or fewer are free so.
All costs are integers below 2**50, held as doubles where that is faster, so every sum is exact on any processor.
"""

from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.grid import Axis
from normtune.heuristics.tree import Leaf, Split, Tree
from normtune.kernels.config import Config

# The price of what may not be: more than any sum of costs, and as often as there may be bins it still fits an int64.
BARRED = 1 << 50
# Time grows with the square of the bins and more, memory with the square: 736 bins take 0.6 s and 80 MB for 16 leaves.
MAX_BINS = 1200


class Rectangle(NamedTuple):
    """Bins row_from to row_to - 1 and hidden_from to hidden_to - 1."""

    row_from: int
    row_to: int
    hidden_from: int
    hidden_to: int

    def cut(self, axis: str, at: int) -> "tuple[Rectangle, Rectangle] | None":
        """Its parts below and from bin `at` of an axis on; None where that does not cut it."""
        if axis == "hidden":
            if not self.hidden_from < at < self.hidden_to:
                return None
            return self._replace(hidden_to=at), self._replace(hidden_from=at)
        if not self.row_from < at < self.row_to:
            return None
        return self._replace(row_to=at), self._replace(row_from=at)


class Sums:
    """Sums over rectangles of bins."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        """Take the values of each config in each bin, int64 (C, R, H)."""
        self.prefix = np.zeros((values.shape[1] + 1, values.shape[2] + 1, values.shape[0]), np.int64)
        self.prefix[1:, 1:] = values.cumsum(axis=1).cumsum(axis=2).transpose(1, 2, 0)

    def over(self, box: Rectangle) -> NDArray[np.int64]:
        """Int64 (C,): the sum of each config over a rectangle."""
        row_from, row_to, hidden_from, hidden_to = box
        low, high = self.prefix[row_from], self.prefix[row_to]
        return (high[hidden_to] - low[hidden_to]) - (high[hidden_from] - low[hidden_from])


class _Pairs:
    """The bounds (low, high) of all ranges of an axis's bins, those with fewer free ends first.

    Attributes:
        size: of the axis, in bounds.
        stop: from here on a bound ends the axis, or its measured sizes.
        bounds: the low and the high bound of each pair.
        place: of the pair (low, high), int64 (size, size).
        most_free: how many pairs have 0, at most 1, and at most 2 free ends.
    """

    def __init__(self, axis: Axis) -> None:
        self.size = len(axis.tops) + 1
        self.stop = self.size - 1 - axis.beyond
        low, high = np.triu_indices(self.size, 1)
        free = (low > 0).astype(np.int64) + (high < self.stop)
        order = np.argsort(free, kind="stable")
        self.bounds = low[order], high[order]
        self.place = np.zeros((self.size, self.size), np.int64)
        self.place[self.bounds] = np.arange(len(order))
        self.most_free: list[int] = np.searchsorted(free[order], [0, 1, 2], side="right").tolist()

    def cuts(self, free: int) -> "Iterator[tuple[int, slice, slice]]":
        """Each cut with the low and the high bounds of ranges with at most so many free ends that it cuts."""
        for cut in range(1, self.size - 1):
            low, high = slice(0, cut), slice(cut + 1, self.size)
            first, last = slice(0, 1), slice(max(cut + 1, self.stop), self.size)
            yield from {
                2: [(cut, low, high)],
                1: [(cut, first, high), (cut, slice(1, cut), last)],
                0: [(cut, first, last)],
            }[free]


class Optima:
    """Least costs of all rectangles for all numbers of leaves, and the trees that attain them."""

    def __init__(
        self,
        axes: tuple[Axis, Axis],
        configs: tuple[Config, ...],
        cost: NDArray[np.int64],
        barred: NDArray[np.bool_],
        legal: NDArray[np.bool_],
        max_leaves: int,
    ) -> None:
        """Solve for 1 to `max_leaves` leaves.

        Args:
            axes: bins of rows and of hidden, R and H of them.
            configs: C candidates, ordered.
            cost: int64 (C, R, H), what each config costs in each bin; 0 in bins without problems.
            barred: bool (C, R, H), bins with a problem on which the config has no time.
            legal: bool (C, R, H), whether a region that reaches up to that bin may have the config.
            max_leaves: the most leaves.

        Raises:
            OverflowError: there are too many bins, or costs too large, to be summed exactly.
        """
        self.rows, self.hidden = axes
        self.configs = configs
        sizes = len(self.rows.tops), len(self.hidden.tops)
        if sizes[0] * sizes[1] > MAX_BINS or int(np.abs(cost).sum(axis=(1, 2)).max()) >= BARRED // 2:
            raise OverflowError(f"{sizes[0]} x {sizes[1]} sizes are more than can be summed exactly")
        self._sums = Sums(np.where(barred, BARRED, cost))
        self._legal = legal
        self.most = self._solved_for = min(max_leaves, sizes[0] * sizes[1])
        self._row_pairs, self._hidden_pairs = _Pairs(self.rows), _Pairs(self.hidden)
        # A table for 1, 2, ... leaves, as far as anybody asked: least costs by bounds, infinite where there is no tree.
        # Two layouts of the same numbers, the bounds that are cut in front, pairs of the other bounds behind, so that
        # cuts of either axis add and compare whole blocks of memory.
        self._by_hidden: list[NDArray[np.float64]] = []
        self._by_rows: list[NDArray[np.float64]] = []
        self._add(self._one_leaf())

    def up_to(self, most: int) -> "Optima":
        """The same for another number of leaves; where that is no more, what one solves, the other need not."""
        other = copy(self)
        other.most = min(most, len(self.rows.tops) * len(self.hidden.tops))
        if other.most > self._solved_for:
            other._solved_for = other.most
            other._by_hidden, other._by_rows = self._by_hidden[:1], self._by_rows[:1]
        return other

    def least(self, leaves: int) -> int | None:
        """Least total cost of a tree of at most that many leaves; None where there is no such tree."""
        return self._least(leaves, self.whole)

    def least_measured(self, leaves: int) -> int | None:
        """The same without the bins beyond the measured sizes, so of trees that need not be legal there."""
        rows = len(self.rows.tops) - self.rows.beyond
        hidden = len(self.hidden.tops) - self.hidden.beyond
        return self._least(leaves, Rectangle(0, rows, 0, hidden))

    def tree(self, leaves: int) -> Tree | None:
        """The tree of least cost with at most that many leaves, the one with fewest where costs are equal."""
        best = self.least(leaves)
        if best is None:
            return None
        fewest = self.fewest(best)
        if fewest is None:
            raise AssertionError("a tree has the least cost")
        return self._build(self.whole, fewest)

    def fewest(self, cost: int) -> int | None:
        """The fewest leaves of a tree that costs at most that; None where there is no such tree."""
        counts = range(1, self.most + 1)
        return next((count for count in counts if (least := self.least(count)) is not None and least <= cost), None)

    @property
    def whole(self) -> Rectangle:
        """All bins."""
        return Rectangle(0, len(self.rows.tops), 0, len(self.hidden.tops))

    def costs(self, box: Rectangle) -> NDArray[np.int64]:
        """Int64 (C,): what each config costs alone on a rectangle; `BARRED` or more where it may not answer there."""
        costs = self._sums.over(box)
        return np.where(self._legal[:, box.row_to - 1, box.hidden_to - 1] & (costs < BARRED // 2), costs, BARRED)

    def _one_leaf(self) -> NDArray[np.float64]:
        """Double (row pairs, hidden pairs): the least cost of one config."""
        prefix, barred = self._sums.prefix, np.where(self._legal, 0, BARRED).transpose(1, 2, 0)
        hidden_from, hidden_to = self._hidden_pairs.bounds
        found = []
        for row_from, row_to in zip(*(bounds.tolist() for bounds in self._row_pairs.bounds), strict=True):
            strip = prefix[row_to] - prefix[row_from]
            costs = (strip[1:] + barred[row_to - 1])[hidden_to - 1] - strip[hidden_from]
            found.append(costs.min(axis=1))
        least = np.stack(found)
        return np.where(least >= BARRED // 2, np.inf, least)

    def _least(self, leaves: int, box: Rectangle) -> int | None:
        best = min(self._cost(count, box) for count in range(1, min(leaves, self.most) + 1))
        return None if np.isinf(best) else int(best)

    def _cost(self, leaves: int, box: Rectangle) -> float:
        """Least cost of a tree of exactly that many leaves on a rectangle."""
        while len(self._by_hidden) < leaves:
            free = self._solved_for - len(self._by_hidden) - 1
            by_hidden = _least_of_cuts(self._by_hidden, self._hidden_pairs, self._row_pairs, free)
            by_rows = _least_of_cuts(self._by_rows, self._row_pairs, self._hidden_pairs, free)
            self._add(np.minimum(by_hidden.T, by_rows))
        row_from, row_to, hidden_from, hidden_to = box
        return float(self._by_hidden[leaves - 1][hidden_from, hidden_to, self._row_pairs.place[row_from, row_to]])

    def _add(self, table: NDArray[np.float64]) -> None:
        """Lay out the table of one leaf more, double (row pairs, hidden pairs)."""
        for tables, pairs, others, numbers in (
            (self._by_hidden, self._hidden_pairs, self._row_pairs, table.T),
            (self._by_rows, self._row_pairs, self._hidden_pairs, table),
        ):
            laid_out = np.full((pairs.size, pairs.size, len(others.bounds[0])), np.inf)
            laid_out[pairs.bounds] = numbers
            tables.append(laid_out)

    def _build(self, box: Rectangle, leaves: int) -> Tree:
        if leaves == 1:
            return Leaf(self.configs[int(np.argmin(self.costs(box)))])
        goal = self._cost(leaves, box)
        for axis, first, last in (
            (self.hidden, box.hidden_from, box.hidden_to),
            (self.rows, box.row_from, box.row_to),
        ):
            for at in range(first + 1, last):
                low, high = box.cut(axis.name, at) or (box, box)
                for fewer in range(1, leaves):
                    if self._cost(fewer, low) + self._cost(leaves - fewer, high) == goal:
                        parts = self._build(low, fewer), self._build(high, leaves - fewer)
                        return Split(axis.name, axis.threshold(at), *parts)
        raise AssertionError("no cut attains the least cost")


def _least_of_cuts(tables: list[NDArray[np.float64]], pairs: _Pairs, others: _Pairs, free: int) -> NDArray[np.float64]:
    """The least sum over all cuts of the first two dimensions into two trees of len(tables) + 1 leaves together.

    Args:
        tables: for 1, 2, ... leaves, double (bounds, bounds, pairs of the other axis).
        pairs: of the axis that is cut.
        others: of the other axis.
        free: rectangles with more free sides may be left out.

    Returns:
        Double (pairs, others).
    """
    least = np.full_like(tables[0], np.inf)
    scratch = np.empty(least.size // 2)
    # Pairs of the other axis have at most two free ends, and leave the rest to the axis that is cut.
    known = 0
    for own in (2, 1, 0):
        count = others.most_free[min(2, free - own)] if free >= own else 0
        for cut, low_bounds, high_bounds in pairs.cuts(own) if count > known else ():
            block = least[low_bounds, high_bounds, known:count]
            sums = scratch[: block.size].reshape(block.shape)
            for low, high in zip(tables, reversed(tables), strict=True):
                np.add(low[low_bounds, cut, None, known:count], high[cut, high_bounds, known:count], out=sums)
                np.minimum(block, sums, out=block)
        known = max(known, count)
    return least[pairs.bounds]
