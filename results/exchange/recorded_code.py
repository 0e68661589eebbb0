"""Digests of the code of recordings, in a column of their files.

In: measurements with the digests of their code, or the files of a recording. Out: `RecordedCode`, a digest per cell: a
config at one hidden size and all numbers of rows. They add 6 % to a file, digests of each measurement 27 %.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import read_config
from normtune.kernels.problem import Problem
from normtune.results.evidence import Evidence
from normtune.results.exchange import parquet_file
from normtune.results.exchange.parquet_csv import METADATA

# Different codes have equal digests once in 3e14.
_BYTES = 6
_COLUMN = "cell_assembly"
Pair = tuple[Problem, Config]


class Cell(NamedTuple):
    """A config on all recorded problems that differ only in their rows."""

    key: Key
    hidden: int
    config: Config


class RecordedCode(NamedTuple):
    """What the kernels of measurements compile to.

    Attributes:
        triton: version of Triton that compiled them; empty without digests.
        cells: digest of the assembly of each cell, 6 bytes, if it is known.
    """

    triton: str = ""
    cells: Mapping[Cell, bytes] = {}


def cell_of(problem: Problem, config: Config) -> Cell:
    """The cell of a config on a problem."""
    return Cell(problem.key, problem.hidden, config)


def pairs_of(evidence: Evidence) -> list[Pair]:
    """The measured (problem, config) pairs, ordered, without the copy."""
    columns = ["operator", "rows", "hidden", "dtype", "variant", "config"]
    rows = evidence.frame[columns].drop_duplicates().itertuples(index=False, name=None)
    read_once = cache(read_config)
    pairs = [(Problem.of(*values), read_once(values[0], text)) for *values, text in rows]
    return sorted((pair for pair in pairs if pair[1] != COPY), key=lambda pair: (pair[0].columns, pair[1]))


def joined(pairs: Iterable[Pair], digests: Mapping[Pair, bytes]) -> dict[Cell, bytes]:
    """The digest of each cell from those of its pairs, in their order; left out if one of them has none."""
    parts: dict[Cell, list[bytes]] = {}
    for pair in pairs:
        parts.setdefault(cell_of(*pair), []).append(digests.get(pair, b""))
    return {cell: hashlib.sha256(b"".join(each)).digest()[:_BYTES] for cell, each in parts.items() if all(each)}


def code_of(evidence: Evidence) -> RecordedCode:
    """The code that was timed, as far as the measurements have its digests."""
    codes = evidence.codes()
    digests = {pair: code.assembly for pair, (_, code) in codes.items()}
    triton = next(reversed(codes.values()))[0] if codes else ""
    return RecordedCode(triton, joined(pairs_of(evidence), digests))


def column_of(evidence: Evidence, code: RecordedCode) -> dict[str, pa.Array]:
    """The column of digests for the rows of `evidence.frame`; none without digests."""
    texts = {(*cell.key.columns, cell.hidden, cell.config.to_json()): digest for cell, digest in code.cells.items()}
    rows = evidence.frame[["operator", "variant", "dtype", "hidden", "config"]].itertuples(index=False, name=None)
    return {_COLUMN: pa.array(map(texts.get, rows), pa.binary(_BYTES))} if texts else {}


def read_code(paths: Iterable[Path]) -> RecordedCode:
    """The digests in the files of a recording, which were read before; without any if a file has none."""
    triton, cells = "", {}
    read_once = cache(read_config)
    for path in paths:
        file = parquet_file.opened(path)
        if _COLUMN not in file.schema_arrow.names:
            continue
        triton = json.loads(file.schema_arrow.metadata[METADATA])["triton"]
        columns = ["operator", "variant", "dtype", "hidden", "config", _COLUMN]
        rows = parquet_file.columns_of(file, path, columns).to_pandas().dropna().drop_duplicates()
        for operator, variant, dtype, hidden, config, digest in rows.itertuples(index=False, name=None):
            cells[Cell(Key.of(operator, variant, dtype), hidden, read_once(operator, config))] = digest
    return RecordedCode(triton, cells)
