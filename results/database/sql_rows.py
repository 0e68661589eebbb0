"""Writes runs and measurements as rows of the tables, and reads runs; `store` has the transactions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from normtune.results.database import schema
from normtune.results.database.rows import PROBLEM_FIELDS, Known, Numbers, Row, Rows, columns_of, values_of
from normtune.results.records import Run
from normtune.results.runs import (
    DROPPED,
    DROPS,
    FINISHED,
    FINISHED_AT,
    MEASURER,
    check_same,
    drops,
    from_plain,
    joined_protocol,
    plain,
    to_plain,
    without_store,
)

# Values of a statement: SQLite takes at most 32,766 parameters, and a problem has five.
_AT_ONCE = 1000
# (Old, new) fingerprint by the fields of a problem and the JSON of a config.
Fingerprints = Mapping[tuple[tuple[Any, ...], str], tuple[str, str]]


def add_runs(connection: sa.Connection, runs: Sequence[Run], joins: bool = False) -> None:
    """Insert the runs that are not stored yet; with `joins`, join the protocols of those that are.

    Raises:
        ValueError: a run of that id is stored with another device, software or start.
    """
    stored = {run.id: run for _, run in stored_runs(connection)}
    total = sum(drops(run.protocol) for run in stored.values())
    values = []
    for run in runs:
        if run.id not in stored:
            fields = to_plain(run._replace(protocol=_marked(run.protocol, total)))
            texts = {name: _json(fields[name]) for name in ("device", "software", "protocol")}
            values.append({"run": run.id, "started": run.started, **texts})
            continue
        check_same(stored[run.id], run)
        joined = joined_protocol(stored[run.id].protocol, run.protocol)
        if joins and joined != stored[run.id].protocol:
            write_protocol(connection, run._replace(protocol=joined))
    insert_new(connection, schema.run, values)


def _marked(protocol: Mapping[str, Any], total: int) -> dict[str, Any]:
    """A protocol whose mark as finished, if there is one, says how often runs were set aside or taken back before."""
    return {FINISHED_AT: total, **protocol} if FINISHED in protocol else dict(protocol)


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
    write_protocol(connection, run._replace(protocol=_marked(run.protocol | kept, total)))


def set_dropped(connection: sa.Connection, run: Run, day: str | None) -> None:
    """Set a run aside on a day, or take it back with None."""
    aside = {DROPS: drops(run.protocol) + 1} | ({DROPPED: day} if day else {})
    write_protocol(connection, run._replace(protocol=without_store(run.protocol) | aside))


def write_protocol(connection: sa.Connection, run: Run) -> None:
    """Replace the whole protocol of a stored run."""
    text = _json(plain(run.protocol))
    connection.execute(sa.update(schema.run).where(schema.run.c.run == run.id).values(protocol=text))


def stored_runs(connection: sa.Connection) -> list[tuple[int, Run]]:
    """All runs with their numbers, by start and id.

    Raises:
        ValueError: a row is not a valid run.
    """
    table = schema.run
    runs = []
    for number, run, started, *texts in connection.execute(
        sa.select(table.c.id, table.c.run, table.c.started, table.c.device, table.c.software, table.c.protocol)
    ):
        device, software, protocol = (json.loads(text) for text in texts)
        value = {"id": run, "started": started, "device": device, "software": software, "protocol": protocol}
        runs.append((number, from_plain(value)))
    total = sum(drops(run.protocol) for _, run in runs)
    return sorted(
        ((number, _current(run, total)) for number, run in runs), key=lambda pair: (pair[1].started, pair[1].id)
    )


def _current(run: Run, total: int) -> Run:
    """A run, without its mark as finished if a run was set aside or taken back since."""
    if FINISHED not in run.protocol:
        return run
    marked = _marked(run.protocol, total)
    gone = () if marked[FINISHED_AT] == total else (FINISHED, FINISHED_AT)
    return run._replace(protocol={name: value for name, value in marked.items() if name not in gone})


def numbered(connection: sa.Connection, columns: Mapping[str, Sequence[Any]], known: Known) -> Known:
    """The numbers of all that columns of measurements refer to; missing rows are inserted, except runs.

    `known` has the numbers from earlier calls, to which the result adds; no statement is sent if they suffice.

    Raises:
        ValueError: a run is not stored.
    """
    runs, wanted = known.runs, {(run,) for run in columns["run"]}
    if not wanted <= known.runs.keys():
        runs = {(run.id,): number for number, run in stored_runs(connection)}
        for (unknown,) in sorted(wanted - runs.keys()):
            raise ValueError(f"run {unknown!r} is not known: begin_run comes first")
    shapes = set(zip(*(columns[name] for name in PROBLEM_FIELDS), strict=True))
    parts: list[tuple[sa.Table, tuple[str, ...], set[tuple[Any, ...]], Numbers]] = [
        (schema.problem, PROBLEM_FIELDS, shapes, known.problems)
    ]
    for table, before in ((schema.config, known.configs), (schema.fingerprint, known.fingerprints)):
        parts.append((table, (table.name,), {(text,) for text in columns[table.name]}, before))
    return Known(runs, *(_numbers_of(connection, *part) for part in parts))


def _numbers_of(
    connection: sa.Connection, table: sa.Table, fields: Sequence[str], wanted: set[tuple[Any, ...]], known: Numbers
) -> Numbers:
    """The numbers of the rows of a table with these values; missing rows are inserted."""
    missing = sorted(values for values in wanted if values not in known)
    if not missing:
        return known
    insert_new(connection, table, [dict(zip(fields, values, strict=True)) for values in missing])
    numbers = dict(known)
    columns = [table.c[name] for name in fields]
    for start in range(0, len(missing), _AT_ONCE):
        part = missing[start : start + _AT_ONCE]
        statement = sa.select(table.c.id, *columns).where(sa.tuple_(*columns).in_(part))
        numbers |= {tuple(values): number for number, *values in connection.execute(statement)}
    return numbers


def set_fingerprints(connection: sa.Connection, runs: Mapping[int, Run], fingerprints: Fingerprints) -> None:
    """Replace the fingerprints of measurements in these runs, which are by number.

    `fingerprints` has (old, new) for each problem and config; measurements with another old one are not changed.
    """
    reader = Rows(connection)
    changed = []
    for row in reader.of(runs):
        old, new = fingerprints.get((reader.problems.get(row.problem, ()), row.config), ("", ""))
        if row.fingerprint == old and row.is_whole is not False:  # the checksum of a damaged one must stay wrong
            changed.append(row._replace(fingerprint=new, revision=row.revision + 1))
    replace_rows(connection, changed, reader.problems, runs)


def replace_rows(
    connection: sa.Connection, changed: Sequence[Row], problems: Mapping[int, tuple[Any, ...]], runs: Mapping[int, Run]
) -> None:
    """Replace measurements by rows with the same numbers."""
    if not changed:
        return
    columns = columns_of(changed, problems, runs)
    values = values_of(columns, numbered(connection, columns, Known()))
    rows = [
        # What was never compared with a checksum is not vouched for now.
        {f"new_{name}": value for name, value in (new | ({"checksum": None} if row.is_whole is None else {})).items()}
        | {"row": row.number}
        for row, new in zip(changed, values, strict=True)
    ]
    names = [name.removeprefix("new_") for name in rows[0] if name != "row"]
    change = sa.update(schema.measurement).where(schema.measurement.c.id == sa.bindparam("row"))
    connection.execute(change.values({name: sa.bindparam(f"new_{name}") for name in names}), rows)


def insert_new(connection: sa.Connection, table: sa.Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of plain values, except those whose unique columns are stored already."""
    if not values:
        return
    # Straight to the driver: preparing the values of each row takes SQLAlchemy as long as all else.
    rows = list(zip(*(row.values() for row in values), strict=True))
    if connection.dialect.name == "postgresql":
        # One statement with a list for each column, not one for each row.
        lists = ", ".join(f"%b::{table.c[name].type.compile(connection.dialect)}[]" for name in values[0])
        source, given = f"SELECT * FROM unnest({lists})", [tuple(map(list, rows))]
    else:
        source, given = f"VALUES ({', '.join('?' * len(rows))})", [tuple(row.values()) for row in values]
    names = ", ".join(values[0])
    connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) {source} ON CONFLICT DO NOTHING", given)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
