"""The nearest measured shapes of each shape, and the config that loses least at them.

In: shapes as points of a plane, then median times of some. Out: of each shape its neighbours, their weights, and the
config that they answer with. Knows neither tasks nor problems; what is far and how many count is its caller's.
"""

import math
from collections.abc import Mapping
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import COPY, Config

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
# Median times of the configs of a shape, in any unit.
MedianTimes: TypeAlias = Mapping[Config, float]

# Log time. Losses of neighbours are cut off here: a greater one is a cliff, as where registers run out, and needs no
# closer look. So much loses a config that was not timed at a shape.
MOST_LOSS = 0.1
# Log time: the loss assumed where all neighbours agree.
LEAST_LOSS = 0.002


class Neighbours:
    """The nearest measured points of each point, which is not its own neighbour; of equally near ones the first.

    Args:
        points: coordinates, (points, 2).
        soft: added to each distance in a weight, so that the nearest does not get all.
        most: number of neighbours; None for the nearest one in each of the four directions.

    Attributes:
        indices: of the neighbours, -1 where there are fewer, (points, neighbours).
        distances: to them, infinite where there are fewer, (points, neighbours).
        measured: whether a point was added, (points,).
    """

    def __init__(self, points: Array, soft: float = 0.0, most: int | None = None) -> None:
        self._points, self._soft, self._by_direction = points, soft, most is None
        directions, count = (4, 1) if most is None else (1, most)
        self._near = np.full((len(points), directions, count), -1)
        self._distance = np.full(self._near.shape, np.inf)
        self.indices, self.distances = (one.reshape(len(points), -1) for one in (self._near, self._distance))
        self.measured = np.zeros(len(points), np.bool_)

    def add(self, index: int) -> None:
        """Note that a point is measured."""
        if self.measured[index]:
            return
        self.measured[index] = True
        others = np.flatnonzero(np.arange(len(self._points)) != index)
        step = self._points[index] - self._points[others]
        direction = np.zeros(len(others), np.int64)
        if self._by_direction:
            axis = abs(step).argmax(axis=1)
            direction = 2 * axis + (step[np.arange(len(step)), axis] >= 0)
        near = np.column_stack([self._near[others, direction], np.full(len(others), index)])
        distance = np.column_stack([self._distance[others, direction], np.hypot(*step.T)])
        order = np.lexsort((near, distance))[:, :-1]
        self._near[others, direction] = np.take_along_axis(near, order, axis=1)
        self._distance[others, direction] = np.take_along_axis(distance, order, axis=1)

    def of(self, index: int) -> Indices:
        """Indices of the neighbours of a point, of a number of them the nearest first."""
        near = self.indices[index]
        return near[near >= 0]

    def weights(self, indices: Indices) -> Array:
        """Shares of the neighbours of these points, which have some, inverse to distances, (indices, neighbours)."""
        weights = 1.0 / (self.distances[indices] + self._soft)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


class NeighbourLosses:
    """Losses of configs at measured points, and what the neighbours of each point say of it.

    Args:
        neighbours: of the points.

    Attributes:
        columns: of each config in `losses`.
        losses: log ratios to the best config of each point, infinite where a config was not timed, (points, configs).
        answers: columns of the configs that lose least at the neighbours, -1 without neighbours, (points,).
        predicted: log ratios that these lose there, (points,).
    """

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        count = len(neighbours.measured)
        self.columns: dict[Config, int] = {}
        self.losses = np.zeros((count, 0))
        self.answers, self.predicted = np.full(count, -1), np.zeros(count)

    def learn(self, times: Mapping[int, MedianTimes]) -> None:
        """Add the median times of points, by index. A point without a time but that of the copy stays unmeasured."""
        logs = {
            index: of_point
            for index, medians in times.items()
            if (of_point := {config: math.log(time) for config, time in medians.items() if config != COPY})
        }
        if not logs:
            return
        for config in chain.from_iterable(logs.values()):
            self.columns.setdefault(config, len(self.columns))
        lacking = len(self.columns) - self.losses.shape[1]
        self.losses = np.pad(self.losses, ((0, 0), (0, lacking)), constant_values=np.inf)
        for index, of_point in logs.items():
            least = min(of_point.values())
            self.losses[index] = [of_point.get(config, math.inf) - least for config in self.columns]
            self._neighbours.add(index)
        changed = np.flatnonzero(np.isin(self._neighbours.indices, [*logs]).any(axis=1))
        weights, near = self._neighbours.weights(changed), self._neighbours.indices[changed]
        losses = np.zeros((len(changed), len(self.columns)))
        for weight, neighbour in zip(weights.T, near.T, strict=True):
            losses += weight[:, None] * np.minimum(self.losses[neighbour], MOST_LOSS)
        self.answers[changed], self.predicted[changed] = losses.argmin(axis=1), losses.min(axis=1)

    def real(self, indices: Indices) -> Array:
        """Losses of the answers at points that have one, infinite where it was not timed, (indices,)."""
        return np.asarray(self.losses[indices, self.answers[indices]])
