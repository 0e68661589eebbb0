"""Approximate duration of a fit, for an announcement before it begins.

It depends on configs x shapes (the timing matrix), on boxes of bins x the square of leaves (the optimum), and on how
many folds have an optimum each. Measured on one core with the recordings of the H200 and the H100, whose search timed
2,177 configs at 1,003 shapes.
"""

from collections.abc import Collection, Mapping
from math import prod
from typing import TYPE_CHECKING

from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.options import FitOptions
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape
from normtune.results.parallel.processes import cores

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Seconds to find the launch of a config at a shape: 21 s for the matrix of 2,177 configs and 1,003 shapes.
_LAUNCH = 1e-5
# For a config in a box of bins, alone, and at a shape: 1.2 s of an optimum on 25 x 45 bins.
_ALONE, _BINNED = 1.2e-9, 1.2e-7
# For the sum of two trees at a cut of a box, and to begin such sums: 7.2 s with 64 leaves, 0.9 s with 24.
_SUM, _SUMS = 4.5e-10, 6e-6
# For the order of a row's sum of a config at a hidden size, and for an interval of rows of a config in a strip: 15 and
# 1.3 s.
_ORDER, _INTERVAL = 2e-4, 2.1e-8
# Part of the functions that could share another one and do not.
_OWN = 0.5
# Shorter fits are not announced.
_BRIEF = 3.0


def duration(evidence: "Evidence", options: FitOptions, known: Mapping[Key, TableEntry]) -> int | None:
    """Seconds of a fit on this machine's cores; None for less than `_BRIEF`.

    `known` has decisions of an earlier fit, by key.
    """
    from normtune.heuristics.fitting.pipeline import used

    data = used(evidence, options.operators)
    of_operators: dict[str, list[tuple[float, float]]] = {}
    for key in data.function_keys():
        part, works = data.part(key), of_operators.setdefault(key.operator, [])
        shapes = {*data.shapes(part, key)}
        works.append(_of_key(part["config"].nunique(), shapes, options, known.get(key), _OWN if works else 1.0))
    totals = [tuple(map(sum, zip(*works, strict=True))) for works in of_operators.values()]
    # Operators run beside one another, and their folds on the cores that are free.
    longest = max((whole + folds / cores() for whole, folds in totals), default=0.0)
    seconds = max(longest, sum(map(sum, totals)) / cores())
    return None if seconds < _BRIEF else round(seconds)


def _of_key(
    configs: int, shapes: Collection[Shape], options: FitOptions, earlier: TableEntry | None, own: float
) -> tuple[float, float]:
    """Seconds on one core for one key, of what cannot be divided among cores and of the folds.

    `own` is the probability of a function of its own.
    """
    from normtune.heuristics.solver.cross_validation import FEW_FOLDS, FOLDS, attempts, left_out
    from normtune.heuristics.solver.grid import most_bins

    sizes = [{*of_axis} for of_axis in zip(*shapes, strict=True)]
    counts = [len(of_axis) for of_axis in sizes]
    boxes = min(prod(counts), most_bins(counts)) ** 2 / 2 ** len(counts)

    def optimum(leaves: int) -> float:
        sums = leaves**2 / 2 * sum(counts) * (_SUMS + _SUM * boxes / 3)
        return configs * (len(shapes) * _BINNED + boxes * _ALONE) + sums

    asked = (earlier and earlier.figures.asked) or options.leaves
    tried = (asked,) if asked else attempts(len(shapes))
    whole, folds = configs * len(shapes) * _LAUNCH + optimum(tried[-1]), 0.0
    if not earlier:
        count = sum(len(left_out(of_axis, FEW_FOLDS if asked else FOLDS)) for of_axis in sizes)
        folds = own * count * sum(map(optimum, tried))
    if options.batch_invariant and len(counts) == 2:
        rows, hidden = counts
        whole += own * configs * hidden * (_ORDER + rows**2 * _INTERVAL)
        folds += own * FEW_FOLDS * configs * hidden * rows**2 * _INTERVAL
    return whole, folds
