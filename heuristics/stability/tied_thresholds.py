"""Tied thresholds: other values of each threshold of a tree that the times cannot distinguish from it.

Between two measured sizes all integers are tied. Values beyond a measured size are tied as long as the table's loss
rises by no more than the tie. Only legal values are tied, and a threshold beyond the measured sizes has no others.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.derived_size import size_along
from normtune.kernels.tablefile.tree import Split, Tree, choose, regions, threshold_of, walk

# Cost of a problem on which the config is not usable: more than all others together.
_NEVER = 1 << 60


class TreeCut(NamedTuple):
    """A threshold of a tree.

    Attributes:
        axis, threshold: as in the tree.
        box: the region that it divides.
        least, most: all values from one to the other are tied.
    """

    axis: str
    threshold: int
    box: Box
    least: int
    most: int


def tied_thresholds(matrix: TimingMatrix, legality: Legality, tree: Tree, tie: int) -> list[TreeCut]:
    """The thresholds of a tree from the root down, low before high; `tie` is the allowed rise of the mean, log_ppm.

    `legality` is for all dtypes and variants of the tree.
    """
    costs = np.where(matrix.usable, matrix.regret * matrix.weight[:, None], _NEVER)
    columns = {config: column for column, config in enumerate(matrix.configs)}
    search = _Search(matrix, costs, columns, legality, tie * int(matrix.weight.sum()))
    return [
        TreeCut(split.axis, split.threshold, box, *search.interval(split, box))
        for split, box in splits(tree, legality.spec.whole)
    ]


def splits(tree: Tree, whole: Box) -> list[tuple[Split, Box]]:
    """The splits of a tree, each with its box within `whole`, from the root down, low before high."""
    return [(node, box) for node, box in walk(tree, whole) if isinstance(node, Split)]


class _Search(NamedTuple):
    """Constants of the search; `costs` int64 (problems, configs), `tie` a sum over problems."""

    matrix: TimingMatrix
    costs: NDArray[np.int64]
    places: dict[Config, int]
    legality: Legality
    tie: int

    def interval(self, cut: Split, box: Box) -> tuple[int, int]:
        inside = [index for index, shape in enumerate(self.matrix.problems) if box.holds(shape)]
        axes, problems = self.matrix.axes, self.matrix.problems
        sizes = sorted({size_along(cut.axis, axes, problems[index]) for index in inside})
        gaps = _gaps(cut.axis, sizes)
        own = next((number for number, (least, most) in enumerate(gaps) if least <= cut.threshold <= most), None)
        if own is None:
            return cut.threshold, cut.threshold
        now = self.cost(cut, inside)
        least, most = gaps[own]
        for low, high in reversed(gaps[:own]):
            if self.cost(cut._replace(threshold=high), inside) > now + self.tie:
                break
            least = low
        for low, high in gaps[own + 1 :]:
            if self.cost(cut._replace(threshold=low), inside) > now + self.tie:
                break
            most = high
        # The low side may become illegal as it extends to larger sizes; the high side never does.
        reach = range(cut.threshold, most + 1)
        legal = bisect_right(reach, False, key=lambda threshold: not self.legal(cut._replace(threshold=threshold), box))
        return least, reach[max(legal, 1) - 1]

    def cost(self, tree: Tree, problems: list[int]) -> int:
        total = 0
        for index in problems:
            column = self.places.get(choose(tree, self.matrix.problems[index], self.matrix.axes))
            total += _NEVER if column is None else int(self.costs[index, column])
        return total

    def legal(self, tree: Tree, box: Box) -> bool:
        return all(self.legality.reaches(config, part.largest) for config, part in regions(tree, box))


def _gaps(axis: str, sizes: list[int]) -> list[tuple[int, int]]:
    """The least and the largest threshold between neighbouring sizes."""
    return [(threshold_of(axis, low + 1), threshold_of(axis, high)) for low, high in pairwise(sizes)]
