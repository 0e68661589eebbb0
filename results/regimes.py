"""Names of the regimes of timing, for options and stored runs.

In: a run's protocol, or the value of an option. Out: a name of `REGIMES`. `tuner.timing` measures them;
`Evidence.regime` and the store keep their times apart. Imports nothing, because command lines name regimes.
"""

from typing import Any

from normtune.errors import UsageError

# With nothing in the cache; with the same buffers again and again, so that the L2 holds what fits; launched from Python
# one after the other without a graph, with nothing in the cache.
COLD, WARM, EAGER = REGIMES = ("cold", "warm", "eager")


def regime_of(protocol: dict[str, Any]) -> str:
    """Regime of a run, by its protocol; an unknown name is returned as it is.

    Runs older than regimes have `cold graph`, `replay of NAME` or nothing, and are cold.
    """
    told = str(protocol.get("regime", COLD))
    return COLD if told == "cold graph" or told.startswith("replay of ") else told


def check_regime(name: str) -> None:
    """Check the value of an option `--regime`.

    Raises:
        UsageError: it is none of `REGIMES`.
    """
    if name not in REGIMES:
        raise UsageError(f"unknown regime {name!r}: expected one of {', '.join(REGIMES)}")
