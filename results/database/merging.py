"""Joins measurements and runs of other stores and files into a store.

In: a transaction of the store, and parts: runs with columns of measurements. Out: the number of new measurements. Any
order and any number of merges of the same parts give the same content: of two rows of one measurement the greater is
kept, by how often its fingerprint was replaced, then by content, and a whole one in place of a damaged one; `runs` has
the rule for protocols.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa

from normtune.results.columns import COLUMNS
from normtune.results.database import schema, sql_rows
from normtune.results.database.connect import readable
from normtune.results.database.reading import rows_of
from normtune.results.database.rows import (
    PROBLEM_FIELDS,
    Known,
    checksum,
    columns_of,
    problem_text,
    stored_numbers,
    values_of,
)
from normtune.results.records import Run
from normtune.results.runs import anonymous
from normtune.results.validate import check_columns

# Measurements of a store that are read at once.
_AT_ONCE = 20_000
# A measurement in every store; in one store, with its numbers.
_KEY = ("run_id", "problem_id", "config_id", "first_round")
_PRINT = (schema.fingerprint.name,)
# What decides between two rows of one measurement, after the fingerprint.
_DIGESTS = ("launch", "code", "machine_code")
_CONTENT = ("status", "reason", "rounds", "samples", *_DIGESTS)


class Part(NamedTuple):
    """Runs, and measurements of these or of earlier parts, as columns for `rows.values_of`."""

    runs: Sequence[Run]
    columns: Mapping[str, Sequence[Any]]


def parts_of(connection: sa.Connection, version: int, damaged: Counter[str]) -> Iterator[Part]:
    """All that a store has, runs set aside included, without the identifiers of GPUs; damaged rows are only counted."""
    with readable(connection.engine.url):
        runs = dict(sql_rows.stored_runs(connection))
        yield Part([anonymous(run) for run in runs.values()], {name: [] for name in COLUMNS})
        reader = rows_of(connection, version)
        rows = reader.undamaged(runs, damaged)
        while some := list(islice(rows, _AT_ONCE)):
            columns = columns_of(some, reader.problems, runs)
            check_columns(columns)
            yield Part((), columns)


def merge(connection: sa.Connection, part: Part, known: Known) -> tuple[int, Known]:
    """Join a part; the number of new measurements, and `known` with the numbers of what they refer to.

    Raises:
        ValueError: a run is stored with another device, software or start.
    """
    sql_rows.add_runs(connection, part.runs, joins=True)
    known = sql_rows.numbered(connection, part.columns, known)
    stored = _stored(connection, {known.runs[(run,)] for run in part.columns["run"]})
    # Of all fingerprints, as a stored row may have one that the part has not.
    prints = {number: text for number, (text,) in stored_numbers(connection, schema.fingerprint, _PRINT).items()}
    names = (part.columns[name] for name in (*PROBLEM_FIELDS, "run", "config"))
    new = []
    for values, (*problem, run, config) in zip(values_of(part.columns, known), zip(*names, strict=True), strict=True):
        old = stored.get(tuple(values[name] for name in _KEY))
        if old is None:
            new.append(values)
            continue
        if not _is_whole(old, (run, problem_text(problem), config), prints) or _order(old, prints) < _order(
            values, prints
        ):
            change = sa.update(schema.measurement).where(schema.measurement.c.id == old["id"])
            connection.execute(change.values(values))
    sql_rows.insert_new(connection, schema.measurement, new)
    return len(new), known


def _stored(connection: sa.Connection, runs: Collection[int]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """The stored measurements of runs, by `_KEY`."""
    table = schema.measurement
    rows = connection.execute(sa.select(table).where(table.c.run_id.in_(sorted(runs)))).mappings()
    return {tuple(row[name] for name in _KEY): dict(row) for row in rows}


def _is_whole(row: Mapping[str, Any], texts: Sequence[str], prints: Mapping[int, str]) -> bool:
    """Whether a stored row agrees with its checksum; `texts` are its run, problem and config."""
    if row["checksum"] is None:
        return True
    try:
        told = prints[row["fingerprint_id"]], row["revision"], row["status"], row["reason"], row["median"]
        return checksum((*texts, *told, row["first_round"]), row["rounds"], row["samples"]) == row["checksum"]
    except (LookupError, TypeError, UnicodeError):
        return False


def _order(row: Mapping[str, Any], prints: Mapping[int, str]) -> tuple[Any, ...]:
    content = (row[name] or (b"" if name in _DIGESTS else row[name]) for name in _CONTENT)
    return row["revision"], prints[row["fingerprint_id"]], *content
