"""A part of the measurements: of one regime, or of some operators and dtypes.

In: `Evidence`, and the options `--regime`, `--operator` and `--dtype`. Out: the part, or an error that names the
option.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normtune.errors import UsageError

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


def in_regime(evidence: "Evidence", regime: str, source: str) -> "Evidence":
    """Measurements of one regime.

    Args:
        evidence: of any regimes.
        regime: a name of `REGIMES`.
        source: of the evidence, for the message.

    Raises:
        UsageError: there are measurements, but of other regimes.
    """
    found = evidence.regime(regime)
    if found.frame.empty and not evidence.frame.empty:
        others = ", ".join(evidence.regimes())
        raise UsageError(f"{source} has no times of regime {regime}, but of {others}: name one of these with --regime")
    return found


def narrowed(evidence: "Evidence", operators: Sequence[str], dtypes: Sequence[str]) -> "Evidence":
    """Select operators (`a`, or `a:b` for a variant) and dtypes; empty means all.

    Raises:
        UsageError: one of the names, or all together, select nothing.
    """
    for name in operators:
        if evidence.select([name]).frame.empty:
            known = sorted(set(evidence.frame["operator"])) or ["(nothing)"]
            raise UsageError(f"--operator is {name!r}: measured are {', '.join(known)}")
    for name in dtypes:
        if evidence.select((), [name]).frame.empty:
            known = sorted(set(evidence.frame["dtype"])) or ["(nothing)"]
            raise UsageError(f"--dtype is {name!r}: measured are {', '.join(known)}")
    selected = evidence.select(operators, dtypes)
    if selected.frame.empty and not evidence.frame.empty:
        raise UsageError("there are no measurements of this operator in this dtype: `normtune data list` says which")
    return selected
