"""Measurements as a DataFrame, from Python.

In: measurements, an order. Out: their rows, of all devices. Nothing is printed.
"""

from dataclasses import KW_ONLY, dataclass

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.regret.build import matrices_of
from normtune.heuristics.showing.listing import check_order, columns, listing, ordered
from normtune.results.evidence import Evidence
from normtune.results.options import keywords_of, option
from normtune.results.source import Measured, Selection, data_option


@dataclass(frozen=True)
class ShowRequest(Selection):
    """Arguments of `show`."""

    data: Measured = data_option()
    _: KW_ONLY
    sort: str | None = option("Column to sort by, descending with `-` before it. Default: by problem and time.")
    limit: int | None = option("At most so many rows. Default: all.")


@keywords_of(ShowRequest)
def show(request: ShowRequest) -> pd.DataFrame:
    """List measurements, with their times relative to the best.

    Returns:
        A row for each measurement. Columns rows, hidden, dtype, operator, variant, a column for each knob, status,
        reason, median_us (microseconds), best_ratio (time over the time of the shape's best config), copy_ratio (time
        over the time of a copy of as many bytes), gbps (1e9 bytes a second) and device.

    Raises:
        UsageError: a column, operator or dtype is unknown, or a limit is not positive.
        NormtuneError: the store cannot be read.
    """
    limit, sort = request.limit, request.sort
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise UsageError(f"limit is {limit!r}: expected a positive integer")
    return listed_of(request.load(request.data), sort, limit)


def listed_of(evidence: Evidence, sort: str | None, limit: int | None) -> pd.DataFrame:
    """The same as `show`, of loaded measurements of one cache mode."""
    check_order(sort, evidence)
    names = list(columns(evidence))
    frames = []
    for device in evidence.devices():
        current = evidence.of(device).current()
        frame = listing(current, matrices_of(current, device)[0])
        frames.append(frame.reindex(columns=names, fill_value=""))
    if not frames:
        return pd.DataFrame(columns=names)
    rows = ordered(pd.concat(frames, ignore_index=True), sort)
    return (rows if limit is None else rows.head(limit)).reset_index(drop=True)
