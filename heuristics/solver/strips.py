"""The best trees that cut hidden first and then rows, and stay in one class of configs at each hidden size.

In: bins, and the class of each config in each bin of hidden. Out: `Strips`: for each number of leaves the tree of least
cost, proved: a strip of hidden has intervals of rows, each with a config, and two configs may be in a strip together if
their classes are equal in all of its bins. The class of a strip and its cuts are chosen together.

Costs are integers and are summed exactly. Of equal costs the fewest leaves are taken, then the first strips from large
sizes to small, then the smallest class and config.
"""

from functools import cached_property
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


class Strips:
    """Least costs for all numbers of leaves, and the trees that attain them."""

    def __init__(self, in_bins: Bins, classes: NDArray[np.int64], most: int) -> None:
        """Solve for 1 to `most` leaves.

        Args:
            in_bins: costs and legality of C configs on R x H bins.
            classes: int64 (C, H), -1 for no class.
            most: the most leaves.
        """
        self._in_bins, self._classes, self.most = in_bins, classes, most
        self._cost = np.where(in_bins.barred, BARRED, in_bins.cost)
        rows, count = self._cost.shape[1:]
        self._most_in_a_strip = min(rows, most)
        # Of strips up to a bin: the least cost of so many leaves, and the last strip's first bin and leaves.
        least = np.full((count + 1, most + 1), _NEVER)
        least[0, 0] = 0
        self._last = np.zeros((count + 1, most + 1, 2), np.int64)
        alone = [self._from(first) for first in range(count)]
        for end in range(1, count + 1):
            for first in range(end):
                for own, cost in enumerate(alone[first][end - first - 1 : end - first].ravel().tolist(), 1):
                    if own <= most and cost < _NEVER:
                        total = least[first, : most + 1 - own] + cost
                        better = total < least[end, own:]
                        least[end, own:][better] = total[better]
                        self._last[end, own:][better] = first, own
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
        return self._measured.least(leaves)

    def tree(self, leaves: int) -> Tree | None:
        """The tree of least cost with at most that many leaves; of equal costs, the one with the fewest leaves."""
        best = self.least(leaves)
        count = None if best is None else self.fewest(best)
        if count is None:
            return None
        rows, hidden = self._in_bins.axes
        cuts, parts, end = [], [], len(hidden.tops)
        while end:
            first, own = self._last[end, count].tolist()
            cuts.append(first)
            parts.append(_balanced(rows, *self._strip_of(first, end, own)))
            end, count = first, count - own
        return _balanced(hidden, cuts[-2::-1], parts[::-1])

    @cached_property
    def _measured(self) -> "Strips":
        rows, hidden = (axis.without_beyond() for axis in self._in_bins.axes)
        if (rows, hidden) == self._in_bins.axes:
            return self
        within = np.s_[:, : len(rows.tops), : len(hidden.tops)]
        of = self._in_bins
        in_bins = Bins((rows, hidden), of.configs, of.cost[within], of.barred[within], of.legal[within])
        return Strips(in_bins, self._classes[:, : len(hidden.tops)], self.most)

    def _from(self, first: int) -> NDArray[np.int64]:
        """Int64 (ends, leaves): least costs of the strips from a bin on, in one class each."""
        found = []
        for end in range(first + 1, len(self._in_bins.axes[1].tops) + 1):
            strip = self._strip(first, end)
            if not len(strip.configs):
                break
            found.append(self._partitions(strip)[0][:, :, -1].min(axis=1))
        rest = len(self._in_bins.axes[1].tops) - first - len(found)
        never = np.full((rest, self._most_in_a_strip), _NEVER)
        return np.concatenate([np.array(found, np.int64).reshape(len(found), never.shape[1]), never])

    def _strip(self, first: int, end: int) -> _Strip:
        classes = self._classes[:, first:end]
        cost = np.minimum(self._cost[:, :, first:end].sum(axis=2), BARRED)
        cost = np.where(self._in_bins.legal[:, :, end - 1], cost, BARRED)
        fit = np.flatnonzero((classes >= 0).all(axis=1) & (cost < BARRED // 2).any(axis=1))
        if not len(fit):
            return _Strip(fit, fit, cost[fit])
        _, numbers = np.unique(classes[fit], axis=0, return_inverse=True)
        order = np.argsort(numbers.ravel(), kind="stable")
        starts = np.flatnonzero(np.diff(numbers.ravel()[order], prepend=-1))
        return _Strip(fit[order], starts, cost[fit[order]])

    def _strip_of(self, first: int, end: int, leaves: int) -> tuple[list[int], list[Tree]]:
        """The cuts in rows of the best tree of a strip with so many leaves, and its leaves."""
        strip = self._strip(first, end)
        least, before = self._partitions(strip)
        group = int(least[leaves - 1, :, -1].argmin())
        own = slice(strip.starts[group], [*strip.starts, len(strip.configs)][group + 1])
        cuts: list[int] = []
        parts: list[Tree] = []
        high = strip.cost.shape[1]
        for count in range(leaves - 1, -1, -1):
            low = int(before[count, group, high])
            config = int(strip.configs[own][strip.cost[own, low:high].sum(axis=1).argmin()])
            cuts.append(low)
            parts.append(Leaf(self._in_bins.configs[config]))
            high = low
        return cuts[-2::-1], parts[::-1]

    def _partitions(self, strip: _Strip) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Least costs of a strip's first rows, int64 (leaves, classes, R + 1), and where the last leaf begins."""
        rows = strip.cost.shape[1]
        sums = np.concatenate([np.zeros((len(strip.cost), 1), np.int64), strip.cost.cumsum(axis=1)], axis=1)
        alone = np.minimum.reduceat(sums[:, None, :] - sums[:, :, None], strip.starts)  # (classes, low, high)
        alone = np.where((alone < BARRED // 2) & np.triu(np.ones((rows + 1, rows + 1), np.bool_), 1), alone, _NEVER)
        least, before = [alone[:, 0]], [np.zeros(alone[:, 0].shape, np.int64)]
        for _ in range(1, self._most_in_a_strip):
            total = np.minimum(least[-1][:, :, None] + alone, _NEVER)
            least.append(total.min(axis=1))
            before.append(total.argmin(axis=1))
        return np.array(least), np.array(before)


def _balanced(axis: Axis, cuts: list[int], parts: list[Tree]) -> Tree:
    """The tree of neighbouring parts between ascending cuts of an axis, as flat as can be."""
    if not cuts:
        return parts[0]
    middle = len(cuts) // 2
    low, high = (
        _balanced(axis, cuts[:middle], parts[: middle + 1]),
        _balanced(axis, cuts[middle + 1 :], parts[middle + 1 :]),
    )
    return Split(axis.name, axis.threshold(cuts[middle]), low, high)
