"""A threshold tree over the sizes of a shape: what is fitted, scored and written as code.

In: configs and thresholds. Out: `Leaf`, `Split`, `Box`, and what one asks of a tree. Knows neither times nor operators.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Union

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.derived_size import is_derived, size_along
from normtune.kernels.problem import AXES, Shape

# The axis of counts, which the code compares by `rows >= T`; so it does derived sizes, and lengths by `hidden <= T`.
_ROWS = "rows"


class Leaf(NamedTuple):
    """A region with one config."""

    config: Config


class Split(NamedTuple):
    """A threshold on one axis, and the trees on both sides.

    Attributes:
        axis: its name.
        threshold: an integer, as the code compares it.
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
    """How the code compares a size with a threshold of an axis, `<=` or `>=`."""
    return ">=" if axis == _ROWS or is_derived(axis) else "<="


def first_of(axis: str, threshold: int) -> int:
    """The least size on the high side of a threshold."""
    return threshold + (comparison(axis) == "<=")


def threshold_of(axis: str, first: int) -> int:
    """The threshold with this least size on the high side, the inverse of `first_of`."""
    return first - (comparison(axis) == "<=")


def told(axis: str, threshold: int) -> str:
    """A threshold in the form of the code."""
    return f"{axis} {comparison(axis)} {threshold}"


def choose(tree: Tree, shape: Shape, axes: Sequence[str] = AXES) -> Config:
    """Config of the leaf that a shape lies in; `axes` names its sizes."""
    while isinstance(tree, Split):
        tree = tree.low if size_along(tree.axis, axes, shape) < tree.first else tree.high
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


def nodes(tree: Any) -> Iterator[Any]:
    """Each cut and leaf of a tree of this kind or of another that has leaves, from the root down, low before high."""
    yield tree
    if not isinstance(tree, Leaf):
        yield from nodes(tree.low)
        yield from nodes(tree.high)


def configs_of(tree: Any) -> Iterator[Config]:
    """Config of each leaf, low before high; of a tree as of `nodes`."""
    return (node.config for node in nodes(tree) if isinstance(node, Leaf))


def halves(split: Split, box: Box) -> tuple[Box, Box]:
    """What is low and what is high of a cut in a box."""
    return box.cut(split.axis, split.first)


def walk(
    tree: Any, box: Box, halves: Callable[[Any, Box], tuple[Box, Box]] = halves, as_code: bool = False
) -> Iterator[tuple[Any, Box]]:
    """Each cut and leaf with the box that it divides or answers for, from the root down, low before high.

    Args:
        tree: of this kind or another that has leaves and, in its cuts, `low` and `high`.
        box: what the tree answers for.
        halves: of a cut and its box, the boxes of `low` and `high`; what is in an empty one is left out.
        as_code: whether the order is that of the code, where what meets the comparison comes first.
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
            rest += reversed(parts) if as_code and comparison(node.axis) == ">=" else parts


def regions(tree: Tree, box: Box) -> Iterator[tuple[Config, Box]]:
    """The config of each leaf and the box that it answers for within another box, in the order of the code."""
    return ((node.config, own) for node, own in walk(tree, box, as_code=True) if isinstance(node, Leaf))
