"""The bits of an earlier table's rows, which a function of a new table must keep.

A config keeps the bits in a bin if it sums a row in the same order as the earlier table's config there. The earlier
table's configs and thresholds are added to the candidates, so a tree always exists.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.row_classes import HIDDEN, RowClasses
from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.tablefile.tree import Tree, configs_of, regions
from normtune.kernels.target import Target


class KeptBits:
    """The bits of an earlier table's rows, for one new function; `trees` has the earlier trees of its keys."""

    def __init__(self, spec: OperatorSpec, target: Target, trees: Mapping[Key, Tree]) -> None:
        self._kept = [
            (tree, RowClasses(Legality(spec, target, [key.dtype], [key.usual.variant]))) for key, tree in trees.items()
        ]
        self._whole = spec.whole

    @property
    def configs(self) -> tuple[Config, ...]:
        """The configs of the earlier table, ordered."""
        return tuple(sorted({config for tree, _ in self._kept for config in configs_of(tree)}))

    def cut(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """The axes with the earlier table's thresholds between their measured sizes."""
        boxes = [box for tree, _ in self._kept for _, box in regions(tree, self._whole)]
        below = ({box.along(axis.name).least - 1 for box in boxes} for axis in axes)
        return tuple(
            axis._replace(tops=tuple(sorted({*axis.tops, *(top for top in of_axis if 0 < top < _measured(axis))})))
            for axis, of_axis in zip(axes, below, strict=True)
        )

    def refuses(self, config: Config, box: Box) -> bool:
        """Whether a config sums a row in another order than the table anywhere in a box."""
        return any(
            not classes.alike(config, earlier, part.along(HIDDEN))
            for tree, classes in self._kept
            for earlier, part in regions(tree, box)
        )

    def refused(self, configs: Sequence[Config], axes: tuple[Axis, ...], among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bool (C, bins of each axis): the entries of `among` at which a config changes the bits."""
        hidden = next(axis for axis in axes if axis.name == HIDDEN)
        changed = np.zeros(among.shape, np.bool_)
        for below, most in pairwise((0, *hidden.tops)):
            strip = self._whole.with_interval(Interval(HIDDEN, below + 1, most))
            for tree, classes in self._kept:
                for earlier, box in regions(tree, strip):
                    place = tuple(axis.touched(box.along(axis.name)) for axis in axes)
                    for index in [number for number, cells in enumerate(among) if cells[place].any()]:
                        if not classes.alike(configs[index], earlier, box.along(HIDDEN)):
                            changed[index][place] = True
        return changed


def _measured(axis: Axis) -> int:
    """The largest measured size."""
    return axis.tops[-2] if axis.beyond else axis.tops[-1]
