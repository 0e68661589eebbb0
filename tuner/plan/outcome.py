"""Outcome of measuring a config.

In: nothing. Out: `Outcome`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from normtune.results.records import TimedCode


class Outcome(NamedTuple):
    """Outcome of one config on one problem: see `results.records.Measurement`; `code` is the launched code."""

    status: str
    reason: str = ""
    rounds: Sequence[int] = ()
    nanoseconds: Sequence[int] = ()
    code: TimedCode | None = None
