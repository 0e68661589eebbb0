"""Write to a store: runs, their protocols, and measurements with the problems, configs and fingerprints they refer to.

In: a connection in a transaction that writes. Out: rows of the tables.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from normtune.results.database import schema
from normtune.results.database.reading import Reader, stored_runs
from normtune.results.database.rows import PROBLEM_FIELDS, Row, checksum_of
from normtune.results.records import Run
from normtune.results.runs import DROPPED, DROPS, MEASURER, check_same, drops, joined_protocol, marked, plain, to_plain

# Values of a statement: SQLite takes at most 32,766 parameters, and a problem has five.
_AT_ONCE = 1000
_COLUMNS = tuple(column.name for column in schema.measurement.c if column.name != "id")
# The tables that measurements refer to besides runs, and the columns of their values; and statements for their numbers.
_REFERRED = {
    schema.problem: PROBLEM_FIELDS,
    schema.config: (schema.config.name,),
    schema.fingerprint: (schema.fingerprint.name,),
}
_WANTED = {
    table: sa.select(*table.c["id", *fields]).where(
        sa.tuple_(*table.c[fields]).in_(sa.bindparam("wanted", expanding=True))
    )
    for table, fields in _REFERRED.items()
}
# (Old, new) fingerprint by the fields of a problem and the JSON of a config.
Fingerprints = Mapping[tuple[tuple[Any, ...], str], tuple[str, str]]


class Numbers(NamedTuple):
    """The numbers of rows that measurements refer to, by their values, as far as they are known."""

    run: dict[str, int]
    problem: dict[tuple[Any, ...], int]
    config: dict[str, int]
    fingerprint: dict[str, int]


def add_runs(connection: sa.Connection, runs: Sequence[Run], joins: bool = False) -> None:
    """Insert the runs that are not stored yet; with `joins`, join the protocols of those that are.

    Raises:
        ValueError: a run of that id is stored with another device, software or start.
    """
    stored = {run.id: run for _, run in stored_runs(connection)}
    total = sum(drops(run.protocol) for run in stored.values())
    new = []
    for run in runs:
        if run.id not in stored:
            fields = to_plain(run._replace(protocol=marked(run.protocol, total)))
            new.append((run.id, run.started, *(_json(fields[name]) for name in ("device", "software", "protocol"))))
            continue
        check_same(stored[run.id], run)
        joined = joined_protocol(stored[run.id].protocol, run.protocol)
        if joins and joined != stored[run.id].protocol:
            write_protocol(connection, run._replace(protocol=joined))
    _insert(connection, schema.run, ("run", "started", "device", "software", "protocol"), new)


def set_protocol(connection: sa.Connection, run: Run) -> None:
    """Replace the protocol of a run, except for who measured and whether it is set aside.

    Raises:
        ValueError: the run is not stored.
    """
    stored = {other.id: other for _, other in stored_runs(connection)}
    if run.id not in stored:
        raise ValueError(f"run {run.id!r} is not known: begin_run comes first")
    kept = {name: value for name, value in stored[run.id].protocol.items() if name in (DROPPED, DROPS, MEASURER)}
    total = sum(drops(other.protocol) for other in stored.values())
    write_protocol(connection, run._replace(protocol=marked(run.protocol | kept, total)))


def write_protocol(connection: sa.Connection, run: Run) -> None:
    """Replace the whole protocol of a stored run."""
    text = _json(plain(run.protocol))
    connection.execute(sa.update(schema.run).where(schema.run.c.run == run.id).values(protocol=text))


def add(connection: sa.Connection, rows: Sequence[Row], numbers: Numbers) -> None:
    """Insert the measurements that are not stored yet; `numbers` get those that they need.

    Raises:
        ValueError: a run is not stored.
    """
    _insert(connection, schema.measurement, _COLUMNS, _values(connection, rows, numbers))


def replace(connection: sa.Connection, rows: Sequence[Row], numbers: Numbers) -> None:
    """Replace the measurements with the numbers of these rows."""
    if rows:
        values = _values(connection, rows, numbers)
        change = sa.update(schema.measurement).where(schema.measurement.c.id == sa.bindparam("number"))
        connection.execute(
            change,
            [
                {**dict(zip(_COLUMNS, new, strict=True)), "number": row.number}
                for row, new in zip(rows, values, strict=True)
            ],
        )


def merge(connection: sa.Connection, rows: Sequence[Row], numbers: Numbers) -> int:
    """Join the measurements of another store, whose runs are stored; returns the number of new ones.

    Of two rows of one measurement the greater is kept, by how often its fingerprint was replaced, then by content, and
    a whole one in place of a damaged one, so that the order of merges makes no difference.
    """
    ids = {row.run for row in rows}
    runs = {number: run for number, run in stored_runs(connection) if run.id in ids}
    stored = {row.key: row for row in Reader(connection).rows(runs)}
    new = [row for row in rows if row.key not in stored]
    add(connection, new, numbers)
    greater = []
    for row in rows:
        old = stored.get(row.key)
        if old is not None and (not old.is_whole or _order(old) < _order(row)):
            greater.append(row._replace(number=old.number))
    replace(connection, greater, numbers)
    return len(new)


def _order(row: Row) -> tuple[Any, ...]:
    digests = (row.launch or b"", row.code or b"", row.machine_code or b"")
    return row.revision, row.fingerprint, row.status, row.reason, row.rounds, row.samples, *digests


def set_fingerprints(
    connection: sa.Connection, runs: Mapping[int, Run], fingerprints: Fingerprints, numbers: Numbers
) -> None:
    """Replace the fingerprints of measurements in these runs, which are by number.

    `fingerprints` has (old, new) for each problem and config; measurements with another old one are not changed.
    """
    changed = []
    for row in Reader(connection).undamaged(runs):  # the checksum of a damaged one must stay wrong
        old, new = fingerprints.get((row.problem, row.config), ("", ""))
        if row.fingerprint == old:
            changed.append(row._replace(fingerprint=new, revision=row.revision + 1))
    replace(connection, changed, numbers)


def _values(connection: sa.Connection, rows: Sequence[Row], numbers: Numbers) -> list[tuple[Any, ...]]:
    """The values of `_COLUMNS`."""
    _find(connection, rows, numbers)
    return [
        (
            *(numbers.run[row.run], numbers.problem[row.problem], numbers.config[row.config], row.first),
            *(numbers.fingerprint[row.fingerprint], *row[5:11]),
            checksum_of(row),
            *row[11:14],
        )
        for row in rows
    ]


def _find(connection: sa.Connection, rows: Sequence[Row], numbers: Numbers) -> None:
    """Add the numbers of all that rows refer to; what is missing is inserted, except runs."""
    if wanted := {row.run for row in rows} - numbers.run.keys():
        numbers.run.update({run.id: number for number, run in stored_runs(connection)})
        for unknown in sorted(wanted - numbers.run.keys()):
            raise ValueError(f"run {unknown!r} is not known: begin_run comes first")
    for table, fields in _REFERRED.items():
        known: dict[Any, int] = getattr(numbers, table.name)
        missing = sorted({getattr(row, table.name) for row in rows} - known.keys())
        is_text = len(fields) == 1
        values = [(text,) for text in missing] if is_text else missing
        _insert(connection, table, fields, values)
        for start in range(0, len(values), _AT_ONCE):
            part = {"wanted": values[start : start + _AT_ONCE]}
            for number, *found in connection.execute(_WANTED[table], part):
                known[found[0] if is_text else tuple(found)] = number


def _insert(connection: sa.Connection, table: sa.Table, fields: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of plain values, except those whose unique columns are stored already."""
    if not rows:
        return
    # Straight to the driver: preparing the values of each row takes SQLAlchemy as long as all else.
    if connection.dialect.name == "postgresql":
        # One statement with a list for each column, not one for each row.
        lists = ", ".join(f"%b::{table.c[name].type.compile(connection.dialect)}[]" for name in fields)
        source, given = f"SELECT * FROM unnest({lists})", [tuple(map(list, zip(*rows, strict=True)))]
    else:
        source, given = f"VALUES ({', '.join('?' * len(fields))})", [*rows]
    connection.exec_driver_sql(f"INSERT INTO {table.name} ({', '.join(fields)}) {source} ON CONFLICT DO NOTHING", given)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
