"""Converts a store of a version before 4, in the transaction of a connection that writes."""

import sqlalchemy as sa

from normtune.results.database import schema
from normtune.results.database.reading import Reader, batches, stored_runs
from normtune.results.database.rows import Row
from normtune.results.database.writing import Numbers, add, write_protocol
from normtune.results.runs import FINISHED

# Name of the old table while its rows are copied.
_RENAMED = "measurement_before_4"


def convert(connection: sa.Connection, version: int) -> None:
    """Put the tables of this version in place of older ones.

    Raises:
        ValueError: there are measurements of a run that is not stored.
    """
    connection.exec_driver_sql(f"ALTER TABLE {schema.measurement.name} RENAME TO {_RENAMED}")
    connection.exec_driver_sql("DROP INDEX IF EXISTS measurement_of_run")
    schema.metadata.create_all(connection)
    runs, numbers = dict(stored_runs(connection)), Numbers({}, {}, {}, {})
    for run in runs.values():
        if FINISHED in run.protocol:  # with what it was read to say
            write_protocol(connection, run)
    table = schema.measurements_before_4(version, _RENAMED)
    left = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    for rows in batches(Reader(connection, table).rows(runs)):
        left -= len(rows)
        kept = (row if row.is_whole is not False else _plain(row) for row in rows)
        add(connection, [row for row in kept if row.problem and row.config], numbers)
    if left:
        raise ValueError(f"{left} measurements of runs that are not stored")
    connection.exec_driver_sql(f"DROP TABLE {_RENAMED}")


def _plain(row: Row) -> Row:
    """A damaged row, with values of the types of their columns."""
    fingerprint, status, reason = map(str, (row.fingerprint, row.status, row.reason))
    samples, rounds = (blob if isinstance(blob, bytes) else b"" for blob in (row.samples, row.rounds))
    plain = row._replace(fingerprint=fingerprint, status=status, reason=reason, samples=samples, rounds=rounds)
    return plain._replace(median=None, launch=None, code=None, machine_code=None)
