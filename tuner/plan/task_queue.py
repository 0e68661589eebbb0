"""Order of the tasks of a sweep, so that its data are useful whenever it stops.

In: the tasks, and the median times of measured problems. Out: the tasks, most useful first.

Coverage comes first: every prefix of the order is spread evenly over rows x hidden, over rows, and over hidden, for
each operator and dtype. After a fifth of the shapes, every second one is chosen by its worth: the mean loss around it,
times the square of its distance to the nearest measured shape. The loss at a measured shape is that of the config that
is best at its measured neighbours, relative to the best config of the shape.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import COPY
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem, Shape
from normtune.tuner.plan.neighbours import LEAST_LOSS, MOST_LOSS, MedianTimes, NeighbourLosses, Neighbours
from normtune.tuner.plan.plan import Task

# Share of the shapes of an operator and dtype that is measured for coverage alone, and their least number.
_COVERAGE_SHARE = 0.2
_COVERAGE_LEAST = 8
_NEIGHBOURS = 4
# Added to each distance to a neighbour, in shares of the grid.
_SOFT = 0.03
# Weight of shapes with an equal size in the crowding of a shape, relative to shapes nearby.
_AXIS_SHARE = 0.2
_NEAR = 1e-3  # square of a distance, in shares of the grid: even closer shapes hardly count more
_NEAR_ON_AXIS = 3e-3


class TaskQueue:
    """The remaining tasks, by worth; `previous` are median times (ns) of problems measured before."""

    def __init__(self, tasks: Sequence[Task], previous: Mapping[Problem, MedianTimes] | None = None) -> None:
        groups: dict[Key, list[Task]] = {}
        for task in tasks:
            groups.setdefault(task.problem.key, []).append(task)
        seeds: dict[Key, dict[Shape, MedianTimes]] = {}
        for problem, medians in (previous or {}).items():
            seeds.setdefault(problem.key, {})[problem.shape] = medians
        self._groups = {name: _Group(members, seeds.get(name, {})) for name, members in groups.items()}
        turns = zip_longest(*(group.tasks for group in self._groups.values()))
        self._pending = {task.problem: task for turn in turns for task in turn if task is not None}
        self._turn = 0

    def pending(self) -> list[Task]:
        """The tasks not yet taken, in the order of coverage, operators and dtypes in turn."""
        return list(self._pending.values())

    def choices(self) -> Iterator[Task]:
        """The remaining tasks: the most useful one first, then the others in the order of coverage."""
        best = self._contested()
        if best is not None:
            yield best
        for task in self.pending():
            if best is None or task.problem != best.problem:
                yield task

    def take(self, task: Task) -> None:
        """Remove a task, as its measurement begins; again, if the device of the first time was lost."""
        self._turn += self._pending.pop(task.problem, None) is not None
        self._groups[task.problem.key].take(task.problem.shape)

    def learn(self, problem: Problem, medians: MedianTimes) -> None:
        """Add the median times (ns) of a measured problem."""
        self._groups[problem.key].learn(problem.shape, medians)

    def _contested(self) -> Task | None:
        """The task of most worth; None if the next one is for coverage, or nothing was measured."""
        if self._turn % 2 == 0 or any(group.uncovered() for group in self._groups.values()):
            return None
        best_tasks = [group.best() for group in self._groups.values()]
        return max((pair for pair in best_tasks if pair), key=lambda pair: pair[0], default=(0.0, None))[1]


class _Group:
    """Shapes of one key, in the order of coverage."""

    def __init__(self, tasks: Sequence[Task], previous: Mapping[Shape, MedianTimes]) -> None:
        self._task_of = by_shape = {task.problem.shape: task for task in tasks}
        previous = {shape: medians for shape, medians in previous.items() if any(c != COPY for c in medians)}
        shapes = sorted({*by_shape, *previous})
        order = covering(shapes, [shape for shape in shapes if shape in previous and shape not in by_shape])
        self._shapes = shapes = [shapes[index] for index in order]
        self.tasks = [by_shape[shape] for shape in shapes if shape in by_shape]
        self._index = {shape: index for index, shape in enumerate(shapes)}
        self._cover = min(len(shapes), max(_COVERAGE_LEAST, math.ceil(_COVERAGE_SHARE * len(shapes))))
        self._waiting = np.array([shape in by_shape for shape in shapes])
        self._near = Neighbours(_points(shapes), _SOFT, _NEIGHBOURS)
        self._of_near = NeighbourLosses(self._near)
        self._of_near.learn({self._index[shape]: medians for shape, medians in previous.items()})

    def uncovered(self) -> bool:
        """Whether too few shapes were begun to choose by worth."""
        return bool(self._waiting.any()) and int((~self._waiting).sum()) < self._cover

    def best(self) -> tuple[float, Task] | None:
        """The task of most worth, with its worth."""
        if not self._waiting.any() or not self._near.measured.any():
            return None
        indices = np.flatnonzero(self._waiting)
        weights = self._near.weights(indices)
        around = (weights * self.neighbour_losses()[self._near.indices[indices]]).sum(axis=1)
        worth = (around + LEAST_LOSS) * self._near.distances[indices].min(axis=1) ** 2
        most = int(np.argmax(worth))
        return float(worth[most]), self._task_of[self._shapes[indices[most]]]

    def neighbour_losses(self) -> NDArray[np.float64]:
        """Loss at each measured shape of the config that is best for its neighbours; 0 if it was not timed there."""
        losses = np.zeros(len(self._shapes))
        answered = np.flatnonzero(self._near.measured & (self._of_near.answers >= 0))
        real = self._of_near.real(answered)
        losses[answered] = np.where(np.isfinite(real), np.minimum(real, MOST_LOSS), 0.0)
        return losses

    def take(self, shape: Shape) -> None:
        self._waiting[self._index[shape]] = False

    def learn(self, shape: Shape, medians: MedianTimes) -> None:
        self._of_near.learn({self._index[shape]: medians})


def covering(shapes: Sequence[Shape], start: Sequence[Shape] = ()) -> list[int]:
    """Order shapes so that every prefix covers the plane evenly.

    Args:
        shapes: each once.
        start: shapes that come first, in this order.

    Returns:
        Indices into `shapes`: the smallest shape first, then greedily the least crowded one, the first of equals.
    """
    points = _points(shapes)
    crowded = np.zeros(len(shapes))
    free = np.ones(len(shapes), np.bool_)
    first = [shapes.index(shape) for shape in start]
    order: list[int] = []
    while len(order) < len(shapes):
        index = first[len(order)] if len(order) < len(first) else int(np.argmin(np.where(free, crowded, np.inf)))
        order.append(index)
        free[index] = False
        square = (points - points[index]) ** 2
        crowded += 1.0 / (square.sum(axis=1) + _NEAR)
        crowded += _AXIS_SHARE * (1.0 / (square + _NEAR_ON_AXIS)).sum(axis=1)
    return order


def _points(shapes: Sequence[Shape]) -> NDArray[np.float64]:
    """Shapes as points of the unit square, by the ranks of their sizes, (shapes, 2)."""
    ranked = [np.unique(sizes, return_inverse=True) for sizes in np.array(shapes, np.int64).reshape(-1, 2).T]
    return np.column_stack([ranks / max(1, len(values) - 1) for values, ranks in ranked])
