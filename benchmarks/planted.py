"""Planted causes of a stale table: wrong trees, and configs that a driver or a compiler slows down.

In: a function of a table. Out: `Plant`: the tree in its place, and the factor of times. A slow config is slow at every
launch, as a rival, too; a slow leaf is slow in its region.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from normtune.heuristics.rules import liger
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, leaf_of
from normtune.results.records import ROUNDS_PER_BLOCK, Outcome
from normtune.tuner.checking import subject
from normtune.tuner.checking.session import CheckSession, ProbeRequest
from normtune.tuner.checking.subject import Checked, TableUnderTest
from normtune.tuner.search.adaptive import CLOSE, FIRST_BLOCKS

_SIZES = [1 << power for power in range(6, 17)]
_ROWS = [1 << power for power in range(19)]
# Swapped configs are among this many of a tree's configs, those of the most shapes.
_SWAPPED_AMONG = 6
OTHER_DTYPE = {"bfloat16": "float32", "float16": "float32", "float32": "bfloat16"}


class Plant(NamedTuple):
    """The planted fault of a function.

    Attributes:
        tree: its tree.
        slow: the slowed config; None for none.
        factor: of its times.
        leaf: the only region of the slowdown; None for everywhere.
    """

    tree: Tree
    slow: Config | None = None
    factor: float = 1.0
    leaf: int | None = None

    def scale(self, problem: Problem, config: Config) -> float:
        """Factor of the times of a config."""
        here = self.leaf is None or leaf_of(self.tree, problem.shape) == self.leaf
        return self.factor if config == self.slow and here else 1.0


# From a function, its shapes in the check, its table, and a random generator.
Kind = Callable[[Checked, Sequence[Shape], TableUnderTest, random.Random], Plant]


class PlantedCourse(CheckSession):
    """A session that receives scaled times.

    Attributes:
        plants: by the index of the function.
    """

    plants: Mapping[int, Plant] = {}

    def learn(self, probe: ProbeRequest, asked: Config, answers: Mapping[Config, Outcome]) -> None:
        """Receive the outcomes of a race, as if the device had run it with the planted fault."""
        plant = self.plants.get(probe.function)
        if plant and plant.slow:
            name = {probe.config: asked}.get(plant.slow, plant.slow)
            answers = raced({name: plant.scale(probe.problem, plant.slow)}, answers)
        super().learn(probe, asked, answers)


def raced(factors: Mapping[Config, float], answers: Mapping[Config, Outcome]) -> Mapping[Config, Outcome]:
    """The answers of an adaptive race, with these configs slowed by these factors.

    A config that is not among the fastest then has the rounds of the first blocks alone.
    """
    scaled = {
        config: Outcome(
            one.status, one.reason, one.rounds, [round(factors.get(config, 1.0) * time) for time in one.nanoseconds]
        )
        for config, one in answers.items()
    }
    first = {config: one.nanoseconds[: FIRST_BLOCKS * ROUNDS_PER_BLOCK] for config, one in scaled.items()}
    raced = {config: median(times) for config, times in first.items() if times and config in factors}
    best = min((median(times) for times in first.values() if times), default=0)
    dropped = [config for config, time in raced.items() if time > CLOSE * best]
    return scaled | {
        config: scaled[config]._replace(rounds=scaled[config].rounds[: len(first[config])], nanoseconds=first[config])
        for config in dropped
    }


def moved(tree: Tree, rows: tuple[int, int], hidden: tuple[int, int] = (1, 1)) -> Tree:
    """The tree with its thresholds scaled by these fractions."""
    if isinstance(tree, Leaf):
        return tree
    times, over = rows if tree.axis == "rows" else hidden
    low, high = (moved(side, rows, hidden) for side in (tree.low, tree.high))
    return Split(tree.axis, max(1, tree.threshold * times // over), low, high)


def of_liger(one: Checked) -> Tree:
    """Liger's rule as a tree; the function's own tree for a variant, which the rule does not know."""
    return one.tree if one.key.modes else _by_hidden(one.key.operator, _SIZES)


def replaced(tree: Tree, configs: Mapping[Config, Config]) -> Tree:
    """The tree with other configs in its leaves."""
    if isinstance(tree, Leaf):
        return Leaf(configs.get(tree.config, tree.config))
    return tree._replace(low=replaced(tree.low, configs), high=replaced(tree.high, configs))


def _swapped(one: Checked, shapes: Sequence[Shape], table: TableUnderTest, rng: random.Random) -> Plant:
    """Two of the configs of the most shapes, swapped; the unchanged tree if it has one."""
    counts: dict[Config, int] = {}
    for shape in shapes:
        config = choose(one.tree, shape)
        counts[config] = counts.get(config, 0) + 1
    if len(counts) < 2:
        return Plant(one.tree)
    left, right = rng.sample(sorted(counts, key=lambda config: (-counts[config], config))[:_SWAPPED_AMONG], 2)
    return Plant(replaced(one.tree, {left: right, right: left}))


def _slow(factor: float, everywhere: bool) -> Kind:
    """A slowed config, or the slowed config of a leaf; drawn by its number of shapes."""

    def plant(one: Checked, shapes: Sequence[Shape], table: TableUnderTest, rng: random.Random) -> Plant:
        shape = rng.choice(shapes)
        leaf = None if everywhere else leaf_of(one.tree, shape)
        return Plant(one.tree, choose(one.tree, shape), factor, leaf)

    return plant


def _tree(change: Callable[[Checked], Tree]) -> Kind:
    return lambda one, shapes, table, rng: Plant(change(one))


def _dtype(one: Checked, shapes: Sequence[Shape], table: TableUnderTest, rng: random.Random) -> Plant:
    entry = one.key._replace(dtype=OTHER_DTYPE[one.key.dtype])
    return Plant(next((other.tree for other in table.functions if entry in other.served), one.tree))


def _portable(one: Checked) -> Tree:
    """The function of the portable table."""
    table = subject.read(locate.SHIPPED / "portable.py")
    return next(other.tree for other in table.functions if one.key in other.served)


FRESH = "fresh"
KINDS: dict[str, Kind] = {
    FRESH: _tree(lambda one: one.tree),
    "swapped": _swapped,
    "leaf_15": _slow(1.15, everywhere=False),
    "leaf_50": _slow(1.5, everywhere=False),
    "config_10": _slow(1.1, everywhere=True),
    "config_30": _slow(1.3, everywhere=True),
    "config_100": _slow(2.0, everywhere=True),
    "up": _tree(lambda one: moved(one.tree, (2, 1), (2, 1))),
    "down": _tree(lambda one: moved(one.tree, (1, 2), (1, 2))),
    "dtype": _dtype,
    "portable": _tree(_portable),
    "liger": _tree(of_liger),
    "fewer_sms": _tree(lambda one: moved(one.tree, (36, 132))),
    "more_sms": _tree(lambda one: moved(one.tree, (132, 36))),
}


def _by_hidden(operator: str, sizes: list[int]) -> Tree:
    if len(sizes) == 1:
        return _by_rows(operator, sizes[0], _ROWS)
    middle = len(sizes) // 2
    return Split(
        "hidden", sizes[middle - 1], _by_hidden(operator, sizes[:middle]), _by_hidden(operator, sizes[middle:])
    )


def _by_rows(operator: str, hidden: int, rows: list[int]) -> Tree:
    configs = [liger.choose(operator, count, hidden) for count in rows]
    if configs[0] is None:
        raise SystemExit(f"Liger's rule has no config for {operator} at hidden {hidden}")
    if len(set(configs)) == 1:
        return Leaf(configs[0])
    middle = len(rows) // 2
    return Split(
        "rows", rows[middle], _by_rows(operator, hidden, rows[:middle]), _by_rows(operator, hidden, rows[middle:])
    )
