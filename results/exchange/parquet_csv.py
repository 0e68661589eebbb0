"""Measurements as files: Parquet to write and read, CSV to write.

In: `Evidence` and a path. Out: a self-contained file (runs are in its metadata), replaced atomically; or the checked
evidence of such a file. `recording` chooses names and folders of recordings.
"""

import csv
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from normtune.errors import NormtuneError, UsageError, reason_of
from normtune.results.atomic import replaced
from normtune.results.columns import COLUMNS, TEXTS
from normtune.results.evidence import Evidence
from normtune.results.exchange import parquet_file
from normtune.results.exchange.csv_file import quoted
from normtune.results.paths import check_place, unreadable
from normtune.results.records import TimedCode
from normtune.results.runs import from_plain, to_plain
from normtune.results.validate import check_runs

# To be raised with every change that older readers do not understand.
FORMAT = 1
# Key of the metadata of files.
METADATA = b"normtune"
_MOST_CSV_HEADER = 10_000
_ARRAYS = ("rounds", "samples")
_KINDS = dict.fromkeys(TEXTS, pa.string()) | dict.fromkeys(("rows", "hidden"), pa.int64())
_KINDS |= dict.fromkeys(_ARRAYS, pa.list_(pa.int32()))
# Digests of the launched code, null where not known; a file may lack these columns.
_CODE = ("launch", "assembly")
# Columns before and after the knobs of the configs.
_CSV_FIRST = ("device", "sms", "run", "started", "regime", "operator", "variant", "dtype", "rows", "hidden")
_CSV_LAST = ("fingerprint", "status", "reason", "round", "nanoseconds")


def write_parquet(evidence: Evidence, path: Path) -> None:
    """Write all of some evidence to a file, which is replaced if it exists.

    Raises:
        UsageError: its folder does not exist.
        NormtuneError: it cannot be written.
    """
    with replaced(path) as temporary:
        write_table(evidence, temporary)


def writer_of(path: Path) -> Callable[[Evidence, Path], None]:
    """The function that writes a file of this ending.

    Raises:
        UsageError: the ending is neither `.parquet` nor `.csv`.
    """
    write = {".parquet": write_parquet, ".csv": write_csv}.get(path.suffix.lower())
    if write is None:
        raise UsageError(f"cannot export to {str(path)!r}: expected a file that ends in .parquet or .csv")
    return write


def write_table(
    evidence: Evidence,
    path: Path | BinaryIO,
    columns: Mapping[str, pa.Array] = MappingProxyType({}),
    facts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write evidence to a path or an open file, without the checks and the replacement of `write_parquet`.

    Args:
        evidence: the measurements.
        path: of the file.
        columns: further columns, which `read_parquet` does not read.
        facts: further entries of the metadata.
    """
    frame = evidence.frame
    arrays = {name: pa.array(frame[name].tolist(), _KINDS[name]) for name in COLUMNS if name in _KINDS}
    codes = frame["code"].tolist()
    if any(codes):
        digests = zip(*(code or (None,) * len(_CODE) for code in codes), strict=True)
        arrays |= {name: pa.array(column, pa.binary()) for name, column in zip(_CODE, digests, strict=True)}
    table = pa.table({**arrays, **columns})
    runs = [to_plain(run) for run in evidence.runs]
    text = json.dumps({**facts, "format": FORMAT, "runs": runs}, sort_keys=True, separators=(",", ":"))
    table = table.replace_schema_metadata({METADATA: text.encode()})
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        # Neighbouring samples have similar high bytes: 1.1 to 1.8 bytes a sample, against 1.8 to 2.2 as deltas.
        use_dictionary=[*TEXTS, "rows", "hidden", "rounds.list.element", *_CODE],
        column_encoding={"samples.list.element": "BYTE_STREAM_SPLIT"},
        write_statistics=False,
        write_page_checksum=True,  # otherwise a flipped bit would give other samples
    )


def read_parquet(path: Path) -> Evidence:
    """The evidence that `write_parquet` wrote.

    Raises:
        UsageError: the file does not exist.
        NormtuneError: it is damaged, not written by normtune, or of a newer version.
    """
    if reason := unreadable(path):
        raise UsageError(f"{path} {reason}: expected a Parquet file that `normtune data export` wrote")
    try:
        file = parquet_file.opened(path)
    except PermissionError as error:
        raise NormtuneError(f"{path} cannot be read ({error.strerror}): change its permissions, or copy it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from None
    text = (file.schema_arrow.metadata or {}).get(METADATA)
    if text is None:
        raise NormtuneError(
            f"{path} is a Parquet file that normtune did not write: expected an export or a recording; "
            "--name, --target and --columns read that of another program"
        )
    try:
        head = json.loads(text)
        version = head["format"]
        if version != FORMAT:
            raise NormtuneError(
                f"{path} has format {str(version)[:20]!r}, this normtune reads {FORMAT}: update normtune"
            )
        table = _read_columns(file, path)
        columns = {name: _column(table, name) for name in _KINDS}
        columns["code"] = _codes(table)
        runs = [from_plain(run) for run in head["runs"]]
        check_runs(runs)
        return Evidence.from_columns(columns, runs)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise NormtuneError(
            f"{path} has content that normtune does not write ({reason_of(error)}): export it again"
        ) from None


def _damaged(path: Path, error: Exception) -> NormtuneError:
    return NormtuneError(f"{path} is no Parquet file or a damaged one ({reason_of(error)}): export it again")


def _read_columns(file: pq.ParquetFile, path: Path) -> pa.Table:
    """The columns that normtune writes; ValueError if one is missing, there twice, or of another type."""
    schema = file.schema_arrow
    expected = _KINDS | {name: pa.binary() for name in _CODE if name in schema.names}
    for name, kind in expected.items():
        if schema.names.count(name) != 1:
            raise ValueError(f"there is no column {name}" if name not in schema.names else f"{name} is there twice")
        actual = schema.field(name).type
        actual = actual.value_type if pa.types.is_dictionary(actual) else actual
        is_list = pa.types.is_list(actual) and pa.types.is_list(kind) and actual.value_type == kind.value_type
        if actual != kind and not is_list:
            raise ValueError(f"column {name} is {actual}, expected {kind}".replace("item: ", ""))
    try:
        return parquet_file.columns_of(file, path, [*expected])
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def is_export(path: Path) -> bool:
    """Whether this module wrote a file, by its metadata (Parquet) or its first line (CSV)."""
    try:
        if path.suffix.lower() == ".csv":
            with path.open("rb") as file:
                line = file.readline(_MOST_CSV_HEADER).decode("utf-8", "replace").rstrip("\n")
                return line.startswith(",".join(_CSV_FIRST) + ",") and line.endswith("," + ",".join(_CSV_LAST))
        return METADATA in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def check_export(path: Path) -> None:
    """Raise `UsageError` if a file cannot be written, or exists and normtune did not write it."""
    check_place(path)
    if os.path.lexists(path) and not is_export(path):
        raise UsageError(f"cannot write {path}: it exists and normtune did not write it; name another, or move it away")


def write_csv(evidence: Evidence, path: Path) -> None:
    """Write evidence with a line per sample, or for a failure a line without round and nanoseconds.

    A text that a spreadsheet would run has an apostrophe before it. Left out are limits of devices, and the protocols
    of runs except for the regime. An existing file is replaced.

    Raises:
        UsageError: its folder does not exist.
        NormtuneError: it cannot be written.
    """
    runs = {run.id: run for run in evidence.runs}
    with replaced(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        knobs = evidence.knobs()
        # Nothing else of a file says so.
        mark = ("unpaired",) if any(run.is_unpaired for run in evidence.runs) else ()
        writer.writerow((*_CSV_FIRST, *mark, *knobs, *_CSV_LAST))
        for item in evidence.measurements():
            run, problem = runs[item.run], item.problem
            source = (run.device.label, run.device.sms, run.id, run.started, run.regime)
            shape = (problem.operator, problem.variant, problem.dtype, problem.rows, problem.hidden)
            values = item.config._asdict()
            config = (values.get(name, "") for name in knobs)
            unpaired = (str(run.is_unpaired).lower() for _ in mark)
            cells = (*source, *shape, *unpaired, *config, item.fingerprint, item.status, item.reason)
            start = [quoted(cell) if isinstance(cell, str) else cell for cell in cells]
            if item.status != "ok":
                writer.writerow((*start, "", ""))
            for number, nanoseconds in zip(item.rounds.tolist(), item.samples.tolist(), strict=True):
                writer.writerow((*start, number, nanoseconds))


def _column(table: pa.Table, name: str) -> list[Any]:
    """A column as a list; ValueError if it has nulls or too much text."""
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"column {name} has nulls")
    if name in TEXTS:
        return _texts(column, name)
    if name in _ARRAYS and any(chunk.flatten().null_count for chunk in column.chunks):
        raise ValueError(f"column {name} has nulls in its lists")
    return column.to_numpy().tolist()


def _texts(column: pa.ChunkedArray, name: str) -> list[Any]:
    """The values of a column of texts or bytes, None for a null; equal values share one object.

    The size limit counts each row's text, because a store keeps a copy per row.
    """
    texts: list[Any] = []
    shared: dict[Any, Any] = {}
    total = 0
    for chunk in column.chunks:
        values = [shared.setdefault(value, value) for value in chunk.dictionary.to_pylist()]
        indices = chunk.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        total += int(np.array([*map(len, values), 0], np.int64)[indices].sum())
        if total > parquet_file.MOST_BYTES:
            raise ValueError(f"the texts of column {name} have over {parquet_file.MOST_BYTES >> 20} MB")
        texts += np.fromiter((*values, None), object, len(values) + 1)[indices].tolist()
    return texts


def _codes(table: pa.Table) -> list[TimedCode | None]:
    """The launched code of each measurement; equal values share one object."""
    columns = [
        _texts(table.column(name), name) if name in table.column_names else [None] * table.num_rows for name in _CODE
    ]
    shared: dict[TimedCode, TimedCode] = {}
    codes = (TimedCode(launch, assembly or b"") if launch else None for launch, assembly in zip(*columns, strict=True))
    return [code and shared.setdefault(code, code) for code in codes]
