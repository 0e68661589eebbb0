"""Disturbances of a GPU that a sweep tells of: a closed list, each with the next step.

In: what the watch of a GPU and the rounds saw. Out: entries of a run's protocol, by name what was seen; lines for
people. docs/measuring.md lists them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from normtune.tuner.timing.rounds import RoundCounts

# Entry of a run's protocol.
WARNINGS = "warnings"
# From so many rounds on their counts are told, if these shares are exceeded: of void rounds (7 % on an undisturbed
# H200), of those with a slow sentinel (0.5 %), and of disturbed ones that were kept (0.4 %).
_LEAST_ROUNDS, _VOID, _SLOWED, _DISTURBED = 50, 0.2, 0.05, 0.01


class Disturbance(Enum):
    """A disturbance: its name in protocols, and what to do next."""

    OTHER_PROCESSES = "other_processes", "end them or wait for them, and sweep again: they slow down some configs more"
    THROTTLED = "throttled", "look at its cooling and power supply, and sweep again: its rounds were taken again"
    POWER_LIMITED = "power_limited", "kernels will meet the same limit; else raise it, and sweep again"
    POWER_LOWERED = "power_lowered", "the table is for this limit; else restore it (`nvidia-smi -pl`, `amd-smi set -o`)"
    LOW_CLOCKS = "low_clocks", "the table is for these clocks; if nobody locked them (`nvidia-smi -rgc`), look for heat"
    ECC_ERRORS = "ecc_errors", "a check of the table with --device tells whether it holds; have the GPU tested"
    FAULTS = "faults", "`dmesg` has them; sweep again, and have the GPU tested if they return"
    VOID_ROUNDS = (
        "void_rounds",
        "something slows the GPU down, perhaps another tenant; the times are right, but cost more",
    )
    DISTURBED_ROUNDS = "disturbed_rounds", "sweep again on a quiet GPU, after `data drop` set this run aside"
    UNWATCHED = "unwatched", "`normtune doctor` says what is missing; disturbances show only in void rounds"

    @property
    def key(self) -> str:
        """Its name in protocols and JSON."""
        return str(self.value[0])

    @property
    def advice(self) -> str:
        """What to do next."""
        return str(self.value[1])


class Warned(NamedTuple):
    """A disturbance that a run met; `found` says what was seen."""

    disturbance: Disturbance
    found: str

    def line(self) -> str:
        """One line: what was seen, and the next step."""
        return f"{self.found}: {self.disturbance.advice}"


def of_rounds(counts: RoundCounts) -> dict[str, str]:
    """Entries for the rounds of a run."""
    taken, void, slowed, kept = counts
    if taken < _LEAST_ROUNDS:
        return {}
    entries = {}
    if void > _VOID * taken or slowed > _SLOWED * taken:
        entries[Disturbance.VOID_ROUNDS.key] = f"{void} of {taken} rounds were disturbed and taken again"
    if kept > _DISTURBED * taken:
        entries[Disturbance.DISTURBED_ROUNDS.key] = (
            f"{kept} of {taken} rounds are disturbed, however often they were taken"
        )
    return entries


def warned(protocol: Mapping[str, Any]) -> list[Warned]:
    """The disturbances in a run's protocol, in the order of the list, without names that this version does not know."""
    warnings = protocol.get(WARNINGS)
    entries = warnings if isinstance(warnings, Mapping) else {}
    return [Warned(one, str(entries[one.key])) for one in Disturbance if one.key in entries]
