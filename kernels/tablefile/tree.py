"""A threshold tree on (rows, hidden): what is fitted, scored and written as code.

In: configs and thresholds. Out: `Leaf`, `Split`, `Box`, and what one asks of a tree. Knows neither times nor operators.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Union

from normtune.kernels.config import Config


class Leaf(NamedTuple):
    """A region with one config."""

    config: Config


class Split(NamedTuple):
    """A threshold on one axis, and the trees on both sides.

    Attributes:
        axis: `hidden` (low is `hidden <= threshold`) or `rows` (high is `rows >= threshold`).
        threshold: an integer.
        low, high: the trees for smaller and larger sizes.
    """

    axis: str
    threshold: int
    low: "Tree"
    high: "Tree"


Tree = Union[Leaf, Split]  # noqa: UP007 - a forward reference in `Split` needs the name at run time


class Box(NamedTuple):
    """A rectangle of rows x hidden, ends included.

    Attributes:
        least_rows, most_rows, least_hidden, most_hidden: its edges.
        most_elements: the most that rows x hidden may be; None where only the edges bound it.
    """

    least_rows: int
    most_rows: int
    least_hidden: int
    most_hidden: int
    most_elements: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether an axis has no integer between its edges."""
        return self.least_rows > self.most_rows or self.least_hidden > self.most_hidden

    def holds(self, rows: int, hidden: int) -> bool:
        """Whether a shape lies between the edges."""
        return self.least_rows <= rows <= self.most_rows and self.least_hidden <= hidden <= self.most_hidden

    def overlap(self, other: "Box") -> "Box":
        """What lies between the edges of both."""
        return Box(
            max(self.least_rows, other.least_rows),
            min(self.most_rows, other.most_rows),
            max(self.least_hidden, other.least_hidden),
            min(self.most_hidden, other.most_hidden),
        )

    def cut(self, axis: str, first: int) -> "tuple[Box, Box]":
        """Its parts below and from `first` of an axis on; one of them is empty where that does not cut it."""
        if axis == "hidden":
            low = self._replace(most_hidden=min(self.most_hidden, first - 1))
            return low, self._replace(least_hidden=max(self.least_hidden, first))
        low = self._replace(most_rows=min(self.most_rows, first - 1))
        return low, self._replace(least_rows=max(self.least_rows, first))


def choose(tree: Tree, rows: int, hidden: int) -> Config:
    """Config of the leaf that (rows, hidden) lies in."""
    while isinstance(tree, Split):
        if tree.axis == "hidden":
            tree = tree.low if hidden <= tree.threshold else tree.high
        else:
            tree = tree.high if rows >= tree.threshold else tree.low
    return tree.config


def leaves(tree: Tree) -> int:
    """Number of leaves."""
    return 1 if isinstance(tree, Leaf) else leaves(tree.low) + leaves(tree.high)


def counted_leaves(count: int) -> str:
    """A number of leaves as text: `1 leaf`, `8 leaves`."""
    return "1 leaf" if count == 1 else f"{count} leaves"


def distinct(tree: Tree) -> frozenset[Config]:
    """Distinct configs of a tree."""
    return frozenset({tree.config}) if isinstance(tree, Leaf) else distinct(tree.low) | distinct(tree.high)


def configs_of(tree: Tree) -> Iterator[Config]:
    """Config of each leaf, low before high."""
    if isinstance(tree, Leaf):
        yield tree.config
    else:
        yield from configs_of(tree.low)
        yield from configs_of(tree.high)


def halves(split: Split, box: Box) -> tuple[Box, Box]:
    """What is low and what is high of a cut in a box."""
    return box.cut(split.axis, split.threshold + (split.axis == "hidden"))


def walk(
    tree: Any, box: Box, halves: Callable[[Any, Box], tuple[Box, Box]] = halves, as_code: bool = False
) -> Iterator[tuple[Any, Box]]:
    """Each cut and leaf with the box that it divides or answers for, from the root down, low before high.

    Args:
        tree: of this kind or another that has leaves and, in its cuts, `low` and `high`.
        box: what the tree answers for.
        halves: of a cut and its box, the boxes of `low` and `high`; what is in an empty one is left out.
        as_code: whether the order is that of the code, where more rows come first.
    """
    rest = [(tree, box)]
    while rest:
        node, own = rest.pop()
        if own.is_empty:
            continue
        yield node, own
        if not isinstance(node, Leaf):
            low, high = halves(node, own)
            parts = [(node.high, high), (node.low, low)]
            rest += reversed(parts) if as_code and node.axis == "rows" else parts


def regions(tree: Tree, box: Box) -> Iterator[tuple[Config, Box]]:
    """The config of each leaf and the box that it answers for within another box, in the order of the code."""
    return ((node.config, own) for node, own in walk(tree, box, as_code=True) if isinstance(node, Leaf))
