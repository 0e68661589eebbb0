"""Estimated duration of a refit, printed before it begins.

In: measurements and options. Out: a line, or None if the refit is done before anybody has read one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from normtune.heuristics.fitting.options import FitOptions
from normtune.kernels.problem import join_key
from normtune.kernels.tablefile.header import Known

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Per measurement and leaf, on two cores: the 131304 of the recorded H200 take 40 s with 64 leaves, 10 s with 20.
_SECONDS = 8e-6
# Factor if leaves are chosen by cross-validation: 173 s for the same.
_CHOOSING = 4
_BRIEF = 3.0


def work(evidence: "Evidence", options: FitOptions, known: Mapping[tuple[str, str], Known], source: str) -> str | None:
    """Announcement of a refit with its approximate duration; None for a few seconds.

    Args:
        evidence: to fit.
        options: of the fit.
        known: decisions of an earlier fit, by operator key and dtype.
        source: name of the evidence.
    """
    from normtune.heuristics.fitting.pipeline import used
    from normtune.heuristics.solver.cross_validation import MAX_LEAVES

    data = used(evidence, options.operators)
    seconds = 0.0
    for operator, variant, dtype in data.kinds():
        measurements = len(data.part(operator, variant, dtype))
        earlier = known.get((join_key(operator, variant), dtype))
        leaves = (earlier and earlier.leaves) or options.leaves or MAX_LEAVES[1]
        seconds += _SECONDS * measurements * leaves * (1 if earlier or options.leaves else _CHOOSING)
    if seconds < _BRIEF:
        return None
    return (
        f"fitting {len(data.frame)} measurements of {source} again to compare, about {round(seconds)} s; --quick "
        "leaves it out"
    )
