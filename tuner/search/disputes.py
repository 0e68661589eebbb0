"""Where the answers of a function of a table are uncertain, and how much they can lose there.

In: the function's tree, the shapes that can be measured, and median times at some of them. Out: for each other shape
the loss of the function's answer, as the nearest measured shapes have it. Pure; knows neither device nor store.

A threshold lies somewhere between two measured sizes. At a shape between them the function answers with the config of
one side, which loses at the measured shapes of the other. How much, weighted by the distance to the nearest measured
shapes towards larger and smaller sizes of each axis, is what a misplaced threshold can lose there.
Distances are in octaves.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.tablefile.tree import EVERYWHERE, Split, Tree, choose, distinct, walk

MedianTimes = Mapping[Config, float]

# Log time. A greater loss is a known cliff, as where registers run out: no reason to look closer.
_MOST_LOSS = 0.1
# Added to each distance, octaves: the nearest shape of several does not count alone.
_SOFT = 0.25
_SIDES = 2 * len(AXES)
# Log time: the loss assumed where all neighbours agree.
_LEAST_LOSS = 0.002


class Dispute(NamedTuple):
    """A shape whose config is uncertain.

    Attributes:
        shape: of the problem.
        loss: of the answer there, as expected: a logarithm.
        share: of the shape in means.
        worth: of a measurement there: the loss, times the distance to the nearest measured shape.
    """

    shape: Shape
    loss: float
    share: float
    worth: float


class Threshold(NamedTuple):
    """A threshold that is uncertain.

    Attributes:
        axis, at: as in the tree.
        below, above: the nearest measured sizes; it may lie anywhere between.
        loss: of all disputed shapes between these, in the mean of the function.
    """

    axis: str
    at: int
    below: int
    above: int
    loss: float


class Disputes:
    """The shapes of one function.

    Args:
        tree: of the function.
        shapes: that can be measured.
        measured: median times of shapes measured before, in any unit.
    """

    def __init__(self, tree: Tree, shapes: Iterable[Shape], measured: Mapping[Shape, MedianTimes]) -> None:
        self._tree = tree
        self.shapes = sorted({*shapes, *measured})
        self._index = {shape: index for index, shape in enumerate(self.shapes)}
        self._points = np.log2(np.array(self.shapes, np.float64).reshape(-1, 2))
        self._shares = _shares(self._points)
        self._configs = {config: column for column, config in enumerate(sorted(distinct(tree)))}
        self._answers = np.array([self._configs[choose(tree, shape)] for shape in self.shapes], np.int64)
        count = len(self.shapes)
        self._losses = np.zeros((count, len(self._configs)))
        self._near = np.full((count, _SIDES), -1)
        self._distance = np.full((count, _SIDES), np.inf)
        self._open = np.ones(count, np.bool_)
        for shape, medians in measured.items():
            self.learn(shape, medians)

    def learn(self, shape: Shape, medians: MedianTimes) -> None:
        """Add the median times of a shape; it is settled, whether it has any or not."""
        index = self._index[shape]
        self._open[index] = False
        logs = {config: math.log(time) for config, time in medians.items() if config != COPY}
        if not logs:
            return
        least = min(logs.values())
        self._losses[index] = [min(logs.get(config, math.inf) - least, _MOST_LOSS) for config in self._configs]
        step = self._points[index] - self._points
        distance = np.hypot(*step.T)
        axis = abs(step).argmax(axis=1)
        sides = 2 * axis + (step[np.arange(len(step)), axis] >= 0)
        closer = np.flatnonzero(distance < self._distance[np.arange(len(distance)), sides])
        self._near[closer, sides[closer]] = index
        self._distance[closer, sides[closer]] = distance[closer]

    def take(self, shape: Shape) -> None:
        """Leave a shape out from now on."""
        self._open[self._index[shape]] = False

    def open(self) -> list[Dispute]:
        """The shapes with a loss that are not measured, those worth most first."""
        indices = np.flatnonzero(self._open & (self._near >= 0).any(axis=1))
        near, distance = self._near[indices], self._distance[indices]
        weights = np.where(near >= 0, 1.0 / (distance + _SOFT), 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        losses = (weights * self._losses[near, self._answers[indices, None]]).sum(axis=1)
        worth = (losses + _LEAST_LOSS) * distance.min(axis=1)
        return [
            Dispute(self.shapes[indices[at]], float(losses[at]), float(self._shares[indices[at]]), float(worth[at]))
            for at in np.lexsort((indices, -worth)).tolist()
            if losses[at] > 0
        ]

    def thresholds(self) -> list[Threshold]:
        """The uncertain thresholds, by their loss. A shape between two of them counts for both."""
        disputed = self.open()
        measured = [shape for shape, is_open in zip(self.shapes, self._open, strict=True) if not is_open]
        found = []
        for node, box in walk(self._tree, EVERYWHERE):
            if not isinstance(node, Split):
                continue
            axis = AXES.index(node.axis)
            sizes = {shape[axis] for shape in measured if box.holds(shape)}
            below = max((size for size in sizes if size < node.first), default=None)
            above = min((size for size in sizes if size >= node.first), default=None)
            if below is not None and above is not None:
                between = [one for one in disputed if box.holds(one.shape) and below < one.shape[axis] < above]
                loss = sum(one.loss * one.share for one in between)
                found.append(Threshold(node.axis, node.threshold, below, above, loss))
        return sorted((one for one in found if one.loss > 0), key=lambda one: (-one.loss, one))


def _shares(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of each shape in a mean over the plane: the area around it, by the sizes that occur along each axis."""
    shares = np.ones(len(points))
    for values in points.T:
        sizes = np.unique(values)
        edges = np.concatenate([sizes[:1], (sizes[1:] + sizes[:-1]) / 2, sizes[-1:]])
        shares *= np.maximum(np.diff(edges), 1e-3)[np.searchsorted(sizes, values)]
    return shares / shares.sum()
