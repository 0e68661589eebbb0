"""Which shapes and configs tell whether a table still fits.

In: a function of a table, and the shapes that can be measured. Out: a stratified sample of these shapes, and the
configs that race at each. Pure, and the same for the same seed. Measuring is left to the tuner, what it says to
`verdict`.

The population is log-uniform in the measured box, where the table's grid never was; hidden sizes are multiples of 16,
as in models. On a replay it is the recorded shapes. Its strata are the leaves: a leaf's share of the population is its
weight in the mean. First each leaf that matters is visited once, the largest first, then each next shape goes to the
leaf that is owed most by its share (Sainte-Lague), so that the sample is spread over the plane wherever it is cut off.
A threshold in a wrong place moves the area between it and the right one to the wrong leaf, where the sample finds it by
its area, that is by what it costs.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from normtune.heuristics.tablefile.tree import Box, Split, Tree, choose, leaves
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

# The race beside the table's config: 7 to 10 configs in all. At 200 shapes of the recorded H200 it shows 0.42 to 0.87 %
# of the 0.44 to 1.10 % that the shipped plain functions lose to the best of the whole space, and of what another
# dtype's functions lose 94 to 99 %.
NEIGHBOURS, BESIDE, STRONG = 5, 4, 7
# A leaf matters that answers for so much of the population.
MATTERS = 0.01
_UNIT = 16
# Shapes that stand for the measured box: a leaf of 1 % has some 40 of them.
_POPULATION = 4096


class Probe(NamedTuple):
    """A shape of a sample, and the number of the leaf that answers for it, from the left."""

    rows: int
    hidden: int
    leaf: int


class Sample(NamedTuple):
    """A stratified sample.

    Attributes:
        probes: in the order in which they are worth most.
        reserve: another shape of each leaf that is among them once, for a second look.
        shares: of the population, by leaf; leaves without a shape are missing.
    """

    probes: tuple[Probe, ...]
    reserve: tuple[Probe, ...]
    shares: dict[int, float]


def population(
    box: Box, seed: int, most_elements: int, known: Collection[tuple[int, int]] | None = None
) -> list[tuple[int, int]]:
    """The shapes that a table is asked about, each once, (rows, hidden).

    Args:
        box: that it was measured on.
        seed: other seeds give other shapes.
        most_elements: rows x hidden is at most that.
        known: the only shapes that can be measured; None for all.
    """
    rng = random.Random(seed)
    drawn = (_anywhere(rng, box) for _ in range(_POPULATION)) if known is None else known
    return sorted({shape for shape in drawn if box.holds(*shape) and shape[0] * shape[1] <= most_elements})


def sample(tree: Tree, shapes: Sequence[tuple[int, int]], count: int, seed: int | str) -> Sample:
    """So many of the shapes, spread over the leaves of a tree by their shares.

    Args:
        tree: whose leaves are the strata.
        shapes: the population.
        count: the most that are drawn, unless more leaves matter.
        seed: other seeds draw others.
    """
    rng = random.Random(seed)
    of_leaf: dict[int, list[Probe]] = defaultdict(list)
    for rows, hidden in shapes:
        leaf = leaf_of(tree, rows, hidden)
        of_leaf[leaf].append(Probe(rows, hidden, leaf))
    sizes = {leaf: len(found) for leaf, found in of_leaf.items()}
    for found in of_leaf.values():
        rng.shuffle(found)
    seats: list[tuple[bool, float, int, int]] = []
    for leaf, size in sizes.items():
        first = size >= MATTERS * len(shapes)
        seats += [(not (first and place == 0), -size / (2 * place + 1), leaf, place) for place in range(size)]
    most = max(count, sum(not is_later for is_later, *_ in seats))
    drawn = tuple(of_leaf[leaf][place] for _, _, leaf, place in sorted(seats)[:most])
    visits = Counter(probe.leaf for probe in drawn)
    reserve = tuple(of_leaf[leaf][1] for leaf, count in visits.items() if count == 1 and sizes[leaf] > 1)
    return Sample(drawn, reserve, {leaf: size / len(shapes) for leaf, size in sizes.items()})


def rivals(
    tree: Tree, spec: OperatorSpec, problem: Problem, target: Target, others: Iterable[Tree] = ()
) -> list[Config]:
    """The configs that race against the table's.

    Those of the leaves around, what other functions of the table answer at the same shape, and those of the quick space
    as evenly as can be.

    Args:
        tree: the function that is checked.
        spec: of its operator.
        problem: the shape.
        target: the device's.
        others: functions of the same operator.
    """
    shape = problem.rows, problem.hidden
    around = dict.fromkeys(choose(tree, *place) for place in _around(*shape, spec.max_hidden))
    beside = dict.fromkeys(choose(other, *shape) for other in others)
    own = choose(tree, *shape)
    found: list[Config] = []
    for configs, most in ((around, NEIGHBOURS), (beside, BESIDE), (spec.configs("quick", problem, target), STRONG)):
        new = [config for config in configs if config != own and config not in found]
        found += spread(new, most) if configs is not around else new[:most]
    return found


def spread(configs: Sequence[Config], count: int) -> list[Config]:
    """So many of the configs, from the first to the last, as evenly as can be."""
    if len(configs) <= count:
        return list(configs)
    return [configs[round(place * (len(configs) - 1) / (count - 1))] for place in range(count)]


def leaf_of(tree: Tree, rows: int, hidden: int) -> int:
    """The number of the leaf that answers for a shape, low before high."""
    passed = 0
    while isinstance(tree, Split):
        is_low = hidden <= tree.threshold if tree.axis == "hidden" else rows < tree.threshold
        passed += 0 if is_low else leaves(tree.low)
        tree = tree.low if is_low else tree.high
    return passed


def _anywhere(rng: random.Random, box: Box) -> tuple[int, int]:
    """A log-uniform shape of a box."""
    rows = _log_uniform(rng, box.least_rows, box.most_rows)
    hidden = round(_log_uniform(rng, box.least_hidden, box.most_hidden) / _UNIT) * _UNIT
    if hidden < box.least_hidden:
        hidden += _UNIT
    if hidden > box.most_hidden:
        hidden -= _UNIT
    if hidden < box.least_hidden:  # a strip without a multiple
        hidden = box.most_hidden
    return rows, hidden


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return min(most, max(least, round(math.exp(rng.uniform(math.log(least), math.log(most))))))


def _around(rows: int, hidden: int, most_hidden: int) -> Iterator[tuple[int, int]]:
    """The shapes up to two octaves away along each axis, nearest first."""
    halves = range(-4, 5)
    steps = sorted(
        ((along / 2, across / 2) for along in halves for across in halves),
        key=lambda step: (abs(step[0]) + abs(step[1]), step),
    )
    for along, across in steps:
        yield max(1, round(rows * 2.0**along)), min(most_hidden, max(1, round(hidden * 2.0**across)))
