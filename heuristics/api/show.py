"""Measurements as a DataFrame, from Python.

In: measurements, an order. Out: the rows that `normtune show --sort` lists, of all devices. Maps are left to the
command; nothing is printed.
"""

from collections.abc import Iterable

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.regret.build import matrices_of
from normtune.heuristics.showing.listing import check_order, columns, listing, ordered
from normtune.results.regimes import COLD
from normtune.results.source import Measured, selected


def show(
    data: Measured = None,
    *,
    recording: str | None = None,
    operators: str | Iterable[str] = (),
    dtypes: str | Iterable[str] = (),
    sort: str | None = None,
    limit: int | None = None,
    regime: str = COLD,
) -> pd.DataFrame:
    """List measurements with their times beside the best, as `normtune show --sort` does.

    Args:
        data: a store, open or by its file or URL, or evidence; the default store without it.
        recording: name of a recording that ships with normtune, in place of data.
        operators: only these, plain names or names with a variant; empty means all.
        dtypes: only these; empty means all.
        sort: column to sort by, descending with `-` before it; by problem and time without it.
        limit: at most so many rows; None for all.
        regime: only times measured `cold`, `warm` or `eager`.

    Returns:
        A row for each measurement. Columns rows, hidden, dtype, operator, variant, a column for each knob, status,
        reason, median_us (microseconds), best_ratio (time over that of the best config of the shape), copy_ratio (time
        over that of a copy of as many bytes), gbps (1e9 bytes a second) and device.

    Raises:
        UsageError: a column, operator or dtype is unknown, or a limit is not positive.
        NormtuneError: the store cannot be read.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise UsageError(f"limit is {limit!r}: expected a positive integer")
    evidence = selected(data, recording, regime, operators, dtypes)
    check_order(sort, evidence)
    names = list(columns(evidence))
    frames = []
    for device in evidence.devices():
        current = evidence.of(device).current()
        frame = listing(current, matrices_of(current, device)[0])
        frames.append(frame.reindex(columns=names, fill_value=""))
    if not frames:
        return pd.DataFrame(columns=names)
    found = ordered(pd.concat(frames, ignore_index=True), sort)
    return (found if limit is None else found.head(limit)).reset_index(drop=True)
