"""Selection of measurements by the options `--regime`, `--operator` and `--dtype`, with errors that name the option."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normtune.errors import UsageError

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


def in_regime(evidence: "Evidence", regime: str, source: str) -> "Evidence":
    """Measurements of one regime.

    Args:
        evidence: measurements in any regimes.
        regime: a name of `REGIMES`.
        source: where the evidence is from, for the message.

    Raises:
        UsageError: there are only measurements in other regimes.
    """
    selected = evidence.regime(regime)
    if selected.frame.empty and not evidence.frame.empty:
        others = ", ".join(evidence.regimes())
        raise UsageError(f"{source} has no times of regime {regime}, but of {others}: name one of these with --regime")
    return selected


def narrowed(evidence: "Evidence", operators: Sequence[str], dtypes: Sequence[str]) -> "Evidence":
    """Select operators (`a`, or `a:b` for a variant) and dtypes; empty means all.

    Raises:
        UsageError: a name, or all names together, select nothing.
    """
    for name in operators:
        if evidence.select([name]).frame.empty:
            measured = sorted(set(evidence.frame["operator"])) or ["(nothing)"]
            raise UsageError(f"--operator is {name!r}: measured are {', '.join(measured)}")
    for name in dtypes:
        if evidence.select((), [name]).frame.empty:
            measured = sorted(set(evidence.frame["dtype"])) or ["(nothing)"]
            raise UsageError(f"--dtype is {name!r}: measured are {', '.join(measured)}")
    selected = evidence.select(operators, dtypes)
    if selected.frame.empty and not evidence.frame.empty:
        raise UsageError("there are no measurements of this operator in this dtype: `normtune data list` says which")
    return selected
