"""A threshold tree with sizes relative to the GPU, so that one tree can serve different GPUs.

In: configs and thresholds. Out: `RelativeSplit`; on a given GPU, the config of a shape, the tree of absolute sizes, the
box of each leaf. A GPU with half the multiprocessors behaves at r / 2 rows as another does at r, so thresholds are in
rows per multiprocessor. Thresholds in bytes per byte of L2 cache occur only in older tables.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple, Union

from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, walk

HIDDEN = "hidden"
ROWS_PER_SM = "rows_per_sm"
BYTES_PER_L2 = "bytes_per_l2"
# The axis of a threshold in bytes: the product of a shape's sizes.
_ELEMENTS = "elements"


class RelativeSplit(NamedTuple):
    """A threshold on a relative size. All arithmetic is on integers.

    Attributes:
        size: the compared size: `hidden` (high if `hidden > threshold`), `rows_per_sm` (high if
            `times * rows >= threshold * sms`) or `bytes_per_l2` (high if `times * rows * hidden >= threshold *
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

    @property
    def axis(self) -> str:
        """The axis of a shape that the threshold divides."""
        return {HIDDEN: HIDDEN, ROWS_PER_SM: "rows"}.get(self.size, _ELEMENTS)

    def first(self, sms: int, l2_bytes: int) -> int:
        """The least size on the high side, on a GPU."""
        if self.size == HIDDEN:
            return self.threshold + 1
        return -(-self.threshold * (sms if self.size == ROWS_PER_SM else l2_bytes) // self.times)


RelativeTree = Union[Leaf, RelativeSplit]  # noqa: UP007 - a forward reference in `RelativeSplit` needs the name at run time


def choose_on(tree: RelativeTree, shape: Shape, sms: int, l2_bytes: int) -> Config:
    """Config for a shape on a GPU with `sms` multiprocessors and `l2_bytes` of L2 cache."""
    sizes = dict(zip((*AXES, _ELEMENTS), (*shape, prod(shape)), strict=True))
    while isinstance(tree, RelativeSplit):
        tree = tree.low if sizes[tree.axis] < tree.first(sms, l2_bytes) else tree.high
    return tree.config


def on_sms(tree: RelativeTree, sms: int) -> Tree | None:
    """The tree of absolute sizes on a GPU with `sms` multiprocessors; None if a threshold is in bytes."""
    if isinstance(tree, Leaf):
        return tree
    low, high = on_sms(tree.low, sms), on_sms(tree.high, sms)
    if low is None or high is None or tree.size == BYTES_PER_L2:
        return None
    threshold = tree.threshold if tree.size == HIDDEN else tree.first(sms, 0)
    return Split(tree.axis, threshold, low, high)


def boxes_on(tree: RelativeTree, sms: int, l2_bytes: int, box: Box) -> Iterator[tuple[Config, Box]]:
    """The config and the box of each leaf on a GPU, within another box.

    Each box has a further interval, of the product of the sizes, for thresholds in bytes.
    """
    whole = Box((*box, Interval(_ELEMENTS, 1, prod(box.largest))))
    parts = walk(tree, whole, lambda cut, own: own.cut(cut.axis, cut.first(sms, l2_bytes)))
    return ((node.config, own) for node, own in parts if isinstance(node, Leaf))
