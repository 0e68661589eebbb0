"""Parquet files of anybody, read whole and decoded in batches.

In: a path. Out: an open file, or its columns; or an error. The file is read, not mapped: another process may truncate
it. A file of 99 KB can decode to 4 GB, because equal values take no space, so its footer and each batch are counted. A
footer may claim less than a page holds: what is decoded beyond the limit is one page or one row.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from normtune.errors import NormtuneError

# Most memory that reading a file may take. The recorded H200 takes 57 MB.
MOST_BYTES = 1 << 30
# Memory of a measurement besides its content: its lists, arrays and references.
_ROW_BYTES = 512
# Memory of a value while a column is read: level and number, or index of a text in its dictionary.
_VALUE_BYTES = 16
_BATCH_ROWS = 1 << 13
# Encodings that compute a value from the one before it, so that a short page may hold long texts.
_GROWING = ("DELTA_BYTE_ARRAY",)


def opened(path: Path) -> pq.ParquetFile:
    """A file, in memory; texts will be read with a dictionary, one for each distinct value.

    Raises:
        NormtuneError: it takes too much memory to be read.
        pa.ArrowException, OSError, ValueError: it cannot be read, or is no Parquet file.
    """
    if path.stat().st_size > MOST_BYTES:
        raise _too_large(path)
    content = pa.py_buffer(path.read_bytes())
    schema = pq.read_schema(pa.BufferReader(content))
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
    file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts, page_checksum_verification=True)
    footer = file.metadata
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    if any(encoding in _GROWING for chunk in chunks for encoding in chunk.encodings):
        raise ValueError(f"texts in the encoding {_GROWING[0]}")
    sizes = (chunk.total_uncompressed_size + _VALUE_BYTES * chunk.num_values for chunk in chunks)
    if footer.num_rows * _ROW_BYTES + sum(sizes) > MOST_BYTES:
        raise _too_large(path)
    return file


def columns_of(file: pq.ParquetFile, path: Path, names: Sequence[str] | None = None) -> pa.Table:
    """The columns of these names, or all; `path` is for messages. Errors are those of `opened`."""
    batches = []
    remaining = MOST_BYTES
    for batch in file.iter_batches(_BATCH_ROWS, columns=names):
        remaining -= batch.nbytes
        if remaining < 0:
            raise _too_large(path)
        batches.append(batch)
    schema = file.schema_arrow if names is None else pa.schema([file.schema_arrow.field(name) for name in names])
    table = pa.Table.from_batches(batches, batches[0].schema if batches else schema)
    if table.num_rows != file.metadata.num_rows:  # a damaged page header, of which there is no checksum, hides a page
        raise pa.ArrowInvalid(f"{table.num_rows} of {file.metadata.num_rows} rows")
    return table


def _too_large(path: Path) -> NormtuneError:
    return NormtuneError(
        f"{path} takes over {MOST_BYTES >> 20} MB of memory to be read: export fewer measurements in a file"
    )
