"""How long it takes to fit a table again, as is told before it begins.

In: measurements and options. Out: a line, or none where it is done before anybody has read one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.tablefile.header import Known
from normtune.kernels.problem import join_key

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# For a measurement and a leaf, on two cores: the 131304 of the recorded H200 take 40 s with 64 leaves, 10 s with 20.
_SECONDS = 8e-6
# So many times as long where leaves are chosen by cross-validation: 173 s for the same.
_CHOOSING = 4
_BRIEF = 3.0


def work(evidence: "Evidence", options: FitOptions, known: Mapping[tuple[str, str], Known], source: str) -> str | None:
    """What is about to be done, and about how long it takes; None for a few seconds.

    Args:
        evidence: that is fitted.
        options: of the fit.
        known: what an earlier fit decided, by operator key and dtype.
        source: what to call the evidence.
    """
    from normtune.heuristics.fitting.pipeline import used
    from normtune.heuristics.solver.cross_validation import MAX_LEAVES

    data = used(evidence, options.operators)
    seconds = 0.0
    for operator, variant, dtype in data.kinds():
        measurements = len(data.part(operator, variant, dtype))
        found = known.get((join_key(operator, variant), dtype))
        leaves = (found and found.leaves) or options.leaves or MAX_LEAVES[1]
        seconds += _SECONDS * measurements * leaves * (1 if found or options.leaves else _CHOOSING)
    if seconds < _BRIEF:
        return None
    return (
        f"fitting {len(data.frame)} measurements of {source} again to compare, about {round(seconds)} s; --quick "
        "leaves it out"
    )
