"""How long it takes to fit a table again, as is told before it begins.

In: measurements and options. Out: a line, or none where it is done before anybody has read one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from normtune.heuristics.header import Known
from normtune.heuristics.options import MOST_LEAVES, FitOptions

if TYPE_CHECKING:
    from normtune.results.frame import Evidence

# Seconds on a core of 2024 for a measurement and a leaf: the recorded H200, with 64 leaves, takes a minute.
_SECONDS = 4e-6
# As often as a fit whose leaves are given is one that has to choose them, by cross-validation.
_CHOOSING = 6
_BRIEF = 3.0


def work(evidence: "Evidence", options: FitOptions, known: Mapping[tuple[str, str], Known], source: str) -> str | None:
    """What is about to be done, and about how long it takes; None for a few seconds.

    Args:
        evidence: that is fitted.
        options: of the fit.
        known: what an earlier fit decided, by operator key and dtype.
        source: what to call the evidence.
    """
    from normtune.heuristics.fitting import used

    data = used(evidence, options.operators)
    seconds = 0.0
    for operator, variant, dtype in data.kinds():
        measurements = len(data.part(operator, variant, dtype))
        found = known.get((f"{operator}:{variant}" if variant else operator, dtype))
        leaves = found.leaves if found else options.leaves or MOST_LEAVES
        seconds += _SECONDS * measurements * max(leaves, 1) * (1 if found else _CHOOSING)
    if seconds < _BRIEF:
        return None
    return (
        f"fitting {len(data.frame)} measurements of {source} again to compare, about {round(seconds)} s; --quick "
        "leaves it out"
    )
