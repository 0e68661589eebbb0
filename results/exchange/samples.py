"""The times in rows of measurements of another program.

In: rows, and the column of their times. Out: rounds and samples of each measurement, or an error that names the row.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.errors import UsageError, shortened
from normtune.results.columns import split
from normtune.results.exchange.naming import SAMPLES, UNITS, whole
from normtune.results.options import number_of
from normtune.results.records import ROUNDS_PER_BLOCK

# Times and rounds are stored as int32.
_MOST_INT32 = 2**31 - 1


class Rows(NamedTuple):
    """Measurements in rows.

    Attributes:
        frame: one row per measurement or sample; its index has the number of the row in `lines`.
        source: of the frame, for messages.
        lines: the number of each row in its file; empty for the rows of a DataFrame, which count from 0.
    """

    frame: pd.DataFrame
    source: str = "the DataFrame"
    lines: Sequence[int] = ()

    def row(self, place: int) -> str:
        """A row, for messages."""
        number = int(self.frame.index[place])
        return f"line {self.lines[number]} of {self.source}" if len(self.lines) else f"row {number}"


def samples_of(
    rows: Rows, column: str, measurements: NDArray[np.int64], is_ok: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Rounds and samples of each measurement; `measurements` has that of each row, `column` the times."""
    owners, times = _numbers(rows, column, is_ok, _nanoseconds(UNITS.get(column, 1)))
    round_column = "rounds" if column == SAMPLES else "round"
    of_samples, count = measurements[owners], int(measurements.max()) + 1
    if round_column in rows.frame:
        round_owners, rounds = _numbers(rows, round_column, is_ok, _round)
        sizes = [np.bincount(places, minlength=len(is_ok)) for places in (owners, round_owners)]
        if len(odd := np.flatnonzero(sizes[0] != sizes[1])):
            raise UsageError(
                f"{round_column} of {rows.row(odd[0])}: expected numbers of rounds ({sizes[1][odd[0]]} rounds of "
                f"{sizes[0][odd[0]]} samples)"
            )
        order = np.lexsort((times, rounds, of_samples))
        times, rounds, lengths = times[order], rounds[order], np.bincount(of_samples, minlength=count)
    else:
        times = times[np.argsort(of_samples, kind="stable")]
        lengths = np.bincount(of_samples, minlength=count)
        # A single time is a median: it counts in both halves of the blocks.
        copies = np.where(lengths == 1, 2, 1)
        times, lengths = np.repeat(times, np.repeat(copies, lengths)), lengths * copies
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        rounds = ((np.arange(len(times)) - starts) * ROUNDS_PER_BLOCK).astype(np.int32)
    return zip(split(lengths, rounds), split(lengths, times), strict=True)


def _numbers(
    rows: Rows, column: str, is_ok: NDArray[np.bool_], convert: Callable[[Any], int]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The numbers in a column of the rows without a failure, and the row of each; a cell may have several."""
    several = column in (SAMPLES, "rounds")
    places: list[int] = []
    numbers: list[int] = []
    cells = rows.frame[column].tolist()
    for place in np.flatnonzero(is_ok).tolist():
        cell = cells[place]
        try:
            if several:
                if isinstance(cell, str) or not len(cell):
                    raise ValueError("expected a list")
                numbers += map(convert, cell)
                places += [place] * len(cell)
            else:
                numbers.append(convert(cell))
                places.append(place)
        except (TypeError, ValueError, OverflowError) as error:
            is_time = column == SAMPLES or column in UNITS
            expected = "numbers of rounds" if not is_time else "nanoseconds" if several else column
            failure = "; leave failures out, or tell them in a column status" * (
                is_time and isinstance(cell, str | None)
            )
            raise UsageError(
                f"{column} of {rows.row(place)} is {shortened(repr(cell))}: expected {expected} ({error}){failure}"
            ) from None
    return np.array(places, np.int64), np.array(numbers, np.int32)


def _nanoseconds(unit: int) -> Callable[[Any], int]:
    """Converts times of this unit, nanoseconds, to whole nanoseconds."""

    def convert(time: Any) -> int:
        nanoseconds = round(_time(time) * unit)
        if not 1 <= nanoseconds <= _MOST_INT32:
            most = _MOST_INT32 / 1e9
            raise ValueError(f"times of 1 ns to {most:.3f} s; as only ratios count, divide all times alike")
        return nanoseconds

    return convert


def _time(value: Any) -> float:
    read = number_of(value) if isinstance(value, str) else float(value)
    if read is None:
        raise ValueError("no number")
    return read


def _round(number: Any) -> int:
    result = whole(number)
    if not 0 <= result <= _MOST_INT32:
        raise ValueError(f"expected rounds of 0 to {_MOST_INT32}")
    return result
