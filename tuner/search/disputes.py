"""What a table may lose at shapes that nobody measured, and where a measurement would lower that most.

In: the shapes of a function that can be measured, and median times at some of them. Out: for each other shape the
loss to be expected there, and the mean of them.

At a shape that was not measured, a table fitted to all measurements answers about as the nearest measured shapes do
together: those towards larger and smaller sizes of each axis, weighted by their distance in octaves. The config that
loses least at them is the answer, and what it loses at them the prediction. How right predictions are is known from the
measured shapes, each predicted from the others, as far as those were drawn and not chosen: shapes in a random order are
measured between the chosen ones.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import AXES, Shape

MedianTimes = Mapping[Config, float]

# Log time. Losses of neighbours are cut off here: a greater one is a cliff, as where registers run out, and needs no
# closer look. So much loses a config that was not measured at a shape.
_MOST_LOSS = 0.1
# Added to each distance, octaves, so that the nearest shape does not get all the weight.
_SOFT = 0.25
_DIRECTIONS = 2 * len(AXES)
# Log time. A config that loses no more than this at a measured neighbour may be the best at a shape.
_HOPE = 0.03
# Least drawn shapes by which predictions are judged; with fewer, no loss is low enough.
LEAST_DRAWN = 10
_SEED = 1
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


class Disputes:
    """The shapes of one function.

    Args:
        shapes: those that can be measured.
        measured: median times of measured shapes, in any unit.
    """

    def __init__(self, shapes: Iterable[Shape], measured: Mapping[Shape, MedianTimes]) -> None:
        self.shapes = sorted({*shapes, *measured})
        self._index = {shape: index for index, shape in enumerate(self.shapes)}
        self._points = np.log2(np.array(self.shapes, np.float64).reshape(-1, 2))
        self._shares = _shares(self._points)
        self._columns: dict[Config, int] = {}
        count = len(self.shapes)
        self._losses = np.zeros((count, 0))
        self._near = np.full((count, _DIRECTIONS), -1)
        self._distance = np.full((count, _DIRECTIONS), np.inf)
        self._order = np.random.default_rng(_SEED).permutation(count)
        self._open, self._timed = np.ones(count, np.bool_), np.zeros(count, np.bool_)
        # Of each shape, from the others: the config that answers, and the loss that is predicted.
        self._answer, self._predicted = np.full(count, -1), np.zeros(count)
        near = [self._add(shape, medians) for shape, medians in measured.items()]
        self._predict(np.unique(np.concatenate([np.zeros(0, np.int64), *near])))

    def learn(self, shape: Shape, medians: MedianTimes) -> None:
        """Add the median times of a shape, which is no longer disputed even if there are none."""
        self._predict(self._add(shape, medians))

    def take(self, shape: Shape) -> None:
        """Treat a shape as no longer disputed."""
        self._open[self._index[shape]] = False

    @property
    def expected(self) -> float | None:
        """The mean loss, a log ratio, to be expected at the shapes that were not measured; 0 if there are none.

        None with fewer than `LEAST_DRAWN` drawn shapes.
        """
        share = self._shares * self._open
        if not share.any():
            return 0.0
        return float(share @ self._loss / share.sum()) if len(self._random_shapes) >= LEAST_DRAWN else None

    def open(self) -> list[Dispute]:
        """The shapes that were not measured and have a measured neighbour, those worth most first."""
        indices = np.flatnonzero(self._open & (self._answer >= 0))
        losses = self._loss[indices]
        worth = (self._predicted[indices] + _LEAST_LOSS) * self._distance[indices].min(axis=1)
        return [
            Dispute(self.shapes[indices[at]], float(losses[at]), float(self._shares[indices[at]]), float(worth[at]))
            for at in np.lexsort((indices, -worth)).tolist()
        ]

    def hopeful(self, shape: Shape) -> set[Config]:
        """The configs that are nearly the best at one of the neighbours of a shape or more."""
        is_near = np.any(self._losses[self._near_of(shape)] <= _HOPE, axis=0).tolist()
        return {config for config, column in self._columns.items() if is_near[column]}

    def neighbours(self, shape: Shape) -> tuple[Shape, ...]:
        """The measured shapes from which its losses are predicted."""
        return tuple(self.shapes[index] for index in self._near_of(shape))

    def draw(self) -> Shape | None:
        """The next shape of a random order that was not measured; None if there is none."""
        remaining = self._order[self._open[self._order]]
        return self.shapes[remaining[0]] if len(remaining) else None

    @property
    def _random_shapes(self) -> NDArray[np.int64]:
        """The first shapes of the random order, as far as all are measured; those without a real loss are left out."""
        opened = np.flatnonzero(self._open[self._order])
        first = self._order[: opened[0] if len(opened) else None]
        first = first[self._timed[first] & (self._answer[first] >= 0)]
        return first[np.isfinite(self._losses[first, self._answer[first]])]

    @property
    def _loss(self) -> NDArray[np.float64]:
        """The loss to be expected at each shape, a linear function of the predicted one with positive parameters.

        It is fitted to the drawn shapes, and one more of `_LEAST_LOSS`.
        """
        from scipy.optimize import nnls  # a sweep with nothing to measure does not need it

        random_shapes = self._random_shapes
        root = np.sqrt([1.0, *self._shares[random_shapes] / self._shares.mean()])
        predicted = np.array([_LEAST_LOSS, *self._predicted[random_shapes]])
        real = np.array([_LEAST_LOSS, *self._losses[random_shapes, self._answer[random_shapes]]])
        (least, slope), _ = nnls(root[:, None] * np.stack([np.ones(len(root)), predicted], axis=1), root * real)
        return np.asarray(least + slope * self._predicted)

    def _near_of(self, shape: Shape) -> NDArray[np.int64]:
        near = self._near[self._index[shape]]
        return np.unique(near[near >= 0])

    def _add(self, shape: Shape, medians: MedianTimes) -> NDArray[np.int64]:
        """Note the times of a shape; returns the shapes that have it as a neighbour now."""
        index = self._index[shape]
        self._open[index] = False
        logs = {config: math.log(time) for config, time in medians.items() if config != COPY}
        if not logs:
            return np.zeros(0, np.int64)
        for config in logs:
            self._columns.setdefault(config, len(self._columns))
        lacking = len(self._columns) - self._losses.shape[1]
        self._losses = np.pad(self._losses, ((0, 0), (0, lacking)), constant_values=np.inf)
        least = min(logs.values())
        self._losses[index] = [logs.get(config, math.inf) - least for config in self._columns]
        self._timed[index] = True
        step = self._points[index] - self._points
        distance = np.hypot(*step.T)
        axis = abs(step).argmax(axis=1)
        directions = 2 * axis + (step[np.arange(len(step)), axis] >= 0)
        is_closer = distance < self._distance[np.arange(len(distance)), directions]
        is_closer[index] = False
        closer = np.flatnonzero(is_closer)
        self._near[closer, directions[closer]] = index
        self._distance[closer, directions[closer]] = distance[closer]
        return closer

    def _predict(self, indices: NDArray[np.int64]) -> None:
        """Note what is to be expected at these shapes, which have neighbours."""
        near, distance = self._near[indices], self._distance[indices]
        weights = np.where(near >= 0, 1.0 / (distance + _SOFT), 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        losses = (weights[:, :, None] * np.minimum(self._losses[near], _MOST_LOSS)).sum(axis=1)
        self._answer[indices] = losses.argmin(axis=1)
        self._predicted[indices] = losses.min(axis=1)


def _shares(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weight of each shape in a mean: its share of the area, by the sizes that occur along each axis."""
    shares = np.ones(len(points))
    for values in points.T:
        sizes = np.unique(values)
        edges = np.concatenate([sizes[:1], (sizes[1:] + sizes[:-1]) / 2, sizes[-1:]])
        shares *= np.maximum(np.diff(edges), 1e-3)[np.searchsorted(sizes, values)]
    return shares / shares.sum()
