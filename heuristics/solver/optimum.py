"""The best threshold tree for every number of leaves, proved by a dynamic program, for trees that cut between bins.

Ties are broken by a total order: fewer leaves; then, from the root down, the first cut in the order of the last axis
before the first and smaller thresholds before larger; then fewer leaves on the low side; in a leaf, the smallest
config.

Costs are integers below 2**50. `dynamic_program` finds the trees of least cost up to rounding. Their costs are then
summed exactly, so the best tree is the same on any processor.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.solver.dynamic_program import BinCut, Partitions
from normtune.heuristics.solver.grid import Axis, most_bins
from normtune.heuristics.solver.ranges import Ranges
from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.tablefile.tree import Leaf, Split, Tree

# The cost of a barred entry: larger than any sum of costs, yet its sum over all bins fits an int64.
BARRED = 1 << 50
# The most rounded costs that are summed again exactly; then all are computed in double precision. More are only needed
# if very many trees cost the same.
_MANY = 4000


class Sums:
    """Sums over boxes of bins, from the values of each config in each bin, int64 (C, bins of each axis)."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        for place in range(1, values.ndim):
            values = values.cumsum(axis=place)
        self.prefix = np.pad(np.moveaxis(values, 0, -1), [*[(1, 0)] * (values.ndim - 1), (0, 0)])

    def over(self, box: Box) -> NDArray[np.int64]:
        """Int64 (C,): the sum of each config over a box."""
        return _between(self.prefix, [(least, most + 1) for _, least, most in box])


class Optima:
    """Least costs of all boxes for all numbers of leaves, and the trees that attain them."""

    def __init__(
        self,
        axes: tuple[Axis, ...],
        configs: tuple[Config, ...],
        cost: NDArray[np.int64],
        barred: NDArray[np.bool_],
        legal: NDArray[np.bool_],
        max_leaves: int,
    ) -> None:
        """Solve for 1 to `max_leaves` leaves.

        Args:
            axes: bins of each axis.
            configs: C candidates, ordered.
            cost: int64 (C, bins of each axis), cost of each config in each bin; 0 in bins without problems.
            barred: bool, same shape: the bin has a problem on which the config has no time.
            legal: bool, same shape: the config is legal for a region that extends up to the bin.
            max_leaves: the most leaves.

        Raises:
            OverflowError: there are too many bins, or costs too large, to be summed exactly.
        """
        self.axes = axes
        self.configs = configs
        sizes = cost.shape[1:]
        grid = " x ".join(map(str, sizes))
        if prod(sizes) > most_bins(sizes):
            raise OverflowError(f"{grid} sizes are {prod(sizes)} bins: at most {most_bins(sizes)} are solved")
        if int(np.abs(cost).reshape(len(cost), -1).sum(axis=1).max()) >= BARRED // 2:
            raise OverflowError(f"costs of {grid} sizes are too large to be summed exactly")
        self._sums = Sums(np.where(barred, BARRED, cost))
        self._legal = np.moveaxis(legal, 0, -1)
        self.most = min(max_leaves, prod(sizes))
        # No tree costs less on a box than the best config of each bin. The excess over that is partitioned.
        least = np.where(barred, BARRED, cost).min(axis=0, keepdims=True)
        self._floor = Sums(np.where(least >= BARRED // 2, 0, least))
        ranges = [Ranges(axis) for axis in axes]
        self._partitions = Partitions(ranges, self._one_leaf(ranges), self.most)
        self._exact_costs: dict[tuple[int, Box], int] = {}
        self._trees: dict[tuple[int, Box], Tree] = {}  # trees of successive numbers of leaves have most parts in common

    def axis(self, name: str) -> Axis:
        """The bins of an axis."""
        return next(axis for axis in self.axes if axis.name == name)

    def up_to(self, most: int) -> "Optima":
        """The optima for another number of leaves; if it is no larger, both share their solutions."""
        other = copy(self)
        other.most = min(most, prod(len(axis.tops) for axis in self.axes))
        if other.most > self._partitions.most:
            other._partitions = self._partitions.for_more(other.most)
        return other

    def least(self, leaves: int) -> int | None:
        """Least total cost of a tree of at most that many leaves; None if no such tree exists."""
        return self._least(leaves, self.whole)

    def least_measured(self, leaves: int) -> int | None:
        """The same as `least`, without the bins beyond the measured sizes: the trees need not be legal there."""
        measured = Box(Interval(axis.name, 0, len(axis.tops) - axis.has_outer_bin - 1) for axis in self.axes)
        return self._least(leaves, measured)

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
        """The fewest leaves of a tree that costs at most `cost`; None if no such tree exists."""
        costs = ((count, self._cost(count, self.whole)) for count in range(1, self.most + 1))
        return next((count for count, least in costs if least is not None and least <= cost), None)

    @property
    def whole(self) -> Box:
        """All bins."""
        return Box(Interval(axis.name, 0, len(axis.tops) - 1) for axis in self.axes)

    def costs(self, box: Box) -> NDArray[np.int64]:
        """Int64 (C,): cost of each config alone on a box; `BARRED` or more if it is illegal or untimed there."""
        costs = self._sums.over(box)
        return np.where(self._legal[box.largest] & (costs < BARRED // 2), costs, BARRED)

    def _one_leaf(self, axes: Sequence[Ranges]) -> NDArray[np.float64]:
        """Double (ranges of each axis): cost of the best single config above the floor."""
        prefix, barred = self._sums.prefix, np.where(self._legal, 0, BARRED)
        floor = self._floor.prefix[..., 0]
        first, last = axes[-1].bounds
        least = np.empty((axes[-1].size, axes[-1].size), np.int64)
        strips = []
        for bounds in product(*(zip(*map(np.ndarray.tolist, ranges.bounds), strict=True) for ranges in axes[:-1])):
            strip, below = _between(prefix, bounds), _between(floor, bounds)
            ends = strip[1:] + barred[tuple(to - 1 for _, to in bounds)]
            # All ranges of 2,177 configs at once leave the processor's cache, and take three times as long.
            for low, start in enumerate(strip[:-1]):
                least[low, low + 1 :] = (ends[low:] - start).min(axis=1)
            costs = least[first, last]
            strips.append(np.where(costs >= BARRED // 2, np.inf, costs - (below[last] - below[first])))
        return np.stack(strips).reshape([len(ranges.free) for ranges in axes])

    def _least(self, leaves: int, box: Box) -> int | None:
        counts = range(1, min(leaves, self.most) + 1)
        return min((cost for count in counts if (cost := self._cost(count, box)) is not None), default=None)

    def _cost(self, leaves: int, box: Box) -> int | None:
        """Least cost of a tree of exactly that many leaves on a box; None if none exists."""
        return None if np.isinf(self._partitions.least(leaves, box)) else self._summed(leaves, box)

    def _summed(self, leaves: int, box: Box) -> int:
        """The same as `_cost`, for a tree that exists."""
        about = self._partitions.least(leaves, box)
        if self._partitions.is_exact(about):
            return int(self._floor.over(box)[0]) + int(about)
        if (leaves, box) not in self._exact_costs:
            if len(self._exact_costs) >= _MANY:
                self._partitions.in_doubles()
                return self._summed(leaves, box)
            self._exact_costs[leaves, box] = (
                int(self.costs(box).min()) if leaves == 1 else min(cost for cost, _ in self._cuts(leaves, box))
            )
        return self._exact_costs[leaves, box]

    def _cuts(self, leaves: int, box: Box) -> Iterator[tuple[int, BinCut]]:
        """Cuts that may attain the least cost, in their order, each with the cost of the best trees on both sides."""
        for cut in self._partitions.cuts(leaves, box):
            low, high = box.cut(cut.axis, cut.at)
            yield self._summed(cut.low_leaves, low) + self._summed(leaves - cut.low_leaves, high), cut

    def _build(self, box: Box, leaves: int) -> Tree:
        if (leaves, box) not in self._trees:
            self._trees[leaves, box] = self._built(box, leaves)
        return self._trees[leaves, box]

    def _built(self, box: Box, leaves: int) -> Tree:
        if leaves == 1:
            return Leaf(self.configs[int(np.argmin(self.costs(box)))])
        goal = self._summed(leaves, box)
        cut = next(cut for cost, cut in self._cuts(leaves, box) if cost == goal)
        low, high = box.cut(cut.axis, cut.at)
        axis = self.axis(cut.axis)
        parts = self._build(low, cut.low_leaves), self._build(high, leaves - cut.low_leaves)
        return Split(cut.axis, axis.threshold(cut.at), *parts)


def _between(prefix: NDArray[np.int64], bounds: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The sums between two bounds of each of the first axes, from sums up to each bound."""
    if not bounds:
        return prefix
    (low, high), *others = bounds
    return _between(prefix[high], others) - _between(prefix[low], others)
