"""Regimes: the state of the cache, and the way of launching, in which times are measured.

In: a run's protocol, or the value of an option. Out: a name of `REGIMES`. `tuner.timing` measures in them; times of
different regimes are never compared. Also the measurements of one regime, of operators and of dtypes, with errors that
name the option.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from normtune.errors import UsageError

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# `cold`: the cache is evicted before; `warm`: the same buffers in every launch, so that the L2 holds as much as it can;
# `eager`: as cold, but launched from Python one after the other, without a graph.
COLD, WARM, EAGER = REGIMES = ("cold", "warm", "eager")


def regime_of(protocol: dict[str, Any]) -> str:
    """Regime of a run, from its protocol; `cold` where it has none."""
    return str(protocol.get("regime", COLD))


def check_regime(name: str) -> None:
    """Check the name of a regime.

    Raises:
        UsageError: the name is not in `REGIMES`.
    """
    if name not in REGIMES:
        raise UsageError(f"unknown regime {name!r}: expected one of {', '.join(REGIMES)}")


def in_regime(evidence: "Evidence", regime: str | None, source: str) -> "Evidence":
    """The measurements of one regime, None for all; `source` is that of the evidence, for the message.

    Raises:
        UsageError: there are only measurements of other regimes.
    """
    if regime is None:
        return evidence
    selected = evidence.regime(regime)
    if selected.frame.empty:
        check_others(evidence.regimes(), regime, source)
    return selected


def check_others(regimes: Iterable[str], regime: str, source: str) -> None:
    """Raise `UsageError` if the source has no measurements of a regime, but of these."""
    if others := ", ".join(sorted({*regimes})):
        raise UsageError(f"{source} has no times of regime {regime}, but of {others}: name one of these")


def narrowed(evidence: "Evidence", operators: Sequence[str], dtypes: Sequence[str]) -> "Evidence":
    """The measurements of these operators (`a`, or `a:b` for a variant) and dtypes; empty means all.

    Raises:
        UsageError: one name, or all of them together, select nothing.
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
        dtypes = sorted({*evidence.select(operators).frame["dtype"]})
        raise UsageError(f"there are no measurements of this operator in this dtype, but in {', '.join(dtypes)}")
    return selected
