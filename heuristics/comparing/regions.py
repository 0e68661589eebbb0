"""Rectangles of rows and hidden sizes in which two sides choose differently.

In: the trees of two tables, or one tree and None for a rule. Out: `Differing` boxes, whose edges are the thresholds of
the trees. Most rules have no readable thresholds, so against them each leaf of the table is a box. `difference` finds
their gains.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.tablefile.tree import Box, Tree, regions


class Differing(NamedTuple):
    """A box in which two sides choose differently.

    Attributes:
        box: the shapes.
        first, second: the config of each side in it; None for that of a rule.
    """

    box: Box
    first: Config | None
    second: Config | None


def rectangles(first: Tree | None, second: Tree | None, max_hidden: int) -> list[Differing]:
    """Rectangles in which the configs differ, over all legal shapes, merged greedily.

    Args:
        first: the tree of one side, None for a rule.
        second: of the other.
        max_hidden: the longest row.

    Returns:
        In order of hidden and rows; none if both are rules.
    """
    if first is None and second is None:
        return []
    whole = Box(1, MAX_ROWS, 1, max_hidden)
    parts = ([(None, whole)] if tree is None else list(regions(tree, whole)) for tree in (first, second))
    boxes = [
        Differing(box.overlap(other), config, other_config)
        for (config, box), (other_config, other) in product(*parts)
        if config != other_config and not box.overlap(other).is_empty
    ]
    return sorted(_joined(boxes), key=lambda part: (part.box.least_hidden, part.box.least_rows))


def _joined(boxes: Sequence[Differing]) -> list[Differing]:
    """Rectangles of equal configs that share a whole edge, merged until none do."""
    groups: dict[tuple[Config | None, Config | None], list[Differing]] = {}
    for part in boxes:
        group = groups.setdefault((part.first, part.second), [])
        while (pair := next(((other, both) for other in group if (both := _join(part, other))), None)) is not None:
            group.remove(pair[0])
            part = pair[1]
        group.append(part)
    return [part for group in groups.values() for part in group]


def _join(one: Differing, other: Differing) -> Differing | None:
    """Both as one box if one continues the other along rows or hidden, else None."""
    for low, high in ((one, other), (other, one)):
        box, next_box = low.box, high.box
        if box[2:4] == next_box[2:4] and box.most_rows + 1 == next_box.least_rows:
            return low._replace(box=box._replace(most_rows=next_box.most_rows))
        if box[0:2] == next_box[0:2] and box.most_hidden + 1 == next_box.least_hidden:
            return low._replace(box=box._replace(most_hidden=next_box.most_hidden))
    return None
