"""A threshold tree on (rows, hidden): what is fitted, scored and written as code.

In: configs and thresholds. Out: `Leaf`, `Split`, and queries of a tree. Knows neither times nor operators.
"""

from collections.abc import Iterator
from typing import NamedTuple, Union

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


class Region(NamedTuple):
    """The rectangle of one leaf, ends included, and its config."""

    config: Config
    least_rows: int
    most_rows: int
    least_hidden: int
    most_hidden: int


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


def regions(tree: Tree, max_rows: int, max_hidden: int) -> Iterator[Region]:
    """Regions of all leaves within rows 1 to `max_rows` and hidden 1 to `max_hidden`, in the order of the code."""
    yield from _regions(tree, 1, max_rows, 1, max_hidden)


def _regions(tree: Tree, rows_from: int, rows_to: int, hidden_from: int, hidden_to: int) -> Iterator[Region]:
    if rows_from > rows_to or hidden_from > hidden_to:
        return
    if isinstance(tree, Leaf):
        yield Region(tree.config, rows_from, rows_to, hidden_from, hidden_to)
    elif tree.axis == "hidden":
        yield from _regions(tree.low, rows_from, rows_to, hidden_from, min(hidden_to, tree.threshold))
        yield from _regions(tree.high, rows_from, rows_to, max(hidden_from, tree.threshold + 1), hidden_to)
    else:
        yield from _regions(tree.high, max(rows_from, tree.threshold), rows_to, hidden_from, hidden_to)
        yield from _regions(tree.low, rows_from, min(rows_to, tree.threshold - 1), hidden_from, hidden_to)
