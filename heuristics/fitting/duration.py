"""Approximate duration of a fit, for an announcement before it begins."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.options import FitOptions
from normtune.kernels.key import Key

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Seconds per measurement and leaf, on two cores: the 131304 measurements of the recorded H200 take 40 s with 64 leaves,
# 10 s with 20.
_SECONDS = 8e-6
# Factor if leaves are chosen by cross-validation: 173 s for the same measurements.
_CHOOSING = 4
# Shorter fits are not announced.
_BRIEF = 3.0


def duration(evidence: "Evidence", options: FitOptions, known: Mapping[Key, TableEntry]) -> int | None:
    """Seconds of a fit on two cores; None for less than `_BRIEF`. `known` has decisions of an earlier fit, by key."""
    from normtune.heuristics.fitting.pipeline import used
    from normtune.heuristics.solver.cross_validation import MAX_LEAVES

    data = used(evidence, options.operators)
    seconds = 0.0
    for key in data.function_keys():
        measurements, earlier = len(data.part(key)), known.get(key)
        leaves = (earlier and earlier.figures.asked) or options.leaves or MAX_LEAVES[1]
        seconds += _SECONDS * measurements * leaves * (1 if earlier or options.leaves else _CHOOSING)
    return None if seconds < _BRIEF else round(seconds)
