"""Write to a store: runs, completed requests, and measurements with the problems, configs and fingerprints of these.

In: a connection in a transaction that writes. Out: rows of the tables.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from normtune.results.database import schema
from normtune.results.database.reading import RUN_TEXTS, stored_rows, stored_runs
from normtune.results.database.rows import CONTENT, PROBLEM_FIELDS, Row
from normtune.results.records import Run
from normtune.results.runs import changes, check_joining, check_same, joined_protocol, to_plain
from normtune.results.validate import check_runs

# The tables that measurements refer to, and the columns of their values; and statements for the numbers of these.
_REFERRED = {"problem": PROBLEM_FIELDS, "config": ("config",), "fingerprint": ("fingerprint",)}
_NUMBER = {
    name: f"(SELECT id FROM {name} WHERE {' AND '.join(f'{field} = ?' for field in fields)})"
    for name, fields in {"run": ("run",), **_REFERRED}.items()
}


def add_run(connection: sa.Connection, run: Run) -> None:
    """Insert a run that is not stored yet."""
    connection.execute(schema.run.insert().values(run=run.id, started=run.started, **_texts(run)))


def write_protocol(connection: sa.Connection, run: Run) -> None:
    """Replace the whole protocol of a stored run."""
    connection.execute(sa.update(schema.run).where(schema.run.c.run == run.id).values(protocol=_texts(run)["protocol"]))


def merge_runs(connection: sa.Connection, runs: Sequence[Run]) -> dict[str, int]:
    """Check the runs of other stores or files, insert the new ones, and join the protocols of the others.

    No request counts as completed any more if another store set a run aside, or took it back, and this one did not.

    Returns:
        The `changes` of all runs.

    Raises:
        ValueError: a run of that id is stored with another device, software or start; or a run breaks a rule of
            `check_runs` or `check_joining`.
    """
    stored = stored_runs(connection)
    check_runs(runs)
    check_joining(runs, {run.device.label for run in stored.values()})
    for run in runs:
        if run.id not in stored:
            add_run(connection, run)
            continue
        check_same(stored[run.id], run)
        protocol = joined_protocol(stored[run.id].protocol, run.protocol)
        if protocol != stored[run.id].protocol:
            write_protocol(connection, run._replace(protocol=protocol))
    now = changes(stored_runs(connection).values())
    if now != changes(stored.values()):
        forget_completions(connection)
    return now


def complete(connection: sa.Connection, completions: Collection[tuple[str, str]]) -> None:
    """Say of runs, by their ids, which requests they completed."""
    statement = f"INSERT INTO completion (run_id, request) VALUES ({_NUMBER['run']}, ?) ON CONFLICT DO NOTHING"
    _execute(connection, statement, sorted(completions))


def forget_completions(connection: sa.Connection) -> None:
    """No request is completed any more."""
    connection.execute(schema.completion.delete())


def add(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert the measurements that are not stored yet.

    Raises:
        ValueError: a run is not stored.
    """
    _add_referred(connection, rows)
    columns = ", ".join([*(f"{name}_id" for name in _NUMBER), "first_round", *CONTENT])
    values = ", ".join([*_NUMBER.values(), *"?" * (1 + len(CONTENT))])
    try:
        _execute(
            connection,
            f"INSERT INTO measurement ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING",
            [(row.run, *row.problem, row.config, row.fingerprint, row.first, *row.content) for row in rows],
        )
    except sa.exc.IntegrityError:  # a run has no number
        runs = ", ".join(sorted({row.run for row in rows}))
        raise ValueError(f"run {runs} is not known: begin_run comes first") from None


def replace(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Replace the fingerprints and the content of the measurements with the numbers of these rows."""
    _add_referred(connection, rows)
    changes = ", ".join([f"fingerprint_id = {_NUMBER['fingerprint']}", *(f"{name} = ?" for name in CONTENT)])
    values = [(row.fingerprint, *row.content, row.number) for row in rows]
    _execute(connection, f"UPDATE measurement SET {changes} WHERE id = ?", values)


def merge(connection: sa.Connection, rows: Sequence[Row]) -> int:
    """Join the measurements of another store, whose runs are stored; returns the number of new ones.

    The row of the greater rank is kept, and a whole one in place of a damaged one. So the order of merges makes no
    difference.
    """
    runs = stored_runs(connection)
    stored = {row.key: row for row in stored_rows(connection, {row.run: runs[row.run] for row in rows})}
    new = [row for row in rows if row.key not in stored]
    add(connection, new)
    pairs = [(stored[row.key], row) for row in rows if row.key in stored]
    greater = [row._replace(number=old.number) for old, row in pairs if old.is_damaged or old.rank < row.rank]
    replace(connection, greater)
    return len(new)


def _add_referred(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert the problems, configs and fingerprints of rows that are not stored yet."""
    for name, fields in _REFERRED.items():
        values = sorted({row.problem if name == "problem" else (getattr(row, name),) for row in rows})
        marks = ", ".join("?" * len(fields))
        statement = f"INSERT INTO {name} ({', '.join(fields)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        _execute(connection, statement, values)


def _execute(connection: sa.Connection, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
    """Straight to the driver: preparing the values of each row takes SQLAlchemy as long as all else."""
    if values:
        is_sqlite = connection.dialect.name == "sqlite"
        connection.exec_driver_sql(statement if is_sqlite else statement.replace("?", "%s"), [*values])


def _texts(run: Run) -> dict[str, str]:
    """The columns `RUN_TEXTS` of a run."""
    fields = to_plain(run)
    return {name: json.dumps(fields[name], sort_keys=True, separators=(",", ":")) for name in RUN_TEXTS}
