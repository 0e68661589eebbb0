"""Writes measurements and runs as rows of the tables, and reads runs; `store` has the transactions."""

import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite

from normtune.results.columns import first_rounds, split
from normtune.results.database import schema
from normtune.results.records import Run, TimedCode
from normtune.results.runs import check_same, from_plain, plain, to_plain
from normtune.results.statistics import summary

# Those of `Problem.columns`.
PROBLEM_FIELDS = ("operator", "rows", "hidden", "dtype", "variant")

Numbers = dict[tuple[Any, ...], int]
# Values of a statement: SQLite takes at most 32,766 parameters, and a problem has five.
_AT_ONCE = 1000
# (Old, new) fingerprint by the fields of a problem and the JSON of a config.
Fingerprints = Mapping[tuple[tuple[Any, ...], str], tuple[str, str]]


def content_key(run: str, problem: tuple[Any, ...], config: str, first_round: int) -> bytes:
    """16 bytes that identify a measurement in every store; `first_round` is -1 for a failure."""
    text = json.dumps([run, *problem, config, first_round], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def checksum(run: str, problem: str, values: Sequence[Any], rounds: bytes, samples: bytes) -> int:
    """CRC-32 of a measurement with its run and problem.

    Args:
        run: id of the run.
        problem: from `problem_text`.
        values: config, fingerprint, status, reason, median, low and high.
        rounds: as stored.
        samples: as stored.

    Raises:
        TypeError: damage changed the type of a value.
    """
    text = "\0".join((run, problem, *map(str, values)))
    return zlib.crc32(samples, zlib.crc32(rounds, zlib.crc32(text.encode("utf-8", "surrogateescape"))))


def problem_text(values: Sequence[Any]) -> str:
    """The fields of a problem as one text."""
    return " ".join(map(str, values))


def add_runs(connection: sa.Connection, runs: Sequence[Run]) -> None:
    """Insert the runs that are not stored yet.

    Raises:
        ValueError: a run of that id is stored with another device, software or start.
    """
    values = []
    for run in runs:
        texts = {
            name: _json(value) for name, value in to_plain(run).items() if name in ("device", "software", "protocol")
        }
        values.append({"run": run.id, "started": run.started, **texts})
    insert_new(connection, schema.run, values)
    stored = {run.id: run for _, run in stored_runs(connection)}
    for run in runs:
        check_same(stored[run.id], run)


def set_protocol(connection: sa.Connection, run: Run) -> None:
    """Replace the protocol of a run, except for its entry `dropped`.

    Raises:
        ValueError: the run is not stored.
    """
    stored = {other.id: other for _, other in stored_runs(connection)}
    if run.id not in stored:
        raise ValueError(f"run {run.id!r} is not known: begin_run comes first")
    dropped = {name: value for name, value in stored[run.id].protocol.items() if name == "dropped"}
    _write_protocol(connection, run._replace(protocol=run.protocol | dropped))


def set_dropped(connection: sa.Connection, dropped: Run, day: str | None) -> None:
    """Set a run aside on a day, or take it back with None.

    Every run loses its mark as `finished`, because it may have relied on this run's measurements.
    """
    for _, run in stored_runs(connection):
        protocol = {name: value for name, value in run.protocol.items() if name != "finished"}
        if run.id == dropped.id:
            protocol.pop("dropped", None)
            protocol |= {"dropped": day} if day else {}
        if protocol != run.protocol:
            _write_protocol(connection, run._replace(protocol=protocol))


def _write_protocol(connection: sa.Connection, run: Run) -> None:
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
    return sorted(runs, key=lambda pair: (pair[1].started, pair[1].id))


def run_numbers(connection: sa.Connection, runs: Collection[str]) -> dict[str, int]:
    """Numbers of those of these runs that are stored, by id."""
    table = schema.run
    statement = sa.select(table.c.run, table.c.id).where(table.c.run.in_(runs))
    return {run: number for run, number in connection.execute(statement)}


def stored_numbers(connection: sa.Connection, table: sa.Table, fields: Sequence[str]) -> dict[int, tuple[Any, ...]]:
    """Values of these fields, by the number of their row."""
    statement = sa.select(table.c.id, *(table.c[name] for name in fields))
    return {number: tuple(values) for number, *values in connection.execute(statement)}


def numbers_of(
    connection: sa.Connection, table: sa.Table, fields: Sequence[str], wanted: set[tuple[Any, ...]], known: Numbers
) -> Numbers:
    """The numbers of the rows with these values in the table `problem` or `config`; missing rows are inserted.

    `known` has the numbers from earlier calls, to which the result adds; no statement is sent if they suffice.
    """
    missing = sorted(wanted - known.keys())
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


def add_measurements(
    connection: sa.Connection,
    columns: Mapping[str, Sequence[Any]],
    runs: Mapping[str, int],
    problems: Numbers,
    configs: Numbers,
) -> None:
    """Insert the measurements whose content key is not stored yet.

    `columns` are those of `Evidence.frame`. The numbers of runs, problems and configs are by id, by fields, and by
    (JSON,).
    """
    values = []
    shapes = zip(*(columns[name] for name in PROBLEM_FIELDS), strict=True)
    names = ("config", "run", "fingerprint", "status", "reason", "rounds", "samples", "code")
    parts = (columns[name] for name in names)
    firsts = first_rounds(columns["rounds"])
    for problem, config, run, fingerprint, status, reason, rounds, samples, code, first in zip(
        shapes, *parts, firsts, strict=True
    ):
        median, low, high = summary(samples) if len(samples) else (None, None, None)
        blobs = {"samples": samples.astype("<i4").tobytes(), "rounds": rounds.astype("<i4").tobytes()}
        texts = (config, fingerprint, status, reason, median, low, high)
        values.append(
            {
                "key": content_key(run, problem, config, first),
                "run_id": runs[run],
                "problem_id": problems[problem],
                "config_id": configs[(config,)],
                "fingerprint": fingerprint,
                "status": status,
                "reason": reason,
                "median": median,
                "low": low,
                "high": high,
                **blobs,
                "checksum": checksum(run, problem_text(problem), texts, **blobs),
                **_code_columns(code),
            }
        )
    insert_new(connection, schema.measurement, values)


def set_fingerprints(connection: sa.Connection, runs: Mapping[int, Run], fingerprints: Fingerprints) -> None:
    """Replace the fingerprints of measurements in these runs, which are by number.

    `fingerprints` has (old, new) for each problem and config; measurements with another old one are not changed.
    """
    table = schema.measurement
    problems = stored_numbers(connection, schema.problem, PROBLEM_FIELDS)
    configs = stored_numbers(connection, schema.config, ("config",))
    values = ("status", "reason", "median", "low", "high", "rounds", "samples", "checksum")
    chosen = sa.select(table.c.id, table.c.run_id, table.c.problem_id, table.c.config_id, table.c.fingerprint)
    changes = []
    for row in connection.execute(chosen.add_columns(*(table.c[name] for name in values))):
        problem, config = problems.get(row.problem_id, ()), configs.get(row.config_id, ("",))[0]
        old, new = fingerprints.get((problem, config), ("", ""))
        if row.fingerprint != old or row.run_id not in runs:
            continue
        names = runs[row.run_id].id, problem_text(problem)
        texts = row.status, row.reason, row.median, row.low, row.high
        # The checksum of a damaged measurement must stay wrong.
        if row.checksum in (None, checksum(*names, (config, row.fingerprint, *texts), row.rounds, row.samples)):
            new_sum = checksum(*names, (config, new, *texts), row.rounds, row.samples)
            changes.append({"row": row.id, "fingerprint": new, "checksum": None if row.checksum is None else new_sum})
    if changes:
        change = sa.update(table).where(table.c.id == sa.bindparam("row"))
        connection.execute(
            change.values(fingerprint=sa.bindparam("fingerprint"), checksum=sa.bindparam("checksum")), changes
        )


def _code_columns(code: TimedCode | None) -> dict[str, bytes | None]:
    launch, digest, machine = code or (None, None, None)
    return {"launch": launch or None, "code": digest or None, "machine_code": machine or None}


def count_measurements(connection: sa.Connection) -> int:
    """Number of measurements. PostgreSQL takes 0.4 s to count 300,000: call it once per file."""
    return connection.execute(sa.select(sa.func.count()).select_from(schema.measurement)).scalar_one()


def arrays_of(blobs: Sequence[bytes]) -> list[NDArray[np.int32]]:
    """The int32 arrays of blobs, as read-only views of one buffer.

    Raises:
        ValueError: a blob is not a whole number of int32.
    """
    lengths = np.fromiter((len(blob) for blob in blobs), np.int64, len(blobs))
    if (lengths % 4).any():
        raise ValueError("samples are cut off")
    flat = np.frombuffer(b"".join(blobs), "<i4").astype(np.int32, copy=False)
    return split(lengths // 4, flat)


def insert_new(connection: sa.Connection, table: sa.Table, values: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, except those whose unique column is stored already."""
    if values:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        connection.execute(insert(table).on_conflict_do_nothing(), [dict(row) for row in values])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
