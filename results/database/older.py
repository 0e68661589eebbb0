"""Stores of versions before 4: read as they are, and converted before they are written.

In: a connection. Out: their measurements, as `rows.Rows`; or the tables of this version in place of theirs. Version 1
had no checksums, version 2 no digests of the timed code. A measurement had its fingerprint and rounds in full, an
interval of the median, and a hash of what identifies it.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa

from normtune.results.database import schema, sql_rows
from normtune.results.database.rows import (
    PROBLEM_FIELDS,
    Known,
    Row,
    Rows,
    checksum,
    code_columns,
    columns_of,
    values_of,
)
from normtune.results.records import Run
from normtune.results.runs import FINISHED

# The version that added a column.
_ADDED = {"checksum": 2, "launch": 3, "code": 3, "machine_code": 3}
_COLUMNS = (
    *("run_id", "problem_id", "config_id", "fingerprint", "status", "reason", "median", "low", "high", "rounds"),
    *("samples", *_ADDED, "id"),
)
# Name of the old table while its rows are copied.
_RENAMED = "measurement_before_4"
# Measurements that are copied at once.
_AT_ONCE = 10_000


def older_table(name: str = schema.measurement.name) -> sa.TableClause:
    """The table of measurements; columns may be missing."""
    return sa.table(name, *map(sa.column, _COLUMNS))


class OlderRows(Rows):
    """Reads the measurements of a store of a version before 4."""

    def __init__(self, connection: sa.Connection, version: int, name: str = schema.measurement.name) -> None:
        super().__init__(connection)
        self._table = older_table(name)
        self._missing = {column for column, since in _ADDED.items() if version < since}

    def _read_fingerprints(self) -> Mapping[int, tuple[Any, ...]]:
        return {}

    def _statement(self, runs: Sequence[int]) -> sa.Select[Any]:
        columns = (sa.null() if column.name in self._missing else column for column in self._table.c)
        return sa.select(*columns).where(self._table.c.run_id.in_(runs)).order_by(self._table.c.id)

    def _row(self, runs: Mapping[int, Run], run: int, problem: int, config: int, *values: Any) -> Row:
        *texts, low, high, rounds, samples, stored, launch, code, machine, number = values
        text = self._configs[config][0] if stored is None else self._configs.get(config, ("",))[0]
        is_whole = None
        if stored is not None:
            try:
                told = runs[run].id, self.texts[problem], text, *texts, low, high
                is_whole = checksum(told, rounds, samples) == stored
            except (LookupError, TypeError, UnicodeError):
                is_whole = False
        fingerprint, *texts = texts
        blobs = rounds, samples, launch, code, machine
        return Row._make((run, problem, text, fingerprint, 0, *texts, *blobs, number, is_whole))


def convert(connection: sa.Connection, version: int) -> None:
    """Put the tables of this version in place of older ones, in the transaction of a connection.

    Raises:
        ValueError: there are measurements of a run that is not stored.
    """
    connection.exec_driver_sql(f"ALTER TABLE {schema.measurement.name} RENAME TO {_RENAMED}")
    connection.exec_driver_sql("DROP INDEX IF EXISTS measurement_of_run")
    schema.metadata.create_all(connection)
    runs, left = dict(sql_rows.stored_runs(connection)), _count(connection)
    older = OlderRows(connection, version, _RENAMED)
    for run in runs.values():
        if FINISHED in run.protocol:  # with what it was read to say
            sql_rows.write_protocol(connection, run)
    known, rows = Known(), older.of(runs)
    while part := list(islice(rows, _AT_ONCE)):
        left -= len(part)
        for state in (True, None):
            columns = columns_of([row for row in part if row.is_whole is state], older.problems, runs)
            known = sql_rows.numbered(connection, columns, known)
            values = [*values_of(columns, known)]
            if state is None:  # what was not compared before is not vouched for now
                values = [value | {"checksum": None} for value in values]
            sql_rows.insert_new(connection, schema.measurement, values)
        damaged = [row for row in part if row.is_whole is False and row.problem in older.problems and row.config]
        columns = {name: [] for name in (*PROBLEM_FIELDS, "run")} | {
            "config": [row.config for row in damaged],
            "fingerprint": [str(row.fingerprint) for row in damaged],
        }
        known = sql_rows.numbered(connection, columns, known)
        sql_rows.insert_new(connection, schema.measurement, [_damaged(row, known) for row in damaged])
    if left:
        raise ValueError(f"{left} measurements of runs that are not stored")
    connection.exec_driver_sql(f"DROP TABLE {_RENAMED}")


def _damaged(row: Row, known: Known) -> dict[str, Any]:
    """The values of a damaged row, which stays damaged, as no CRC is negative; no other row has its first round."""
    texts = {name: str(getattr(row, name)) for name in ("status", "reason")}
    blobs = {name: value if isinstance(value := getattr(row, name), bytes) else b"" for name in ("samples", "rounds")}
    numbers = {"run_id": row.run, "problem_id": row.problem, "config_id": known.configs[(row.config,)]}
    numbers |= {"first_round": -1 - row.number, "fingerprint_id": known.fingerprints[(str(row.fingerprint),)]}
    return {**numbers, "revision": 0, **texts, "median": None, **blobs, "checksum": -1} | code_columns(None)


def _count(connection: sa.Connection) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(sa.table(_RENAMED))).scalar_one()
