"""Shapes and configs for a check on a device.

In: a function of a table, and the measurable shapes. Out: a stratified sample of these shapes, and the configs that
race at each, deterministic for a seed.

The population is log-uniform in the measured box, off the table's grid; hidden sizes are multiples of 16, as in models.
On a replay it is the recorded shapes. Its strata are the leaves: a leaf's share of the population is its weight in the
mean. First each leaf that matters is visited once, the largest first. Then each further shape goes to the leaf with the
largest deficit by its share (Sainte-Lague), so that every prefix of the sample is spread over the plane. A misplaced
threshold assigns an area to the wrong leaf; the sample finds it in proportion to that area, and so to its cost.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.config_space import spread
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import AXES, Problem, Shape
from normtune.kernels.tablefile.tree import Tree, choose, leaf_of
from normtune.kernels.target import Target
from normtune.tuner.plan.portfolio import portfolio

# Most rivals of the table's config from each source, which makes races of 7 to 10 configs. At 200 shapes of the
# recorded H200 a race shows 0.42 to 0.87 % of the 0.44 to 1.10 % that the shipped plain functions lose to the best of
# the whole space, and 94 to 99 % of the loss of another dtype's functions.
NEIGHBOURS, SIBLINGS, STRONG = 5, 4, 7
# A leaf with at least this share of the population matters.
MATTERS = 0.01
_UNIT = 16
# Shapes that represent the measured box: a leaf of 1 % has some 40 of them.
_POPULATION = 4096


class Probe(NamedTuple):
    """A shape of a sample, and the number of the leaf that answers for it, from the left."""

    shape: Shape
    leaf: int


class Sample(NamedTuple):
    """A stratified sample.

    Attributes:
        probes: most informative first.
        reserve: another shape of each leaf with a single probe, for a second look.
        shares: share of the population of each leaf that has shapes.
    """

    probes: tuple[Probe, ...]
    reserve: tuple[Probe, ...]
    shares: dict[int, float]


def population(box: Box, seed: int, most_elements: int, measurable: Collection[Shape] | None = None) -> list[Shape]:
    """The shapes of a check, without duplicates.

    Args:
        box: sizes that the table was measured on.
        seed: of the draw.
        most_elements: bound on rows x hidden.
        measurable: the only measurable shapes; None for all.
    """
    rng = random.Random(seed)
    shapes = (_anywhere(rng, box) for _ in range(_POPULATION)) if measurable is None else measurable
    return sorted({shape for shape in shapes if box.holds(shape) and math.prod(shape[:2]) <= most_elements})


def sample(tree: Tree, shapes: Sequence[Shape], count: int, seed: int | str, axes: Sequence[str] = AXES) -> Sample:
    """A sample of the shapes, spread over the leaves of a tree by their shares.

    Args:
        tree: its leaves are the strata.
        shapes: the population.
        count: most shapes, unless more leaves matter.
        seed: of the draw.
        axes: the names of the sizes of a shape.
    """
    rng = random.Random(seed)
    of_leaf: dict[int, list[Probe]] = defaultdict(list)
    for shape in shapes:
        leaf = leaf_of(tree, shape, axes)
        of_leaf[leaf].append(Probe(shape, leaf))
    sizes = {leaf: len(probes) for leaf, probes in of_leaf.items()}
    for probes in of_leaf.values():
        rng.shuffle(probes)
    seats: list[tuple[bool, float, int, int]] = []
    for leaf, size in sizes.items():
        first = size >= MATTERS * len(shapes)
        seats += [(not (first and index == 0), -size / (2 * index + 1), leaf, index) for index in range(size)]
    most = max(count, sum(not is_later for is_later, *_ in seats))
    chosen = tuple(of_leaf[leaf][index] for _, _, leaf, index in sorted(seats)[:most])
    visits = Counter(probe.leaf for probe in chosen)
    reserve = tuple(of_leaf[leaf][1] for leaf, count in visits.items() if count == 1 and sizes[leaf] > 1)
    return Sample(chosen, reserve, {leaf: size / len(shapes) for leaf, size in sizes.items()})


def rivals(
    tree: Tree, spec: OperatorSpec, problem: Problem, target: Target, others: Iterable[Tree] = ()
) -> list[Config]:
    """The configs that race against the table's: of leaves nearby, of other functions, and of the portfolio.

    Where no table that ships has the operator, configs of the default space stand for the portfolio.

    Args:
        tree: the function to check.
        spec: of its operator.
        problem: of the race.
        target: limits of the device.
        others: the table's other functions of the same operator.
    """
    shape, axes = problem.function_shape, (*spec.axes,)
    around = dict.fromkeys(choose(tree, near, axes) for near in _around(shape, spec.whole.largest[: len(axes)]))
    siblings = dict.fromkeys(choose(other, shape, axes) for other in others)
    answer = choose(tree, shape, axes)
    strong = portfolio(spec, problem, target) or spec.configs("default", problem, target)
    result: list[Config] = []
    for configs, most in ((around, NEIGHBOURS), (siblings, SIBLINGS), (strong, STRONG)):
        new = [config for config in configs if config != answer and config not in result]
        result += spread(new, most) if configs is not around else new[:most]
    return result


def _anywhere(rng: random.Random, box: Box) -> Shape:
    """A log-uniform shape of a box, all but its first size multiples of `_UNIT`."""
    first, *others = (_log_uniform(rng, least, most) for _, least, most in box)
    return first, *(_multiple(size, interval) for size, interval in zip(others, box[1:], strict=True))


def _multiple(size: int, interval: Interval) -> int:
    """The multiple of `_UNIT` near a size of an interval; its end where it holds none."""
    _, least, most = interval
    size = round(size / _UNIT) * _UNIT
    size += _UNIT * (size < least)
    size -= _UNIT * (size > most)
    return most if size < least else size


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return min(most, max(least, round(math.exp(rng.uniform(math.log(least), math.log(most))))))


def _around(shape: Shape, most: Shape) -> Iterator[Shape]:
    """The shapes up to two octaves away along each axis, nearest first."""
    halves = [half / 2 for half in range(-4, 5)]
    steps = sorted(product(halves, repeat=len(shape)), key=lambda step: (sum(map(abs, step)), step))
    for step in steps:
        sizes = zip(shape, step, most, strict=True)
        yield tuple(min(end, max(1, round(size * 2.0**octaves))) for size, octaves, end in sizes)
