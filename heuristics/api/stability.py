"""The stability of a table from Python.

In: a fit, its measurements and its baseline. Out: `TableStability`, with frames of its figures.
`stability.bootstrap_spread` computes it, `stability.report` has its text; nothing is printed.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.fitting.baseline import Incumbents
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.stability.bootstrap_spread import Stability, stability, tables_of
from normtune.heuristics.stability.refit import fitted
from normtune.kernels.problem import AXES
from normtune.results.evidence import Evidence

_FIGURES = (
    *("operator", "dtype", "leaves", "tables", "changed_mean", "changed_most", "plain_mean", "plain_most"),
    *("lost_mean", "lost_most"),
)
_THRESHOLDS = (
    *("operator", "dtype", "axis", "threshold", "least", "most", "held"),
    *(f"{end}_{axis}" for axis in AXES for end in ("least", "most")),
)


class TableStability(NamedTuple):
    """Expected change of a table if its shapes were measured again.

    Attributes:
        functions: for each function with thresholds.
    """

    functions: tuple[Stability, ...]

    def figures(self) -> pd.DataFrame:
        """The change of each function, over tables that are fitted to resampled blocks of rounds.

        Returns:
            Columns operator (with its variant), dtype, leaves, tables (their number); as fractions changed_mean
            (weighted share of the shapes whose config changes), plain_mean (the same with equal weights) and lost_mean
            (excess loss over this table); and changed_most, plain_most and lost_most, their 95 % quantiles.
        """
        rows = [
            (
                *(item.key.text, item.key.dtype, item.leaves, item.tables, *item.weighted, *item.plain),
                *(fraction(item.lost.mean), fraction(item.lost.most)),
            )
            for item in self.functions
        ]
        return pd.DataFrame(rows, columns=list(_FIGURES))

    def thresholds(self) -> pd.DataFrame:
        """The thresholds of each function, from the root of its tree down.

        Returns:
            Columns operator, dtype, axis (`rows`: the high side has rows >= threshold; `hidden`: the low side has
            hidden <= threshold), threshold, least and most (of the thresholds that the times cannot distinguish from
            it), held (share of the tables with one of these thresholds there), and the region that it divides:
            least_rows, most_rows, least_hidden and most_hidden.
        """
        rows = [
            (
                *(item.key.text, item.key.dtype, cut.axis, cut.threshold, cut.least, cut.most, share),
                *(end for _, *ends in cut.box for end in ends),
            )
            for item in self.functions
            for cut, share in item.held
        ]
        return pd.DataFrame(rows, columns=list(_THRESHOLDS))


def check_paired(evidence: Evidence) -> None:
    """Refuse unpaired times, which have no rounds to resample.

    Raises:
        UsageError: some times are unpaired.
    """
    if names := ", ".join(evidence.current().unpaired()):
        raise UsageError(f"--stability resamples rounds, but the times of {names} are unpaired: leave it out")


def stability_of(
    evidence: Evidence,
    fit: Fit,
    options: FitOptions,
    incumbents: Incumbents | None,
    begin: Callable[[int, int, float], None],
) -> TableStability:
    """The stability of a table; `begin` as for `Table.stability`.

    Raises:
        UsageError: times are unpaired.
    """
    check_paired(evidence)
    functions = fitted(evidence, fit, options, incumbents)
    tables = tables_of(functions)
    return TableStability(tuple(stability(functions, tables, lambda seconds: begin(len(functions), tables, seconds))))
