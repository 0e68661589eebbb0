"""Read a store: runs, measurements, the state of each config, and counts, for which no sample is read.

In: a connection in a transaction. Out: runs, rows, `Coverage`, counts.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from normtune.kernels.config import Config
from normtune.kernels.operator import read_config
from normtune.kernels.problem import Problem
from normtune.results.database import schema
from normtune.results.database.rows import CONTENT, PROBLEM_FIELDS, Row
from normtune.results.records import DECISIVE, Counted, Coverage, Run, TimedCode
from normtune.results.runs import from_plain

# The columns of a run that are JSON.
RUN_TEXTS = ("device", "software", "protocol")
_COLUMNS = schema.measurement.c
# What a measurement refers to may be lost.
_MEASUREMENTS = (
    sa.select(
        _COLUMNS.run_id,
        *(schema.problem.c[name] for name in PROBLEM_FIELDS),
        schema.config.c.config,
        schema.fingerprint.c.fingerprint,
        *(_COLUMNS[name] for name in ("id", "first_round", *CONTENT)),
    )
    .select_from(schema.measurement.outerjoin(schema.problem).outerjoin(schema.config).outerjoin(schema.fingerprint))
    .order_by(_COLUMNS.id)
)


def stored_runs(connection: sa.Connection) -> dict[int, Run]:
    """All runs by number, in the order of their start and id.

    Raises:
        ValueError: a row is not a valid run.
    """
    runs = {}
    for number, run, started, *texts in connection.execute(
        sa.select(*schema.run.c["id", "run", "started", *RUN_TEXTS])
    ):
        fields = dict(zip(RUN_TEXTS, map(json.loads, texts), strict=True))
        runs[number] = from_plain({"id": run, "started": started, **fields})
    return dict(sorted(runs.items(), key=lambda pair: (pair[1].started, pair[1].id)))


def runs_by_id(connection: sa.Connection) -> dict[str, Run]:
    """All runs by id. Otherwise as `stored_runs`."""
    return {run.id: run for run in stored_runs(connection).values()}


def used_runs(
    connection: sa.Connection, kind: object = None, devices: Collection[str] | None = None, regime: str | None = None
) -> dict[int, Run]:
    """The runs of these devices and this regime (None for all), except those set aside. Otherwise as `stored_runs`."""
    return {
        number: run
        for number, run in stored_runs(connection).items()
        if not run.is_dropped
        and kind in (None, run.device.kind)
        and (devices is None or run.device.label in devices)
        and regime in (None, run.regime)
    }


def completions(connection: sa.Connection) -> list[tuple[int, str]]:
    """The number of a run and the key of a request that it completed, of each."""
    if not sa.inspect(connection).has_table(schema.completion.name):  # of version 4, opened to be read
        return []
    return [(run, request) for run, request in connection.execute(sa.select(schema.completion))]


def stored_rows(connection: sa.Connection, runs: Mapping[int, Run]) -> Iterator[Row]:
    """All measurements of runs, damaged ones too, by start of the run, and in the order in which they were stored."""
    share = dict[Any, Any]().setdefault  # equal values are one object
    by_start = sorted(runs, key=lambda number: runs[number].started)
    for _, group in groupby(by_start, lambda number: runs[number].started):
        statement = _MEASUREMENTS.where(_COLUMNS.run_id.in_([*group]))
        for run, operator, rows, hidden, dtype, variant, config, fingerprint, *own in connection.execute(statement):
            number, first, revision, status, reason, median, samples, rounds, checksum, *digests = own
            problem = operator, rows, hidden, dtype, variant
            yield Row(
                run=runs[run].id,
                problem=share(problem, problem),
                config=share(config, config),
                first=first,
                fingerprint=share(fingerprint, fingerprint),
                revision=revision,
                status=status,
                reason=reason,
                median=median,
                samples=samples,
                rounds=rounds,
                code=TimedCode(*(digest or b"" for digest in digests)) if digests[0] else None,
                number=number,
                checksum=checksum,
            )


def coverage(rows: Iterable[Row], runs: Iterable[Run]) -> dict[tuple[Problem, Config], Coverage]:
    """State of each config on each problem, of the rows of these runs, in the order of `stored_rows`."""
    newest: dict[tuple[Any, ...], str] = {}
    # Of the row that decides by problem, config and fingerprint: status, code, run; and samples and median of all.
    states: dict[tuple[Any, ...], tuple[str, TimedCode | None, str, int, int | None]] = {}
    for row in rows:
        newest[row.problem, row.config] = row.fingerprint
        kernels = row.problem, row.config, row.fingerprint
        status, code, run, samples, median = states.get(kernels, ("", None, "", 0, None))
        if row.status in DECISIVE or status not in DECISIVE:
            status, code, run = row.status, row.code, row.run
        median = median if row.median is None else row.median
        states[kernels] = status, code, run, samples + len(row.samples) // 4, median
    tritons = {run.id: run.software.get("triton", "") for run in runs}
    problems = {values: Problem.of(*values) for values, _ in newest}
    configs = {pair: read_config(*pair) for pair in {(values[0], text) for values, text in newest}}
    coverages = {}
    for (values, text), fingerprint in newest.items():
        status, code, run, samples, median = states[values, text, fingerprint]
        state = Coverage(status, fingerprint, samples, median, code, tritons[run] if code else "")
        coverages[problems[values], configs[values[0], text]] = state
    return coverages


def counts(connection: sa.Connection, runs: Mapping[int, Run]) -> list[Counted]:
    """Number of measurements of runs by problem and status; damaged ones included.

    Raises:
        KeyError: a problem is not stored.
    """
    fields = connection.execute(sa.select(*schema.problem.c["id", *PROBLEM_FIELDS]))
    problems = {number: Problem.of(*values) for number, *values in fields}
    place = _COLUMNS.run_id, _COLUMNS.problem_id
    # In two statements, each answered by an index; with the status in one, every measurement would be read.
    failures = (
        sa.select(*place, _COLUMNS.status, sa.func.count())
        .where(_COLUMNS.status != "ok")
        .group_by(*place, _COLUMNS.status)
    )
    every = sa.select(*place, sa.func.count()).group_by(*place)
    counted, failed = [], Counter[tuple[int, int]]()
    for run, problem, status, count in connection.execute(failures):
        failed[run, problem] += count
        if run in runs:
            counted.append(Counted(runs[run], problems[problem], status, count))
    for run, problem, count in connection.execute(every):
        if run in runs and count > (less := failed[run, problem]):
            counted.append(Counted(runs[run], problems[problem], "ok", count - less))
    return counted


def counts_by_kernels(connection: sa.Connection) -> Iterable[Any]:
    """Number of measurements by number of the run, operator and fingerprint; damaged ones included."""
    columns = _COLUMNS.run_id, schema.problem.c.operator, schema.fingerprint.c.fingerprint
    tables = schema.measurement.join(schema.problem).join(schema.fingerprint)
    return connection.execute(sa.select(*columns, sa.func.count()).select_from(tables).group_by(*columns))
