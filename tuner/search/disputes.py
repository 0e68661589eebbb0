"""Shapes at which the answers of a table's function are uncertain, and how much they can lose there.

In: the function's tree, the shapes that can be measured, and median times at some of them. Out: for each other shape an
estimate of the loss of the function's answer.

A threshold lies somewhere between two measured sizes. At a shape between them the function answers with the config of
one side, which loses at the measured shapes of the other. The estimate is the mean of these losses at the nearest
measured shapes towards larger and smaller sizes of each axis, weighted by their distance in octaves.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.box import EVERYWHERE
from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.tablefile.tree import Split, Tree, choose, distinct, walk

MedianTimes = Mapping[Config, float]

# Log time. Losses are cut off here: a greater one is a cliff, as where registers run out, and needs no closer look.
_MOST_LOSS = 0.1
# Added to each distance, octaves, so that the nearest shape does not get all the weight.
_SOFT = 0.25
_SIDES = 2 * len(AXES)
# Log time: the loss assumed where all neighbours agree.
_LEAST_LOSS = 0.002


class Dispute(NamedTuple):
    """A shape whose config is uncertain.

    Attributes:
        shape: of the problem.
        loss: expected loss of the answer, a log ratio.
        share: weight of the shape in means.
        worth: of a measurement there: the loss, times the distance to the nearest measured shape.
    """

    shape: Shape
    loss: float
    share: float
    worth: float


class Threshold(NamedTuple):
    """A threshold that is uncertain.

    Attributes:
        axis, at: axis and value of the threshold.
        below, above: the nearest measured sizes; the threshold may lie anywhere between.
        loss: of all disputed shapes between these sizes, as a part of the function's mean loss.
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
        shapes: those that can be measured.
        measured: median times of measured shapes, in any unit.
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
        """Add the median times of a shape, which is no longer disputed even if there are none."""
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
        """Treat a shape as no longer disputed."""
        self._open[self._index[shape]] = False

    def open(self) -> list[Dispute]:
        """The disputed shapes, those worth most first."""
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
        """The uncertain thresholds, greatest loss first. A shape between two of them counts for both."""
        disputed = self.open()
        measured = [shape for shape, is_open in zip(self.shapes, self._open, strict=True) if not is_open]
        thresholds = []
        for node, box in walk(self._tree, EVERYWHERE):
            if not isinstance(node, Split):
                continue
            axis = AXES.index(node.axis)
            sizes = {shape[axis] for shape in measured if box.holds(shape)}
            below = max((size for size in sizes if size < node.first), default=None)
            above = min((size for size in sizes if size >= node.first), default=None)
            if below is not None and above is not None:
                between = [d for d in disputed if box.holds(d.shape) and below < d.shape[axis] < above]
                loss = sum(dispute.loss * dispute.share for dispute in between)
                thresholds.append(Threshold(node.axis, node.threshold, below, above, loss))
        return sorted((threshold for threshold in thresholds if threshold.loss > 0), key=lambda t: (-t.loss, t))


def _shares(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weight of each shape in a mean: its share of the area, by the sizes that occur along each axis."""
    shares = np.ones(len(points))
    for values in points.T:
        sizes = np.unique(values)
        edges = np.concatenate([sizes[:1], (sizes[1:] + sizes[:-1]) / 2, sizes[-1:]])
        shares *= np.maximum(np.diff(edges), 1e-3)[np.searchsorted(sizes, values)]
    return shares / shares.sum()
