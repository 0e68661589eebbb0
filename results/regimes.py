"""How times are taken: the names of the regimes, for options and stored runs.

In: what a run's protocol says, or the value of an option. Out: a name of `REGIMES`. How each is measured is in
`tuner.timing`; that their times never meet is seen to by `Evidence.regime` and the store. Loads nothing, as command
lines name regimes.
"""

from typing import Any

from normtune.errors import UsageError

# With nothing in the cache; with the same buffers again and again, so that the L2 holds what fits; launched from Python
# one after the other without a graph, with nothing in the cache.
COLD, WARM, EAGER = REGIMES = ("cold", "warm", "eager")


def regime_of(protocol: dict[str, Any]) -> str:
    """The regime of a run, by its protocol; a name of another normtune's stays as it is.

    Runs of the time before there were others say `cold graph` or `replay of NAME`, or nothing, and are cold.
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
