"""The simplest of the trees whose loss is within a budget.

Simpler means, in this order: fewer leaves, fewer distinct configs (each is a binary that users compile), rounder
thresholds, and configs and thresholds nearer to the replaced table.

The partition is that of the optimum except for single moves: first thresholds move to rounder ones of the grid; then
leaves take configs, and splits thresholds, of the old table, as long as this neither adds configs nor makes thresholds
less round. Finally the old tree itself is taken if it is as simple.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from normtune.heuristics.solver.grid import roundness
from normtune.heuristics.solver.optimum import BARRED, Optima, Sums
from normtune.heuristics.solver.portfolio import fewest
from normtune.kernels.box import Box
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, configs_of, distinct, leaves, nodes, walk


class Old(NamedTuple):
    """The tree that is replaced.

    Attributes:
        tree: the tree.
        cost: of the tree, as in `Optima`; None if it is not legal and timed everywhere.
        differs: over the bins of the optima, the weight of the problems on which each config differs from the tree's.
    """

    tree: Tree
    cost: int | None
    differs: Sums


def simplified(optima: Optima, tree: Tree, budget: int, old: Old | None = None) -> Tree:
    """Simplify a tree of the optima that costs at most `budget`, within this budget."""
    tree = _fewer_configs(optima, tree, budget)
    tree = _rounder(optima, tree, budget)
    return tree if old is None else _nearer(optima, tree, budget, old)


def cost_of(optima: Optima, tree: Tree) -> int | None:
    """Cost of a tree; None if a config is illegal or untimed, or a threshold is off the grid or divides nothing."""
    total = 0
    for node, box in walk(tree, optima.whole, partial(_halves, optima)):
        if isinstance(node, Leaf):
            if node.config not in optima.configs:
                return None
            total += int(optima.costs(box)[optima.configs.index(node.config)])
        # For a threshold off the grid, the side of the sizes in its bin is unknown.
        elif (
            optima.axis(node.axis).threshold(_cut(optima, node)) != node.threshold
            or _halves(optima, node, box)[0] == box
        ):
            return None
        if total >= BARRED:
            return None
    return total


def _cut(optima: Optima, split: Split) -> int:
    return optima.axis(split.axis).cut(split.threshold)


def _halves(optima: Optima, split: Split, box: Box) -> tuple[Box, Box]:
    """The low and the high part of a box of bins; the whole box twice if the threshold is outside."""
    low, high = box.cut(split.axis, _cut(optima, split))
    return (box, box) if low.is_empty or high.is_empty else (low, high)


def boxes(optima: Optima, tree: Tree) -> list[Box]:
    """The bins of each leaf, low before high."""
    return [box for node, box in walk(tree, optima.whole, partial(_halves, optima)) if isinstance(node, Leaf)]


def replaced(tree: Tree, parts: Iterator[Tree]) -> Tree:
    """The tree with other trees in place of its leaves, low before high."""
    if isinstance(tree, Leaf):
        return next(parts)
    return tree._replace(low=replaced(tree.low, parts), high=replaced(tree.high, parts))


def _merged(tree: Tree) -> Tree:
    """The tree without splits between equal leaves."""
    if isinstance(tree, Leaf):
        return tree
    low, high = _merged(tree.low), _merged(tree.high)
    return low if low == high and isinstance(low, Leaf) else tree._replace(low=low, high=high)


def _fewer_configs(optima: Optima, tree: Tree, budget: int) -> Tree:
    costs = np.stack([optima.costs(box) for box in boxes(optima, tree)])
    few = fewest(costs, costs >= BARRED, budget)
    if few is None or len(few.chosen) >= len(distinct(tree)):
        return tree
    chosen = np.array(few.chosen)
    best = chosen[np.argmin(costs[:, chosen], axis=1)]
    return _merged(replaced(tree, (Leaf(optima.configs[index]) for index in best.tolist())))


def _variants(tree: Tree, changed: Callable[[Tree], Iterator[Tree]]) -> Iterator[Tree]:
    """The trees in which `changed` replaces one part, from the root down."""
    yield from changed(tree)
    if isinstance(tree, Split):
        for low in _variants(tree.low, changed):
            yield tree._replace(low=low)
        for high in _variants(tree.high, changed):
            yield tree._replace(high=high)


def _roughness(tree: Tree) -> int:
    """Sum of the roundness of its thresholds; 0 if all are powers of two."""
    return 0 if isinstance(tree, Leaf) else roundness(tree.threshold) + _roughness(tree.low) + _roughness(tree.high)


def _rounder(optima: Optima, tree: Tree, budget: int) -> Tree:
    """Move single thresholds, by the largest gain of roundness, then by the least cost."""

    def moved(part: Tree) -> Iterator[Tree]:
        if isinstance(part, Split):
            now = roundness(part.threshold)
            axis = optima.axis(part.axis)
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
    """Move single configs and thresholds to those of the old tree, the largest approach first."""
    configs = sorted(distinct(old.tree))
    thresholds = sorted({(node.axis, node.threshold) for node in nodes(old.tree) if isinstance(node, Split)})

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
    tree = _merged(tree)
    as_plain = leaves(old.tree) <= leaves(tree) and len(distinct(old.tree)) <= most
    if as_plain and _roughness(old.tree) <= _roughness(tree) and old.cost is not None and old.cost <= budget:
        return old.tree
    return tree
