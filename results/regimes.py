"""Regimes: the state of the cache, and the way of launching, in which times are measured.

In: a run's protocol, or the value of an option. Out: a name of `REGIMES`. `tuner.timing` measures in them; times of
different regimes are never compared.
"""

from typing import Any

from normtune.errors import UsageError

# `cold`: the cache is evicted before; `warm`: the same buffers in every launch, so that the L2 holds as much as it can;
# `eager`: as cold, but launched from Python one after the other, without a graph.
COLD, WARM, EAGER = REGIMES = ("cold", "warm", "eager")


def regime_of(protocol: dict[str, Any]) -> str:
    """Regime of a run, from its protocol; an unknown name is returned unchanged.

    The oldest runs have `cold graph`, `replay of NAME` or nothing, and are cold.
    """
    name = str(protocol.get("regime", COLD))
    return COLD if name == "cold graph" or name.startswith("replay of ") else name


def check_regime(name: str) -> None:
    """Check the value of an option `--regime`.

    Raises:
        UsageError: the name is not in `REGIMES`.
    """
    if name not in REGIMES:
        raise UsageError(f"unknown regime {name!r}: expected one of {', '.join(REGIMES)}")
