"""The simplest of the trees whose loss is within a budget.

Simpler means, in this order: fewer leaves, fewer distinct configs (each is a binary that users compile), and rounder
thresholds. The partition is that of the optimum, but single thresholds move to rounder ones of the grid.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from normtune.heuristics.solver.grid import roundness
from normtune.heuristics.solver.optimum import BARRED, Optima
from normtune.heuristics.solver.portfolio import fewest
from normtune.kernels.box import Box
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, distinct, walk


def simplified(optima: Optima, tree: Tree, budget: int) -> Tree:
    """Simplify a tree of the optima that costs at most `budget`, within this budget."""
    return _rounder(optima, _fewer_configs(optima, tree, budget), budget)


def cost_of(optima: Optima, tree: Tree) -> int | None:
    """Cost of a tree of the grid; None if a config is illegal or untimed, or a threshold divides nothing."""
    total = 0
    for node, box in walk(tree, optima.whole, partial(_halves, optima)):
        if isinstance(node, Leaf):
            total += int(optima.costs(box)[optima.configs.index(node.config)])
        elif _halves(optima, node, box)[0] == box:
            return None
    return total if total < BARRED // 2 else None


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
