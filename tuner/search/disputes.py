"""What a table may lose at shapes that nobody measured, and where a measurement would lower that most.

In: the shapes of a function that can be measured, and median times at some of them. Out: for each other shape the
loss to be expected there, and the mean of them.

At a shape that was not measured, a table fitted to all measurements answers about as the nearest measured shapes do
together: those towards larger and smaller sizes of each axis, weighted by their distance in octaves. The config that
loses least at them is the answer, and what it loses at them the prediction. How right predictions are is known from the
measured shapes, each predicted from the others, as far as those were drawn and not chosen: shapes in a random order are
measured between the chosen ones.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import Config
from normtune.kernels.problem import Shape
from normtune.tuner.plan.neighbours import LEAST_LOSS, MedianTimes, NeighbourLosses, Neighbours

# Added to each distance, octaves.
_SOFT = 0.25
# Log time. A config that loses no more than this at a measured neighbour may be the best at a shape.
_HOPE = 0.03
# Least drawn shapes by which predictions are judged; with fewer, no loss is low enough.
LEAST_DRAWN = 10
_SEED = 1


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
        points = np.log2(np.array(self.shapes, np.float64).reshape(-1, 2))
        self._shares = _shares(points)
        self._near = Neighbours(points, _SOFT)
        self._of_near = NeighbourLosses(self._near)
        self._order = np.random.default_rng(_SEED).permutation(len(points))
        self._open = np.ones(len(points), np.bool_)
        self._learn(measured)

    def learn(self, shape: Shape, medians: MedianTimes) -> None:
        """Add the median times of a shape, which is no longer disputed even if there are none."""
        self._learn({shape: medians})

    def _learn(self, measured: Mapping[Shape, MedianTimes]) -> None:
        for shape in measured:
            self.take(shape)
        self._of_near.learn({self._index[shape]: medians for shape, medians in measured.items()})

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
        indices = np.flatnonzero(self._open & (self._of_near.answers >= 0))
        losses = self._loss[indices]
        worth = (self._of_near.predicted[indices] + LEAST_LOSS) * self._near.distances[indices].min(axis=1)
        return [
            Dispute(self.shapes[indices[at]], float(losses[at]), float(self._shares[indices[at]]), float(worth[at]))
            for at in np.lexsort((indices, -worth)).tolist()
        ]

    def hopeful(self, shape: Shape) -> set[Config]:
        """The configs that are nearly the best at one of the neighbours of a shape or more."""
        is_near = np.any(self._of_near.losses[self._near.of(self._index[shape])] <= _HOPE, axis=0).tolist()
        return {config for config, column in self._of_near.columns.items() if is_near[column]}

    def neighbours(self, shape: Shape) -> tuple[Shape, ...]:
        """The measured shapes from which its losses are predicted."""
        return tuple(self.shapes[index] for index in self._near.of(self._index[shape]))

    def draw(self) -> Shape | None:
        """The next shape of a random order that was not measured; None if there is none."""
        remaining = self._order[self._open[self._order]]
        return self.shapes[remaining[0]] if len(remaining) else None

    @property
    def _random_shapes(self) -> NDArray[np.int64]:
        """The first shapes of the random order, as far as all are measured; those without a real loss are left out."""
        opened = np.flatnonzero(self._open[self._order])
        first = self._order[: opened[0] if len(opened) else None]
        first = first[self._near.measured[first] & (self._of_near.answers[first] >= 0)]
        return first[np.isfinite(self._of_near.real(first))]

    @property
    def _loss(self) -> NDArray[np.float64]:
        """The loss to be expected at each shape, a linear function of the predicted one with positive parameters.

        It is fitted to the drawn shapes, and one more of `LEAST_LOSS`.
        """
        from scipy.optimize import nnls  # a sweep with nothing to measure does not need it

        random_shapes = self._random_shapes
        root = np.sqrt([1.0, *self._shares[random_shapes] / self._shares.mean()])
        predicted = np.array([LEAST_LOSS, *self._of_near.predicted[random_shapes]])
        real = np.array([LEAST_LOSS, *self._of_near.real(random_shapes)])
        (least, slope), _ = nnls(root[:, None] * np.stack([np.ones(len(root)), predicted], axis=1), root * real)
        return np.asarray(least + slope * self._of_near.predicted)


def _shares(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weight of each shape in a mean: its share of the area, by the sizes that occur along each axis."""
    shares = np.ones(len(points))
    for values in points.T:
        sizes = np.unique(values)
        edges = np.concatenate([sizes[:1], (sizes[1:] + sizes[:-1]) / 2, sizes[-1:]])
        shares *= np.maximum(np.diff(edges), 1e-3)[np.searchsorted(sizes, values)]
    return shares / shares.sum()
