"""The bits of the rows of an earlier table, which a new table must keep (`--same-bits-as`).

A config keeps the bits in a bin if it sums a row in the same order as the earlier table's config there. The earlier
table's configs and thresholds are added to the candidates, so a tree always exists. Keys that the earlier table lacks
are refused.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import of_file
from normtune.heuristics.fitting.result import FittedFunction, Shared
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.row_classes import HIDDEN, RowClasses
from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.tablefile import locate
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


class SameBits(NamedTuple):
    """An earlier table.

    Attributes:
        name: of its file, for messages.
        trees: its trees by key.
    """

    name: str
    trees: Mapping[Key, Tree]

    def kept(self, spec: OperatorSpec, target: Target, keys: Sequence[Key]) -> KeptBits:
        """The bits that a function for these keys must keep.

        Raises:
            UsageError: the table has no function for one of them.
        """
        trees = {key: _serving(self.trees, key) for key in keys}
        for key, tree in trees.items():
            if tree is None:
                of_mode = "batch-invariant " * key.is_batch_invariant
                raise UsageError(
                    f"{self.name} has no {of_mode}function of {key.usual}, whose bits could be kept: leave "
                    f"it out, {'without --batch-invariant' if key.is_batch_invariant else 'with --operator'}"
                )
        return KeptBits(spec, target, {key: tree for key, tree in trees.items() if tree})

    def check(
        self, spec: OperatorSpec, target: Target, functions: Sequence[FittedFunction], shared: Sequence[Shared]
    ) -> None:
        """Refuse a fit of an operator in which a key of the earlier table would get other bits, or no function.

        Raises:
            NormtuneError: there is such a key, for example an unmeasured variant with the plain operator's function.
        """
        trees = {key: function.tree for function in functions for key in function.served}
        of_donor = {function.key: function.tree for function in functions}
        trees |= {share.key: of_donor[share.donor] for share in shared}
        fitted_modes = {key.is_batch_invariant for key in trees}
        for key in self.trees:
            if key.operator != spec.name or key.is_batch_invariant not in fitted_modes:
                continue
            tree, kept = _serving(trees, key), self.kept(spec, target, [key])
            if tree is None or any(kept.refuses(*region) for region in regions(tree, spec.whole)):
                raise NormtuneError(
                    f"{key} would not keep the bits that {self.name} gives it: sweep that variant and dtype"
                )


def same_bits(path: str | None, target: Target) -> SameBits | None:
    """The table in a file; None without a file.

    Raises:
        UsageError: the file cannot be read, or is not a table of one GPU of the target.
    """
    if path is None:
        return None
    incumbents, header = of_file(path), locate.header_of(path)
    name = locate.quoted(Path(path))
    if header.target != target.name:
        raise UsageError(f"{name} is a table of {header.target}: expected one of {target.name}, as the measurements")
    return SameBits(name, incumbents.trees)


def _serving(trees: Mapping[Key, Tree], key: Key) -> Tree | None:
    """The tree of a key: a variant's own, else the plain operator's."""
    return next((trees[name] for name in key.names if name in trees), None)


def _measured(axis: Axis) -> int:
    """The largest measured size."""
    return axis.tops[-2] if axis.beyond else axis.tops[-1]
