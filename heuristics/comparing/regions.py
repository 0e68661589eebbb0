"""Where in the plane of rows and hidden sizes two sides choose differently, as rectangles.

In: the trees of two tables, or of one and nothing of the other, a rule. Out: `Rectangle`s, whose edges are the
thresholds of the trees. Most rules have none that can be read, so against them each leaf of the table is one. What is
gained in them is left to `difference`.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from normtune.heuristics.tablefile.tree import Region, Tree, regions
from normtune.kernels.config import Config
from normtune.kernels.problem import MAX_ROWS


class Rectangle(NamedTuple):
    """All integers between two numbers of rows and two hidden sizes, ends included.

    Attributes:
        least_rows, most_rows, least_hidden, most_hidden: its edges.
        first, second: the config of each side in it; None for that of a rule.
    """

    least_rows: int
    most_rows: int
    least_hidden: int
    most_hidden: int
    first: Config | None
    second: Config | None

    def holds(self, rows: int, hidden: int) -> bool:
        """Whether a shape lies in it."""
        return self.least_rows <= rows <= self.most_rows and self.least_hidden <= hidden <= self.most_hidden


def rectangles(first: Tree | None, second: Tree | None, max_hidden: int) -> list[Rectangle]:
    """The fewest rectangles that greedy joining finds in which the configs differ, over all legal shapes.

    Args:
        first: the tree of one side, None for a rule.
        second: of the other.
        max_hidden: the longest row.

    Returns:
        In order of hidden and rows; none where both are rules.
    """
    if first is None and second is None:
        return []
    found = []
    for left, right in product(_parts(first, max_hidden), _parts(second, max_hidden)):
        config = left.config if first else None
        other = right.config if second else None
        edges = (
            max(left.least_rows, right.least_rows),
            min(left.most_rows, right.most_rows),
            max(left.least_hidden, right.least_hidden),
            min(left.most_hidden, right.most_hidden),
        )
        if edges[0] <= edges[1] and edges[2] <= edges[3] and config != other:
            found.append(Rectangle(*edges, config, other))
    return sorted(_joined(found), key=lambda box: (box.least_hidden, box.least_rows))


def _parts(tree: Tree | None, max_hidden: int) -> Sequence[Region]:
    if tree is None:
        return [Region(Config(), 1, MAX_ROWS, 1, max_hidden)]
    return list(regions(tree, MAX_ROWS, max_hidden))


def _joined(found: Sequence[Rectangle]) -> list[Rectangle]:
    """Rectangles of equal configs that share a whole edge, joined until none do."""
    groups: dict[tuple[Config | None, Config | None], list[Rectangle]] = {}
    for box in found:
        group = groups.setdefault((box.first, box.second), [])
        while (pair := next(((other, one) for other in group if (one := _join(box, other))), None)) is not None:
            group.remove(pair[0])
            box = pair[1]
        group.append(box)
    return [box for group in groups.values() for box in group]


def _join(one: Rectangle, other: Rectangle) -> Rectangle | None:
    """Both as one where one continues the other towards more rows or longer ones, else None."""
    for low, high in ((one, other), (other, one)):
        if low[2:4] == high[2:4] and low.most_rows + 1 == high.least_rows:
            return low._replace(most_rows=high.most_rows)
        if low[0:2] == high[0:2] and low.most_hidden + 1 == high.least_hidden:
            return low._replace(most_hidden=high.most_hidden)
    return None
