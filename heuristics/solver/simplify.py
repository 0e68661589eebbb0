"""The plainest of the trees that are as good as the best one.

In: the optima of a grid, one of their trees, and how much more a tree may cost. Out: a tree within that budget, chosen
by what people prefer who read and compile a table, in this order: fewer leaves, fewer distinct configs (each is a
binary that users compile), rounder thresholds, and nearer to the table that it replaces.

The partition stays that of the optimum but for the moves below, so the preferences are met as far as single moves
reach; what is proved is the cost, as the budget is never left. Fewest configs: exact for the partition at hand.
Thresholds: a cut moves to another one of the grid that is rounder. Nearer: a leaf takes a config of the old table's, or
a cut moves to one of the old thresholds, as long as configs do not grow in number and thresholds stay as round; at last
the old tree itself, where it is as plain.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from normtune.heuristics.solver.grid import Axis, Rectangle
from normtune.heuristics.solver.optimum import BARRED, Optima, Sums
from normtune.heuristics.solver.portfolio import fewest
from normtune.heuristics.solver.thresholds import roundness
from normtune.heuristics.tablefile.tree import Leaf, Split, Tree, configs_of, distinct, leaves
from normtune.kernels.config import Config


class Old(NamedTuple):
    """The tree that is replaced.

    Attributes:
        tree: what it does.
        cost: of the tree, as `Optima` counts it; None where it may not answer everywhere.
        differs: over the bins of the optima, the weight of the problems on which each config differs from its answer.
    """

    tree: Tree
    cost: int | None
    differs: Sums


def tidied(optima: Optima, tree: Tree, budget: int, old: Old | None = None) -> Tree:
    """The plainest tree that is found.

    Args:
        optima: of the grid.
        tree: of the optima; it costs at most `budget`.
        budget: the most that the result may cost.
        old: what is replaced.
    """
    tree = _fewer_configs(optima, tree, budget)
    tree = _rounder(optima, tree, budget)
    return tree if old is None else _nearer(optima, tree, budget, old)


def cost_of(optima: Optima, tree: Tree, box: Rectangle | None = None) -> int | None:
    """What a tree costs; None where a config may not answer, or a cut is none of the grid or cuts nothing."""
    box = optima.whole if box is None else box
    if isinstance(tree, Leaf):
        place = _place(optima, tree.config)
        cost = BARRED if place is None else int(optima.costs(box)[place])
        return None if cost >= BARRED else cost
    at = _cut(optima, tree)
    # Of another threshold it is not known on which side of it the sizes of its bin are.
    parts = box.cut(tree.axis, at) if _axis(optima, tree).threshold(at) == tree.threshold else None
    low = parts and cost_of(optima, tree.low, parts[0])
    high = None if parts is None or low is None else cost_of(optima, tree.high, parts[1])
    return None if low is None or high is None else low + high


def _axis(optima: Optima, split: Split) -> Axis:
    return optima.hidden if split.axis == "hidden" else optima.rows


def _cut(optima: Optima, split: Split) -> int:
    return _axis(optima, split).cut(split.threshold)


def _place(optima: Optima, config: Config) -> int | None:
    return optima.configs.index(config) if config in optima.configs else None


def boxes(optima: Optima, tree: Tree, box: Rectangle | None = None) -> Iterator[Rectangle]:
    """The rectangles of the leaves, low before high."""
    box = optima.whole if box is None else box
    if isinstance(tree, Leaf):
        yield box
        return
    low, high = box.cut(tree.axis, _cut(optima, tree)) or (box, box)
    yield from boxes(optima, tree.low, low)
    yield from boxes(optima, tree.high, high)


def replaced(optima: Optima, tree: Tree, parts: Mapping[Rectangle, Tree], box: Rectangle | None = None) -> Tree:
    """The tree with other trees in place of the leaves of some rectangles."""
    box = optima.whole if box is None else box
    if isinstance(tree, Leaf):
        return parts.get(box, tree)
    low, high = box.cut(tree.axis, _cut(optima, tree)) or (box, box)
    return tree._replace(low=replaced(optima, tree.low, parts, low), high=replaced(optima, tree.high, parts, high))


def _with_configs(tree: Tree, configs: Iterator[Config]) -> Tree:
    """The tree with other configs in its leaves, low before high; a cut between equal ones goes."""
    if isinstance(tree, Leaf):
        return Leaf(next(configs))
    low, high = _with_configs(tree.low, configs), _with_configs(tree.high, configs)
    return low if low == high and isinstance(low, Leaf) else tree._replace(low=low, high=high)


def _fewer_configs(optima: Optima, tree: Tree, budget: int) -> Tree:
    costs = np.stack([optima.costs(box) for box in boxes(optima, tree)])
    found = fewest(costs, costs >= BARRED, budget)
    if found is None or len(found.chosen) >= len(distinct(tree)):
        return tree
    chosen = np.array(found.chosen)
    best = chosen[np.argmin(costs[:, chosen], axis=1)]
    return _with_configs(tree, iter([optima.configs[place] for place in best.tolist()]))


def _variants(tree: Tree, changed: Callable[[Tree], Iterator[Tree]]) -> Iterator[Tree]:
    """The trees in which one part was exchanged for one of `changed`, from the root down."""
    yield from changed(tree)
    if isinstance(tree, Split):
        for low in _variants(tree.low, changed):
            yield tree._replace(low=low)
        for high in _variants(tree.high, changed):
            yield tree._replace(high=high)


def _roughness(tree: Tree) -> int:
    """The sum of how little round its thresholds are."""
    return 0 if isinstance(tree, Leaf) else roundness(tree.threshold) + _roughness(tree.low) + _roughness(tree.high)


def _rounder(optima: Optima, tree: Tree, budget: int) -> Tree:
    """Single cuts are moved, the move that gains most roundness first, of these the one that costs least."""

    def moved(part: Tree) -> Iterator[Tree]:
        if isinstance(part, Split):
            now = roundness(part.threshold)
            axis = _axis(optima, part)
            for threshold in map(axis.threshold, range(1, len(axis.tops))) if now else ():
                if roundness(threshold) < now:
                    yield part._replace(threshold=threshold)

    while True:
        candidates = [
            (_roughness(other), cost, number, other)
            for number, other in enumerate(_variants(tree, moved))
            if (cost := cost_of(optima, other)) is not None and cost <= budget
        ]
        if not candidates:
            return tree
        tree = min(candidates)[-1]


def _nearer(optima: Optima, tree: Tree, budget: int, old: Old) -> Tree:
    """Leaves and cuts are brought to those of the old tree, the move that brings it nearest first."""
    configs = sorted(distinct(old.tree))
    thresholds = sorted(set(_thresholds(old.tree)))

    def moved(part: Tree) -> Iterator[Tree]:
        if isinstance(part, Leaf):
            yield from (Leaf(config) for config in configs if config != part.config)
        else:
            yield from (
                part._replace(threshold=threshold)
                for axis, threshold in thresholds
                if axis == part.axis
                and threshold != part.threshold
                and roundness(threshold) <= roundness(part.threshold)
            )

    def distance(other: Tree) -> int:
        answers = zip(boxes(optima, other), configs_of(other), strict=True)
        return sum(int(old.differs.over(box)[optima.configs.index(config)]) for box, config in answers)

    most, least = len(distinct(tree)), distance(tree)
    while least:
        candidates = [
            (far, cost, number, other)
            for number, other in enumerate(_variants(tree, moved))
            if len(distinct(other)) <= most
            and (cost := cost_of(optima, other)) is not None
            and cost <= budget
            and (far := distance(other)) < least
        ]
        if not candidates:
            break
        least, _, _, tree = min(candidates)
    tree = _with_configs(tree, configs_of(tree))
    as_plain = leaves(old.tree) <= leaves(tree) and len(distinct(old.tree)) <= most
    if as_plain and _roughness(old.tree) <= _roughness(tree) and old.cost is not None and old.cost <= budget:
        return old.tree
    return tree


def _thresholds(tree: Tree) -> Iterator[tuple[str, int]]:
    if isinstance(tree, Split):
        yield tree.axis, tree.threshold
        yield from _thresholds(tree.low)
        yield from _thresholds(tree.high)
