"""Read a store: runs, measurements that agree with their checksums, and counts, for which no sample is read.

In: a connection in a transaction. Out: runs, rows, the state of each config (`coverage`), counts.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import sqlalchemy as sa

from normtune.kernels.config import Config
from normtune.kernels.operator import read_config
from normtune.kernels.problem import Problem
from normtune.results.database import schema
from normtune.results.database.rows import (
    CODE_FIELDS,
    PROBLEM_FIELDS,
    Row,
    checksum,
    problem_text,
)
from normtune.results.records import DECISIVE, Counted, Coverage, Run, TimedCode
from normtune.results.runs import current, drops, from_plain

# What is in a checksum after run, problem and config.
_TOLD = ("fingerprint_id", "revision", "status", "reason", "median", "first_round")
_AT_ONCE = 20_000
# Number of problems with damaged measurements that a message names.
_NAMED = 3


def stored_runs(connection: sa.Connection) -> list[tuple[int, Run]]:
    """All runs with their numbers, by start and id.

    Raises:
        ValueError: a row is not a valid run.
    """
    columns = schema.run.c
    texts = columns.device, columns.software, columns.protocol
    runs = []
    for number, run, started, *values in connection.execute(
        sa.select(columns.id, columns.run, columns.started, *texts)
    ):
        fields = zip((column.name for column in texts), map(json.loads, values), strict=True)
        runs.append((number, from_plain({"id": run, "started": started, **dict(fields)})))
    total = sum(drops(run.protocol) for _, run in runs)
    return sorted(
        ((number, current(run, total)) for number, run in runs), key=lambda pair: (pair[1].started, pair[1].id)
    )


def wanted_runs(
    connection: sa.Connection, kind: object = None, devices: Collection[str] | None = None, regime: str | None = None
) -> dict[int, Run]:
    """Runs by number, of these devices and this regime (None for all), except those set aside."""
    return {
        number: run
        for number, run in stored_runs(connection)
        if not run.is_dropped
        and kind in (None, run.device.kind)
        and (devices is None or run.device.label in devices)
        and regime in (None, run.regime)
    }


class Reader:
    """Reads the measurements of a store.

    Args:
        connection: in a transaction.

    Attributes:
        damaged: number of damaged measurements that `undamaged` left out, by the text of their problem.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._problems = stored_values(connection, schema.problem, PROBLEM_FIELDS)
        self._configs = stored_values(connection, schema.config)
        self._fingerprints = stored_values(connection, schema.fingerprint)
        self.damaged: Counter[str] = Counter()

    def rows(self, runs: Mapping[int, Run]) -> Iterator[Row]:
        """All measurements of runs, by start of the run, and in the order in which they were stored."""
        table = schema.measurement.c
        names = ("run_id", "problem_id", "config_id", *_TOLD, "samples", "rounds", "checksum", *CODE_FIELDS, "id")
        statement = sa.select(*(table[name] for name in names)).order_by(table.id)
        by_start = sorted(runs, key=lambda number: runs[number].started)
        for _, group in groupby(by_start, lambda number: runs[number].started):
            for run, *values in self._connection.execute(statement.where(table.run_id.in_([*group]))):
                yield self._row(runs[run].id, *values)

    def undamaged(self, runs: Mapping[int, Run]) -> Iterator[Row]:
        """The rows of `rows` that are not damaged."""
        for row in self.rows(runs):
            if not row.is_whole:
                self.damaged[problem_text(row.problem)] += 1
            else:
                yield row

    def _row(self, run: str, problem_number: int, config_number: int, *values: Any) -> Row:
        kernels, *told, samples, rounds, stored, launch, code, machine, number = values
        problem, config = self._problems.get(problem_number, ()), self._configs.get(config_number, "")
        fingerprint = self._fingerprints.get(kernels, "")
        try:
            is_whole = stored == checksum((run, problem_text(problem), config, fingerprint, *told), rounds, samples)
        except (TypeError, UnicodeError):
            is_whole = False
        revision, status, reason, median, first = told
        content = revision, status, reason, median, samples, rounds, launch, code, machine
        return Row(run, problem, config, first, fingerprint, *content, number, is_whole)


def batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """The rows, some thousands at once."""
    return iter(lambda: list(islice(rows, _AT_ONCE)), [])


def stored_values(connection: sa.Connection, table: sa.Table, fields: Sequence[str] = ()) -> dict[int, Any]:
    """The values of a table by the numbers of its rows: tuples of these fields, or the texts of a table of texts."""
    columns = [table.c[name] for name in fields or (table.name,)]
    found = connection.execute(sa.select(table.c.id, *columns))
    return {number: tuple(values) if fields else values[0] for number, *values in found}


def coverage(rows: Iterable[Row], runs: Iterable[Run]) -> dict[tuple[Problem, Config], Coverage]:
    """State of each config on each problem, of the rows of these runs, in the order of `Reader`."""
    newest: dict[tuple[Any, ...], str] = {}
    # Of the row that decides by problem, config and fingerprint: status, code, run; and samples and median of all.
    states: dict[tuple[Any, ...], tuple[str, TimedCode | None, str, int, int | None]] = {}
    for row in rows:
        newest[row.problem, row.config] = row.fingerprint
        kernels = row.problem, row.config, row.fingerprint
        status, code, run, samples, median = states.get(kernels, ("", None, "", 0, None))
        if row.status in DECISIVE or status not in DECISIVE:
            status, code, run = row.status, row.timed_code, row.run
        median = median if row.median is None else row.median
        states[kernels] = status, code, run, samples + len(row.samples) // 4, median
    tritons = {run.id: run.software.get("triton", "") for run in runs}
    problems = {values: Problem.of(*values) for values, _ in newest}
    configs = {pair: read_config(*pair) for pair in {(values[0], text) for values, text in newest}}
    found = {}
    for (values, text), fingerprint in newest.items():
        status, code, run, samples, median = states[values, text, fingerprint]
        state = Coverage(status, fingerprint, samples, median, code, tritons[run] if code else "")
        found[problems[values], configs[values[0], text]] = state
    return found


def counts(connection: sa.Connection, runs: Mapping[int, Run]) -> list[Counted]:
    """Number of measurements of runs by problem and status; damaged ones included.

    Raises:
        KeyError: a problem is not stored.
    """
    table = schema.measurement
    stored = stored_values(connection, schema.problem, PROBLEM_FIELDS)
    problems = {number: Problem.of(*values) for number, values in stored.items()}
    place = table.c.run_id, table.c.problem_id
    # In two statements, each answered by an index; with the status in one, every measurement would be read.
    failures = sa.select(*place, table.c.status, sa.func.count()).where(table.c.status != "ok")
    every = sa.select(*place, sa.func.count()).group_by(*place)
    found, failed = [], Counter[tuple[int, int]]()
    for run, problem, status, count in connection.execute(failures.group_by(*place, table.c.status)):
        failed[run, problem] += count
        if run in runs:
            found.append(Counted(runs[run], problems[problem], status, count))
    for run, problem, count in connection.execute(every):
        if run in runs and count > (less := failed[run, problem]):
            found.append(Counted(runs[run], problems[problem], "ok", count - less))
    return found


def counts_by_kernels(connection: sa.Connection) -> Iterable[Any]:
    """Number of measurements by number of the run, operator and fingerprint; damaged ones included."""
    table = schema.measurement
    joined = table.join(schema.problem, schema.problem.c.id == table.c.problem_id)
    joined = joined.join(schema.fingerprint, schema.fingerprint.c.id == table.c.fingerprint_id)
    columns = table.c.run_id, schema.problem.c.operator, schema.fingerprint.c.fingerprint
    return connection.execute(sa.select(*columns, sa.func.count()).select_from(joined).group_by(*columns))


def damage_line(name: str, damaged: Mapping[str, int]) -> str:
    """Message about the damaged measurements of a store; empty if there are none."""
    problems = sorted(damaged)
    named = ", ".join(f"{problem} ({damaged[problem]})" for problem in problems[:_NAMED])
    more = f" and of {len(problems) - _NAMED} more problems" if len(problems) > _NAMED else ""
    count = sum(damaged.values())
    return f"the store {name} has {count} damaged measurement{'s' * (count != 1)}, left out here: {named}{more}"
