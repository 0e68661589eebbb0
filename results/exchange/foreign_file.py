"""Files of measurements that another program wrote: CSV and Parquet.

In: a file, the GPU, the names of its columns. Out: `Evidence` of unpaired runs, or an error of one line that names the
file and the line. `dataframe` converts the rows.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from normtune.errors import UsageError, reason_of
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange import parquet_file
from normtune.results.exchange.csv_file import read_cells, unquoted
from normtune.results.exchange.dataframe import evidence_in
from normtune.results.exchange.parquet_csv import is_export
from normtune.results.exchange.samples import Rows
from normtune.results.options import number_of
from normtune.results.paths import unreadable

_EXPECTED = "expected a CSV file in UTF-8, with the names of its columns in the first line and one line a measurement"


def read_foreign(path: Path, elsewhere: Elsewhere) -> Evidence:
    """The measurements in a file, `.csv` or `.parquet`, by `dataframe.evidence_of`.

    Raises:
        UsageError: a fact of the GPU is missing, or the file cannot be read, lacks a column or has an invalid value.
    """
    device = elsewhere.device()
    rows = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    return evidence_in(rows, device, elsewhere.columns or {}, elsewhere.where or {})


def _csv(path: Path) -> Rows:
    names, numbers, lines = read_cells(path, _EXPECTED)
    if not names:
        raise UsageError(f"{path} is empty: {_EXPECTED}")
    count = len(names)
    for number, cells in zip(numbers, lines, strict=True):
        if any(cells[count:]):
            raise UsageError(f"line {number} of {path} has {len(cells)} cells, and the first line {count} names")
    columns = [[cells[index] if index < len(cells) else "" for cells in lines] for index in range(count)]
    frame = pd.DataFrame({index: [*map(_value, texts)] for index, texts in enumerate(columns)}, dtype=object)
    return Rows(frame.set_axis(names, axis=1), str(path), numbers)


@lru_cache(1 << 16)
def _value(text: str) -> Any:
    """A cell as a number, if it is one, and None if it is empty."""
    value = number_of(text)
    return (unquoted(text) or None) if value is None else value


def _parquet(path: Path) -> Rows:
    if reason := unreadable(path):
        raise UsageError(f"{path} {reason}: expected a Parquet file of measurements")
    if is_export(path):
        raise UsageError(
            f"{path} was written by normtune and says what its GPU and columns are: leave --name, --target, --sms and "
            "--columns out"
        )
    try:
        table = parquet_file.columns_of(parquet_file.opened(path), path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{path} is no Parquet file, or a damaged one ({reason_of(error)}): write it again") from None
    columns = [_cells(column, name, path) for name, column in zip(table.column_names, table.columns, strict=True)]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    return Rows(frame.set_axis(table.column_names, axis=1), str(path))


def _cells(column: pa.ChunkedArray, name: str, path: Path) -> "pd.Series[Any]":
    """A column as pandas has it; equal texts share one object."""
    try:
        cells = column.to_pandas()
    except (pa.ArrowException, ValueError, TypeError):
        raise UsageError(
            f"column {name[:40]!r} of {path} is {str(column.type)[:80]}, which is not read: expected numbers, texts, "
            "timestamps or lists of numbers"
        ) from None
    return cells.astype(object) if isinstance(cells.dtype, pd.CategoricalDtype) else cells
