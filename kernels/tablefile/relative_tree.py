"""A threshold tree with sizes relative to the GPU, so that one tree can serve different GPUs.

In: configs and thresholds. Out: `RelativeSplit`; on a given GPU, the config of a shape, the tree of rows and hidden,
the box of each leaf. A GPU with half the multiprocessors behaves at r / 2 rows as another does at r, so rows count per
multiprocessor.
Bytes per byte of L2 cache are read, from older tables, and no longer written. Light, because dispatch reads such trees
at the first launch.
"""

from collections.abc import Iterator
from typing import NamedTuple, Union

from normtune.kernels.config import Config
from normtune.kernels.tablefile.tree import Box, Leaf, Split, Tree, walk

HIDDEN = "hidden"
ROWS_PER_SM = "rows_per_sm"
BYTES_PER_L2 = "bytes_per_l2"


class RelativeSplit(NamedTuple):
    """A threshold on a relative size. All arithmetic is on integers.

    Attributes:
        size: compared: `hidden` (high is `hidden > threshold`), `rows_per_sm` (high is
            `times * rows >= threshold * sms`) or `bytes_per_l2` (high is `times * rows * hidden >= threshold *
            l2_bytes`, where `times` is a multiple of the bytes of an element).
        times: factor of the size; 1 for `hidden`.
        threshold: an integer.
        low, high: the trees for smaller and larger sizes.
    """

    size: str
    times: int
    threshold: int
    low: "RelativeTree"
    high: "RelativeTree"


RelativeTree = Union[Leaf, RelativeSplit]  # noqa: UP007 - a forward reference in `RelativeSplit` needs the name at run time


def choose_on(tree: RelativeTree, rows: int, hidden: int, sms: int, l2_bytes: int) -> Config:
    """Config for (rows, hidden) on a GPU with `sms` multiprocessors and `l2_bytes` of L2 cache."""
    while isinstance(tree, RelativeSplit):
        if tree.size == HIDDEN:
            high = hidden > tree.threshold
        elif tree.size == ROWS_PER_SM:
            high = tree.times * rows >= tree.threshold * sms
        else:
            high = tree.times * rows * hidden >= tree.threshold * l2_bytes
        tree = tree.high if high else tree.low
    return tree.config


def on_sms(tree: RelativeTree, sms: int) -> Tree | None:
    """The tree of rows and hidden on a GPU with `sms` multiprocessors; None if a cut is in bytes."""
    if isinstance(tree, Leaf):
        return tree
    low, high = on_sms(tree.low, sms), on_sms(tree.high, sms)
    if low is None or high is None or tree.size == BYTES_PER_L2:
        return None
    if tree.size == HIDDEN:
        return Split("hidden", tree.threshold, low, high)
    return Split("rows", _first(tree, sms), low, high)


def leaves_of(tree: RelativeTree) -> Iterator[Leaf]:
    """Leaves, low before high."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from leaves_of(tree.low)
        yield from leaves_of(tree.high)


def boxes_on(tree: RelativeTree, sms: int, l2_bytes: int, box: Box) -> Iterator[tuple[Config, Box]]:
    """The config of each leaf and the box that it answers for on a GPU, within another box.

    A lower bound by a cut in bytes is ignored, so a box may hold smaller shapes than its leaf.
    """

    def halves(cut: RelativeSplit, box: Box) -> tuple[Box, Box]:
        if cut.size != BYTES_PER_L2:
            is_hidden = cut.size == HIDDEN
            return box.cut("hidden" if is_hidden else "rows", cut.threshold + 1 if is_hidden else _first(cut, sms))
        most = _first(cut, l2_bytes) - 1
        return box._replace(most_elements=most if box.most_elements is None else min(box.most_elements, most)), box

    return ((node.config, own) for node, own in walk(tree, box, halves) if isinstance(node, Leaf))


def _first(cut: RelativeSplit, unit: int) -> int:
    """The least size on the high side."""
    return -(-cut.threshold * unit // cut.times)
