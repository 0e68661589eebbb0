"""The table of `sweep --refine`: its functions, and the shapes at which their thresholds can be refined.

In: a table's name, operators and dtypes, the device. Out: `RefinedTable`, and for a device `search.refine.Refinement`.
Shapes are those of `grids.between` in the measured box of the table; on a replay the recorded ones.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.operator import operators
from normtune.kernels.problem import AXES
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Split, Tree, nodes
from normtune.results.records import Device
from normtune.tuner.device.open import measurable
from normtune.tuner.plan import grids
from normtune.tuner.search.refine import Refinement


class RefinedTable(NamedTuple):
    """The functions of a table that are refined.

    Attributes:
        table: its name, for messages.
        trees: of the functions.
        box: the measured sizes of the table.
        until: see `Refinement`.
    """

    table: str
    trees: Mapping[Key, Tree]
    box: Box
    until: float

    def on(self, device: Device, regime: str) -> Refinement:
        """The refinement on a device."""
        recorded = measurable(device, regime)
        box = self.box
        if recorded is None:
            sizes = (grids.between(*own[1:], unit) for own, unit in zip(box, (1, 16), strict=True))
            everywhere = grids.shapes("default", *sizes)
            return Refinement(self.trees, self.until, dict.fromkeys(self.trees, everywhere))
        shapes = {key: [shape for shape in sorted(recorded.get(key, ())) if box.holds(shape)] for key in self.trees}
        return Refinement(self.trees, self.until, shapes)


def refined_table(
    table: str | os.PathLike[str], keys: Sequence[str], dtypes: Sequence[str], until: float
) -> RefinedTable:
    """The functions of a table to refine, without batch-invariant ones, whose thresholds depend on row classes.

    Args:
        table: its file, or the name of a shipped table.
        keys: operators, with or without a variant; empty for all of the table.
        dtypes: of the functions.
        until: see `Refinement`.

    Raises:
        UsageError: the table is not of one GPU, or has none of these functions.
    """
    loaded = locate.load_table(table)
    header, name = loaded.header, locate.quoted(table)
    if header.is_for_any_gpu:
        raise UsageError(
            f"table {name} is for any GPU: expected a table of one GPU, whose thresholds are {' and '.join(AXES)}"
        )
    entries = loaded.trees
    cut = {node.axis for tree in entries.values() for node in nodes(tree) if isinstance(node, Split)}
    sizes = [*loaded.axes, *sorted(cut - {*loaded.axes})]
    if len(sizes) > len(AXES):
        raise UsageError(
            f"table {name} has thresholds of {', '.join(sizes)}: --refine takes tables of {' and '.join(AXES)}"
        )
    specs = operators()
    usual = sorted(key for key in entries if not key.is_batch_invariant and key.operator in specs)
    names = sorted({key.text for key in usual})
    for text in keys:
        if text not in names:
            raise UsageError(f"table {name} has no function of {text!r}: expected one of {', '.join(names)}")
    chosen = {key: entries[key] for key in usual if key.dtype in dtypes and (not keys or key.text in keys)}
    if not chosen:
        there = ", ".join(sorted({key.dtype for key in usual}))
        raise UsageError(f"table {name} has no function in {', '.join(dtypes)}: it has {there}")
    return RefinedTable(name, chosen, Box.around(loaded.measured.values()), until)
