"""A threshold tree over the sizes of a shape, which is fitted, scored and written as code.

In: configs and thresholds. Out: `Leaf`, `Split`, and functions of a tree. Knows neither times nor operators.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Union

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.sizes import is_derived, size_along

# The code compares rows and derived sizes by `rows >= T`, and other sizes by `hidden <= T`.
_ROWS = "rows"


class Leaf(NamedTuple):
    """A region with one config."""

    config: Config


class Split(NamedTuple):
    """A threshold on one axis, and the trees on both sides.

    Attributes:
        axis: its name.
        threshold: the integer in the code's comparison.
        low, high: the trees for smaller and larger sizes.
    """

    axis: str
    threshold: int
    low: "Tree"
    high: "Tree"

    @property
    def first(self) -> int:
        """The least size on the high side."""
        return first_of(self.axis, self.threshold)


Tree = Union[Leaf, Split]  # noqa: UP007 - a forward reference in `Split` needs the name at run time


def comparison(axis: str) -> str:
    """The operator of the code's comparison on an axis, `<=` or `>=`."""
    return ">=" if axis == _ROWS or is_derived(axis) else "<="


def first_of(axis: str, threshold: int) -> int:
    """The least size on the high side of a threshold."""
    return threshold + (comparison(axis) == "<=")


def threshold_of(axis: str, first: int) -> int:
    """The threshold with this least size on the high side, the inverse of `first_of`."""
    return first - (comparison(axis) == "<=")


def comparison_text(axis: str, threshold: int) -> str:
    """A comparison as text: `rows >= 64`."""
    return f"{axis} {comparison(axis)} {threshold}"


def path(tree: Tree, shape: Shape, axes: Sequence[str] = AXES) -> Iterator[Tree]:
    """The nodes from the root to the leaf of a shape; `axes` names its sizes."""
    yield tree
    while isinstance(tree, Split):
        tree = tree.low if size_along(tree.axis, axes, shape) < tree.first else tree.high
        yield tree


def choose(tree: Tree, shape: Shape, axes: Sequence[str] = AXES) -> Config:
    """The config of the leaf of a shape; `axes` names its sizes."""
    sizes = dict(zip(axes, shape, strict=False))
    while isinstance(tree, Split):
        axis, threshold, low, high = tree
        size = sizes[axis] if axis in sizes else size_along(axis, axes, shape)
        tree = high if size > threshold or (size == threshold and comparison(axis) == ">=") else low
    return tree.config


def leaf_of(tree: Tree, shape: Shape, axes: Sequence[str] = AXES) -> int:
    """The number of the leaf of a shape, low before high; `axes` names its sizes."""
    steps = pairwise(path(tree, shape, axes))
    return sum(leaves(cut.low) for cut, node in steps if isinstance(cut, Split) and node is cut.high)


def leaves(tree: Tree) -> int:
    """Number of leaves."""
    return 1 if isinstance(tree, Leaf) else leaves(tree.low) + leaves(tree.high)


def counted_leaves(count: int) -> str:
    """A number of leaves as text: `1 leaf`, `8 leaves`."""
    return "1 leaf" if count == 1 else f"{count} leaves"


def distinct(tree: Tree) -> frozenset[Config]:
    """Distinct configs of a tree."""
    return frozenset({tree.config}) if isinstance(tree, Leaf) else distinct(tree.low) | distinct(tree.high)


def nodes(tree: Any) -> Iterator[Any]:
    """Each split and leaf of a tree of any kind, from the root down, low before high."""
    yield tree
    if not isinstance(tree, Leaf):
        yield from nodes(tree.low)
        yield from nodes(tree.high)


def configs_of(tree: Any) -> Iterator[Config]:
    """The config of each leaf of a tree of any kind, low before high."""
    return (node.config for node in nodes(tree) if isinstance(node, Leaf))


def halves(split: Split, box: Box) -> tuple[Box, Box]:
    """The parts of a box below and above a split."""
    return box.cut(split.axis, split.first)


def walk(
    tree: Any, box: Box, halves: Callable[[Any, Box], tuple[Box, Box]] = halves, as_code: bool = False
) -> Iterator[tuple[Any, Box]]:
    """Each split and leaf with its box, from the root down, low before high; nodes with an empty box are omitted.

    Args:
        tree: of any kind; its splits have `low` and `high`.
        box: of the root.
        halves: from a split and its box to the boxes of `low` and `high`.
        as_code: whether to take the order of the code, in which the side that meets the comparison is first.
    """
    rest = [(tree, box)]
    while rest:
        node, inner = rest.pop()
        if inner.is_empty:
            continue
        yield node, inner
        if not isinstance(node, Leaf):
            low, high = halves(node, inner)
            parts = [(node.high, high), (node.low, low)]
            rest += reversed(parts) if as_code and comparison(node.axis) == ">=" else parts


def regions(tree: Tree, box: Box) -> Iterator[tuple[Config, Box]]:
    """The config and the box of each leaf within another box, in the order of the code."""
    return ((node.config, inner) for node, inner in walk(tree, box, as_code=True) if isinstance(node, Leaf))
