"""Simple searches over a made-up operator, without a model: what another search has to beat at as many timings.

In: a landscape, the number of timings of each shape, a seed. Out: the config that each shape gets. A timing is the mean
of six rounds; one of a config that fails counts as well.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from normtune.benchmarks.lib import kernel_tuner
from normtune.benchmarks.lib.landscapes import DEFAULT, MOST_LOSS, Landscape, Tile
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.tuner.search.plane.group import point

ROUNDS = 6
# Configs that are best somewhere and are then timed everywhere.
PORTFOLIO = 16
# Nearest finished shapes from whose best configs a descent starts.
NEIGHBOURS = 3


class Found(NamedTuple):
    """The config that each shape gets, and the number of timings of all shapes."""

    chosen: dict[Problem, Tile]
    timed: int


class _Shape:
    """Timings of one shape, each config once, by index of the config."""

    def __init__(self, landscape: Landscape, problem: Problem, most: int, random: np.random.Generator) -> None:
        self.logs: dict[int, float] = {}
        self._true, self._random = landscape.logs(problem), random
        self._most, self._noise = most, landscape.noise / math.sqrt(ROUNDS)

    @property
    def is_spent(self) -> bool:
        return len(self.logs) >= min(self._most, len(self._true))

    def time(self, index: int) -> float:
        """The log time of a config; infinite if it fails, or if no timing is left for it."""
        if index not in self.logs:
            if self.is_spent:
                return math.inf
            self.logs[index] = self._true[index] + self._random.normal(0, self._noise)
        return self.logs[index]

    def best(self) -> int:
        return min(self.logs, key=lambda index: (self.logs[index], index))


def random_portfolio(landscape: Landscape, timings: int, seed: int) -> Found:
    """Random configs; with several shapes those that gain most over a tenth of the others are timed everywhere."""
    random = np.random.default_rng(seed)
    width = min(PORTFOLIO, timings // 3) if len(landscape.problems) > 1 else 0
    shapes = {one: _Shape(landscape, one, timings, random) for one in landscape.problems}
    gains: dict[int, float] = {}
    for shape in shapes.values():
        for index in random.permutation(len(landscape.tiles))[: timings - width].tolist():
            shape.time(index)
        ordered = sorted(shape.logs, key=lambda index: shape.logs[index])
        tenth = min(shape.logs[ordered[len(ordered) // 10]], shape.logs[ordered[0]] + MOST_LOSS)
        for index in ordered[: math.ceil(width / len(shapes))]:
            if shape.logs[index] < math.inf:
                gains[index] = gains.get(index, 0.0) + tenth - shape.logs[index]
    for index in sorted(gains, key=lambda index: -gains[index])[:width]:
        for shape in shapes.values():
            shape.time(index)
    return _found(landscape, shapes)


def descent(landscape: Landscape, timings: int, seed: int, is_warm: bool = False) -> Found:
    """Coordinate descent from the default config, then from random ones; `is_warm`: first from neighbours' bests."""
    random = np.random.default_rng(seed)
    done: dict[Problem, _Shape] = {}
    for number in np.random.default_rng(0).permutation(len(landscape.problems)):
        problem = landscape.problems[number]
        near = sorted(done, key=lambda other: math.dist(point(problem), point(other)))[: NEIGHBOURS * is_warm]
        shape = _Shape(landscape, problem, timings, random)
        starts = dict.fromkeys([landscape.index.get(DEFAULT, 0), *(done[other].best() for other in near)])
        at = min(starts, key=shape.time)
        while not shape.is_spent:
            _descend(landscape, shape, at, random)
            at = int(random.integers(len(landscape.tiles)))
            shape.time(at)
        done[problem] = shape
    return _found(landscape, done)


def _descend(landscape: Landscape, shape: _Shape, at: int, random: np.random.Generator) -> None:
    """Change one knob at a time, in random order, for as long as one such change is faster."""
    best, before = at, -1
    while best != before:
        before = best
        for knob in random.permutation(len(Tile.knobs)):
            for other in _moves(landscape, best, knob):
                if shape.time(other) < shape.time(best):
                    best = other


def _moves(landscape: Landscape, index: int, knob: int) -> Iterator[int]:
    """The configs that differ in this knob."""
    name = Tile.knobs[knob].name
    for value in landscape.values[name]:
        other = landscape.index.get(landscape.tiles[index]._replace(**{name: value}))
        if other is not None and other != index:
            yield other


def kernel_tuned(strategy: str, landscape: Landscape, timings: int, seed: int) -> Found:
    """A strategy of Kernel Tuner, each shape by itself."""
    random, shapes = np.random.default_rng(seed), {}
    for number, problem in enumerate(landscape.problems):
        shape = shapes[problem] = _Shape(landscape, problem, timings, random)

        def timed(config: Config, shape: _Shape = shape) -> float:
            if shape.is_spent:
                raise kernel_tuner.SpentError
            return 0.1 * math.exp(shape.time(landscape.index[cast(Tile, config)]))

        kernel_tuner.tune(strategy, landscape.tiles, timed, 1000 * seed + number)
    return _found(landscape, shapes)


def _found(landscape: Landscape, shapes: Mapping[Problem, _Shape]) -> Found:
    chosen = {problem: landscape.tiles[shape.best()] for problem, shape in shapes.items()}
    return Found(chosen, sum(len(shape.logs) for shape in shapes.values()))


RIVALS: dict[str, Callable[[Landscape, int, int], Found]] = {
    "random with a portfolio": random_portfolio,
    "coordinate descent": descent,
    "coordinate descent from neighbours": partial(descent, is_warm=True),
}
# Those of others, where they are installed.
OTHERS = {f"kernel_tuner {name}": partial(kernel_tuned, name) for name in kernel_tuner.STRATEGIES}
