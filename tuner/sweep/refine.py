"""The table of `sweep(refine=...)`: its functions, and the shapes at which their thresholds can be refined.

In: a table's name, operators and dtypes, the device. Out: `RefinedTable`, and for a device `search.refine.Refinement`.
Shapes are those of `grids.between` in the measured box of the table; on a replay the recorded ones. Where the store has
no time of the table's own config at a measured shape, that config is timed first, beside the best ones.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.box import Box
from normtune.kernels.config import COPY
from normtune.kernels.key import Key
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import AXES
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Split, Tree, nodes
from normtune.kernels.target import Target
from normtune.results.records import Device
from normtune.tuner.device.open import measurable
from normtune.tuner.plan import grids
from normtune.tuner.plan.plan import ConfigsOf, Task, candidates
from normtune.tuner.search.protocol import Previous, medians_of
from normtune.tuner.search.refine import Refinement, answers_at

# Configs timed beside one without a time: runs are compared through those that both have.
_ANCHORS = 3


class RefinedTable(NamedTuple):
    """The functions of a table that are refined.

    Attributes:
        table: its name, for messages.
        trees: of the functions.
        choices: of all functions in these dtypes, batch-invariant ones too; their configs are to have times.
        names: texts of the keys whose problems are measured; empty for all.
        box: the measured sizes of the table.
        until: see `Refinement`.
    """

    table: str
    trees: Mapping[Key, Tree]
    choices: Mapping[Key, Tree]
    names: Sequence[str]
    box: Box
    until: float

    def untimed(self, stored: Previous, target: Target, recorded: ConfigsOf | None) -> list[Task]:
        """For each measured problem the table's configs without a time, beside the fastest ones.

        Args:
            stored: the measurements.
            target: of the device.
            recorded: the configs that a replay can measure; None on a GPU.
        """
        tasks = []
        for problem, coverage in sorted(stored.items()):
            if self.names and problem.key.text not in self.names:
                continue
            spec, medians = operator(problem.operator), medians_of(coverage)
            medians.pop(COPY, None)
            answers = answers_at(self.choices, problem).difference(coverage)
            if recorded is not None:
                answers.intersection_update(recorded.get(problem, ()))
            if not answers or not medians:
                continue
            launches = {spec.launch_of(config, problem, target) for config in coverage}
            lacking, _ = candidates(spec, answers, problem, target)
            lacking = [candidate for candidate in lacking if candidate.launch not in launches]
            if lacking:
                fastest = sorted(medians, key=lambda config: (medians[config], config))[:_ANCHORS]
                anchors, _ = candidates(spec, fastest, problem, target)
                tasks.append(Task(problem, tuple(sorted([*lacking, *anchors]))))
        return tasks

    def on(self, device: Device, regime: str) -> Refinement:
        """The refinement on a device."""
        recorded = measurable(device, regime)
        box = self.box
        if recorded is None:
            sizes = (grids.between(*interval[1:], unit) for interval, unit in zip(box, (1, 16), strict=True))
            everywhere = grids.shapes("default", *sizes)
            return Refinement(self.choices, self.until, dict.fromkeys(self.trees, everywhere))
        shapes = {key: [shape for shape in sorted(recorded.get(key, ())) if box.holds(shape)] for key in self.trees}
        return Refinement(self.choices, self.until, shapes)


def refined_table(
    table: str | os.PathLike[str], keys: Sequence[str], dtypes: Sequence[str], until: float
) -> RefinedTable:
    """The functions of a table to refine.

    The thresholds of batch-invariant ones depend on row classes: only their untimed configs are measured.

    Args:
        table: its file, or the name of a shipped table.
        keys: operators, with or without a variant; empty for all of the table.
        dtypes: of the functions.
        until: see `Refinement`.

    Raises:
        UsageError: the table has thresholds of other sizes, or none of these functions.
    """
    loaded = locate.load_table(table)
    name = locate.quoted(table)
    entries = loaded.trees
    cut = {node.axis for tree in entries.values() for node in nodes(tree) if isinstance(node, Split)}
    sizes = [*loaded.axes, *sorted(cut - {*loaded.axes})]
    if len(sizes) > len(AXES):
        raise UsageError(
            f"table {name} has thresholds of {', '.join(sizes)}: --refine takes tables of {' and '.join(AXES)}"
        )
    specs = operators()
    choices = {key: entries[key] for key in sorted(entries) if key.operator in specs}
    names = sorted({key.usual.text for key in choices})
    for text in keys:
        if text not in names:
            raise UsageError(f"table {name} has no function of {text!r}: expected one of {', '.join(names)}")
    of_dtypes = {key: tree for key, tree in choices.items() if key.dtype in dtypes}
    usual = {key: of_dtypes[key] for key in of_dtypes if not key.is_batch_invariant and (not keys or key.text in keys)}
    if not usual:
        there = ", ".join(sorted({key.dtype for key in choices}))
        raise UsageError(f"table {name} has no function in {', '.join(dtypes)}: it has {there}")
    return RefinedTable(name, usual, of_dtypes, keys, Box.around(loaded.measured.values()), until)
