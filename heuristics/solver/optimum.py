"""The best threshold tree for every number of leaves, proved by a dynamic program, for trees that cut between bins.

Ties are broken by a total order: fewer leaves; then, from the root down, the first cut in the order hidden before rows
and smaller thresholds before larger; then fewer leaves on the low side; in a leaf, the smallest config.

Costs are integers below 2**50. `dynamic_program` finds the trees of least cost up to rounding. Their costs are then
summed exactly, so the best tree is the same on any processor.
"""

from collections.abc import Iterator
from copy import copy

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.solver.dynamic_program import BinCut, Partitions
from normtune.heuristics.solver.grid import Axis, Ranges
from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.tablefile.tree import Leaf, Split, Tree

# The cost of a barred entry: larger than any sum of costs, and as many of them as there may be bins still fit an int64.
BARRED = 1 << 50
# A bound on memory, which grows with the square of the bins: 1947 bins take 0.4 GB and 3 s for 24 leaves.
MAX_BINS = 2600
# Limit on rounded costs that are summed again, before all are computed exactly: exceeded only if very many trees cost
# the same.
_MANY = 4000


class Sums:
    """Sums over rectangles of bins, from the values of each config in each bin, int64 (C, R, H)."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        self.prefix = np.zeros((values.shape[1] + 1, values.shape[2] + 1, values.shape[0]), np.int64)
        self.prefix[1:, 1:] = values.cumsum(axis=1).cumsum(axis=2).transpose(1, 2, 0)

    def over(self, box: Box) -> NDArray[np.int64]:
        """Int64 (C,): the sum of each config over a rectangle."""
        (_, row_from, row_most), (_, hidden_from, hidden_most) = box
        low, high = self.prefix[row_from], self.prefix[row_most + 1]
        return (high[hidden_most + 1] - low[hidden_most + 1]) - (high[hidden_from] - low[hidden_from])


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
            cost: int64 (C, R, H), cost of each config in each bin; 0 in bins without problems.
            barred: bool (C, R, H), bins with a problem on which the config has no time.
            legal: bool (C, R, H): the config is legal for a region that reaches up to that bin.
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
        self.most = min(max_leaves, sizes[0] * sizes[1])
        # No tree costs less on a rectangle than the best config of each bin. The excess over that is partitioned.
        least = np.where(barred, BARRED, cost).min(axis=0, keepdims=True)
        self._floor = Sums(np.where(least >= BARRED // 2, 0, least))
        ranges = Ranges(self.rows), Ranges(self.hidden)
        self._partitions = Partitions(*ranges, self._one_leaf(*ranges), self.most)
        self._known: dict[tuple[int, Box], int] = {}

    def axis(self, name: str) -> Axis:
        """The bins of an axis."""
        return self.hidden if name == self.hidden.name else self.rows

    def up_to(self, most: int) -> "Optima":
        """The optima for another number of leaves; if that is no larger, both share their solutions."""
        other = copy(self)
        other.most = min(most, len(self.rows.tops) * len(self.hidden.tops))
        if other.most > self._partitions.most:
            other._partitions = self._partitions.for_more(other.most)
        return other

    def least(self, leaves: int) -> int | None:
        """Least total cost of a tree of at most that many leaves; None if there is no such tree."""
        return self._least(leaves, self.whole)

    def least_measured(self, leaves: int) -> int | None:
        """As `least`, without the bins beyond the measured sizes: the trees need not be legal there."""
        rows = len(self.rows.tops) - self.rows.beyond
        hidden = len(self.hidden.tops) - self.hidden.beyond
        return self._least(leaves, Box.of(rows=(0, rows - 1), hidden=(0, hidden - 1)))

    def tree(self, leaves: int) -> Tree | None:
        """The tree of least cost with at most that many leaves; of equal costs, the one with the fewest leaves."""
        best = self.least(leaves)
        if best is None:
            return None
        fewest = self.fewest(best)
        if fewest is None:
            raise AssertionError("a tree has the least cost")
        return self._build(self.whole, fewest)

    def fewest(self, cost: int) -> int | None:
        """The fewest leaves of a tree that costs at most that; None if there is no such tree."""
        counts = range(1, self.most + 1)
        return next((count for count in counts if (least := self.least(count)) is not None and least <= cost), None)

    @property
    def whole(self) -> Box:
        """All bins."""
        return Box(Interval(axis.name, 0, len(axis.tops) - 1) for axis in (self.rows, self.hidden))

    def costs(self, box: Box) -> NDArray[np.int64]:
        """Int64 (C,): cost of each config alone on a rectangle; `BARRED` or more if it may not answer there."""
        costs = self._sums.over(box)
        return np.where(self._legal[:, *box.largest] & (costs < BARRED // 2), costs, BARRED)

    def _one_leaf(self, rows: Ranges, hidden: Ranges) -> NDArray[np.float64]:
        """Double (row ranges, hidden ranges): cost of the best single config above the floor."""
        prefix, barred = self._sums.prefix, np.where(self._legal, 0, BARRED).transpose(1, 2, 0)
        floor = self._floor.prefix[:, :, 0]
        hidden_from, hidden_to = hidden.bounds
        strips = []
        for row_from, row_to in zip(*(bounds.tolist() for bounds in rows.bounds), strict=True):
            strip = prefix[row_to] - prefix[row_from]
            costs = (strip[1:] + barred[row_to - 1])[hidden_to - 1] - strip[hidden_from]
            least, below = costs.min(axis=1), floor[row_to] - floor[row_from]
            strips.append(np.where(least >= BARRED // 2, np.inf, least - (below[hidden_to] - below[hidden_from])))
        return np.stack(strips)

    def _least(self, leaves: int, box: Box) -> int | None:
        counts = range(1, min(leaves, self.most) + 1)
        return min((cost for count in counts if (cost := self._cost(count, box)) is not None), default=None)

    def _cost(self, leaves: int, box: Box) -> int | None:
        """Least cost of a tree of exactly that many leaves on a rectangle; None if there is none."""
        return None if np.isinf(self._partitions.least(leaves, box)) else self._summed(leaves, box)

    def _summed(self, leaves: int, box: Box) -> int:
        """As `_cost`, for a tree that exists."""
        about = self._partitions.least(leaves, box)
        if self._partitions.is_exact(about):
            return int(self._floor.over(box)[0]) + int(about)
        if (leaves, box) not in self._known:
            if len(self._known) >= _MANY:
                self._partitions.in_doubles()
                return self._summed(leaves, box)
            self._known[leaves, box] = (
                int(self.costs(box).min()) if leaves == 1 else min(cost for cost, _ in self._cuts(leaves, box))
            )
        return self._known[leaves, box]

    def _cuts(self, leaves: int, box: Box) -> Iterator[tuple[int, BinCut]]:
        """Cuts that may attain the least cost, in their order, each with the cost of the best trees on both sides."""
        for cut in self._partitions.cuts(leaves, box):
            low, high = box.cut(cut.axis, cut.at)
            yield self._summed(cut.low_leaves, low) + self._summed(leaves - cut.low_leaves, high), cut

    def _build(self, box: Box, leaves: int) -> Tree:
        if leaves == 1:
            return Leaf(self.configs[int(np.argmin(self.costs(box)))])
        goal = self._summed(leaves, box)
        cut = next(cut for cost, cut in self._cuts(leaves, box) if cost == goal)
        low, high = box.cut(cut.axis, cut.at)
        axis = self.axis(cut.axis)
        parts = self._build(low, cut.low_leaves), self._build(high, leaves - cut.low_leaves)
        return Split(cut.axis, axis.threshold(cut.at), *parts)
