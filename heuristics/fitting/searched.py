"""The share of a function's configs that a search timed.

The protocol of a run says how many configs its search chose among; it is validated, because a store may be a
stranger's. The result is a line for the header of the table, or none if every config was timed.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from normtune.kernels.config import COPY
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES, function_key
from normtune.results.records import SEARCHED, Run

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

_COPY = COPY.to_json()
_MOST = 10**9


class _SearchedFunction(NamedTuple):
    """A run's search for one function, among so many pairs of a problem and a config."""

    strategy: str
    pairs: int


def searched(data: "Evidence", function: Key) -> str | None:
    """The line of a function: `rms_norm_forward bfloat16: plane, 31 % of 2123 configs`."""
    keys = [key for key in data.measured_keys() if function in (key, function_key(key))]
    entries = [entry for run in data.runs if (entry := _of_run(run, keys))]
    if not entries:
        return None
    # The newest run may be of a few shapes only.
    pairs = max(entry.pairs for entry in entries)
    part = data.part(function)
    timed = part.loc[part["config"] != _COPY, ["operator", *AXES, "config"]].drop_duplicates()
    share = round(100 * min(1.0, len(timed) / pairs))
    names = " and ".join(sorted({entry.strategy for entry in entries}))
    return f"{function}: {names}, {share} % of {pairs} configs"


def _of_run(run: Run, keys: list[Key]) -> _SearchedFunction | None:
    """A run's search for all keys of a function, one for each third size; None without a valid entry."""
    strategy, entries = run.protocol.get("strategy"), run.protocol.get(SEARCHED)
    if not isinstance(strategy, str) or not re.fullmatch(r"[\w:]{1,60}", strategy) or not isinstance(entries, dict):
        return None
    pairs = 0
    for key in keys:
        match entries.get(str(key)):
            case {"pairs": int(own)} if 0 < own < _MOST:
                pairs += own
    return _SearchedFunction(strategy, pairs) if pairs else None
