"""The best trees that cut hidden first and then rows, with one class of configs at each hidden size, proved.

Only bins of these two axes, rows before hidden, have strips: of hidden sizes, with intervals of rows, each with a
config. Two configs may be in a strip together if their classes are equal in all of its bins. The class of a strip and
its cuts are chosen together.

Costs are integers and are summed exactly. Of equal costs the fewest leaves are taken, then the first strips from large
sizes to small, then the smallest class and config.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.solver.bins import Bins
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.optimum import BARRED
from normtune.kernels.tablefile.tree import Leaf, Split, Tree

_NEVER = 1 << 60


class _Strip(NamedTuple):
    """Neighbouring bins of hidden.

    Attributes:
        configs: the candidates, numbers of configs sorted by class.
        starts: of each class in these.
        cost: int64 (candidates, R).
    """

    configs: NDArray[np.int64]
    starts: NDArray[np.int64]
    cost: NDArray[np.int64]

    def of(self, classes: NDArray[np.bool_]) -> "_Strip":
        """The strip with these classes alone, at least one."""
        sizes = np.diff(self.starts, append=len(self.configs))
        in_classes = np.repeat(classes, sizes)
        starts = np.concatenate([[0], sizes[classes].cumsum()[:-1]])
        return _Strip(self.configs[in_classes], starts, self.cost[in_classes])


class Strips:
    """Least costs for all numbers of leaves, and the trees that attain them."""

    def __init__(self, in_bins: Bins, classes: NDArray[np.int64], most: int) -> None:
        """Solve for 1 to `most` leaves; `classes`, int64 (C, H), has the class of each config, -1 for none."""
        self._in_bins, self._classes, self.most = in_bins, classes, most
        self._cost = np.where(in_bins.barred, BARRED, in_bins.cost)
        rows, count = self._cost.shape[1:]
        self._most_in_a_strip = min(rows, most)
        # Of strips up to a bin: the least cost of so many leaves, and the last strip's first bin and leaves.
        least = np.full((count + 1, most + 1), _NEVER)
        least[0, 0] = 0
        self._last = np.zeros((count + 1, most + 1, 2), np.int64)
        for first in range(count):
            for end, leaves, cost in self._from(first):
                total = least[first, : most + 1 - leaves] + cost
                better = total < least[end, leaves:]
                least[end, leaves:][better] = total[better]
                self._last[end, leaves:][better] = first, leaves
        self._least = least[-1]

    def least(self, leaves: int) -> int | None:
        """Least cost of a tree of at most that many leaves; None if there is no such tree."""
        best = int(self._least[: leaves + 1].min())
        return best if best < _NEVER else None

    def fewest(self, cost: int) -> int | None:
        """The fewest leaves of a tree that costs at most that; None if there is no such tree."""
        enough = np.flatnonzero(self._least <= cost)
        return int(enough[0]) if len(enough) else None

    def least_measured(self, leaves: int) -> int | None:
        """As `least`, without the bins beyond the measured sizes."""
        of, axes = self._in_bins, tuple(axis.without_outer_bin() for axis in self._in_bins.axes)
        if axes == of.axes:
            return self.least(leaves)
        rows, hidden = axes
        within = np.s_[:, : len(rows.tops), : len(hidden.tops)]
        in_bins = Bins((rows, hidden), of.configs, of.cost[within], of.barred[within], of.legal[within])
        return Strips(in_bins, self._classes[:, : len(hidden.tops)], leaves).least(leaves)

    def tree(self, leaves: int) -> Tree | None:
        """The tree of least cost with at most that many leaves; of equal costs, the one with the fewest leaves."""
        best = self.least(leaves)
        count = None if best is None else self.fewest(best)
        if count is None:
            return None
        rows, hidden = self._in_bins.axes
        cuts, parts, end = [], [], len(hidden.tops)
        while end:
            first, in_strip = self._last[end, count].tolist()
            cuts.append(first)
            parts.append(_balanced(rows, *self._strip_of(first, end, in_strip)))
            end, count = first, count - in_strip
        return _balanced(hidden, cuts[-2::-1], parts[::-1])

    def _from(self, first: int) -> Iterator[tuple[int, int, int]]:
        """End, leaves and least cost of the strips from a bin on in one class, where fewer leaves cost more.

        The sum of a class's least cost in each bin of rows bounds its cost with any number of leaves: a class is left
        out when that is not below the best cost of fewer leaves.
        """
        best = np.full(self._classes.shape[1] + 1, _NEVER)
        of_classes, ends, range_costs = [], [], []
        for end, strip in self._strips(first):
            cost = int(strip.cost.sum(axis=1).min())
            if cost < BARRED // 2:
                best[end] = cost
                yield end, 1, cost
            floor = np.minimum.reduceat(strip.cost, strip.starts).sum(axis=1)
            hopeful = floor < best[end]
            if hopeful.any():
                of_classes.append(floor[hopeful])
                ends.append(np.full(len(of_classes[-1]), end))
                range_costs.append(_range_costs(strip.of(hopeful)))
        if not ends:
            return
        floor, end_of, costs = np.concatenate(of_classes), np.concatenate(ends), np.concatenate(range_costs, axis=-1)
        least = costs[0]
        for leaves in range(2, self._most_in_a_strip + 1):
            hopeful = floor < best[end_of]
            if not hopeful.any():
                return
            floor, end_of, costs, least = floor[hopeful], end_of[hopeful], costs[..., hopeful], least[:, hopeful]
            least = _extended(least, costs).min(axis=0)
            by_end = np.full(len(best), _NEVER)
            np.minimum.at(by_end, end_of, least[-1])
            for end in np.flatnonzero(by_end < best).tolist():
                best[end] = by_end[end]
                yield end, leaves, int(by_end[end])

    def _strips(self, first: int) -> Iterator[tuple[int, _Strip]]:
        """The strips from a bin on, each with the bin behind it, as far as there are any candidates."""
        classes = self._classes[:, first:]
        cost = np.minimum(self._cost[:, :, first:].cumsum(axis=2), BARRED)
        cost = np.where(self._in_bins.legal[:, :, first:], cost, BARRED)
        may = np.logical_and.accumulate(classes >= 0, axis=1) & (cost < BARRED // 2).any(axis=1)
        number, count = np.zeros(len(classes), np.int64), classes.max() + 1
        for column in range(classes.shape[1]):
            configs = np.flatnonzero(may[:, column])
            if not len(configs):
                return
            pairs = number[configs] * count + classes[configs, column]
            number[configs] = np.unique(pairs, return_inverse=True)[1]
            configs = configs[np.argsort(number[configs], kind="stable")]
            starts = np.flatnonzero(np.diff(number[configs], prepend=-1))
            yield first + column + 1, _Strip(configs, starts, cost[configs, :, column])

    def _strip_of(self, first: int, end: int, leaves: int) -> tuple[list[int], list[Tree]]:
        """The cuts in rows of the best tree of a strip with so many leaves, and its leaves."""
        strip = next(strip for to, strip in self._strips(first) if to == end)
        range_costs = _range_costs(strip)
        least, before = [range_costs[0]], []
        for _ in range(1, leaves):
            total = _extended(least[-1], range_costs)
            least.append(total.min(axis=0))
            before.append(total.argmin(axis=0))
        group = int(least[-1][-1].argmin())
        of_class = slice(strip.starts[group], [*strip.starts, len(strip.configs)][group + 1])
        cuts: list[int] = []
        parts: list[Tree] = []
        high = strip.cost.shape[1]
        for count in range(leaves - 1, -1, -1):
            low = int(before[count - 1][high, group]) if count else 0
            config = int(strip.configs[of_class][strip.cost[of_class, low:high].sum(axis=1).argmin()])
            cuts.append(low)
            parts.append(Leaf(self._in_bins.configs[config]))
            high = low
        return cuts[-2::-1], parts[::-1]


def _range_costs(strip: _Strip) -> NDArray[np.int64]:
    """Int64 (R + 1, R + 1, classes): least cost of one config of a class on each range of rows, by its two bounds."""
    rows = strip.cost.shape[1]
    sums = np.concatenate([np.zeros((len(strip.cost), 1), np.int64), strip.cost.cumsum(axis=1)], axis=1)
    costs = np.minimum.reduceat(sums[:, None, :] - sums[:, :, None], strip.starts)
    is_range = np.triu(np.ones((rows + 1, rows + 1), np.bool_), 1)
    return np.where((costs < BARRED // 2) & is_range, costs, _NEVER).transpose(1, 2, 0)


def _extended(least: NDArray[np.int64], range_costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Int64 (R + 1, R + 1, classes): costs of the first rows, (R + 1, classes), with one more range behind them."""
    return np.minimum(least[:, None] + range_costs, _NEVER)


def _balanced(axis: Axis, cuts: list[int], parts: list[Tree]) -> Tree:
    """The tree, as flat as possible, of neighbouring parts between ascending cuts of an axis."""
    if not cuts:
        return parts[0]
    middle = len(cuts) // 2
    low = _balanced(axis, cuts[:middle], parts[: middle + 1])
    high = _balanced(axis, cuts[middle + 1 :], parts[middle + 1 :])
    return Split(axis.name, axis.threshold(cuts[middle]), low, high)
