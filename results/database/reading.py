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
# Numbers of all measurements, as if they were "ok", and of failures, each answered by an index. If all were grouped by
# status, every measurement would be read.
_COUNTS = sa.text(
    f"""
    SELECT run.run, {", ".join(f"problem.{name}" for name in PROBLEM_FIELDS)}, status, count FROM (
        SELECT run_id, problem_id, 'ok' AS status, count(*) AS count FROM measurement GROUP BY run_id, problem_id
        UNION ALL
        SELECT run_id, problem_id, status, count(*) FROM measurement WHERE status != 'ok'
        GROUP BY run_id, problem_id, status
    ) AS counts JOIN run ON run.id = run_id LEFT JOIN problem ON problem.id = problem_id
    """
)
_COUNTS_BY_KERNELS = sa.text(
    """
    SELECT run.run, operator, fingerprint, count(*) FROM measurement
    JOIN problem ON problem.id = problem_id JOIN fingerprint ON fingerprint.id = fingerprint_id
    LEFT JOIN run ON run.id = run_id GROUP BY run.run, operator, fingerprint
    """
)


def stored_runs(connection: sa.Connection) -> dict[str, Run]:
    """All runs by id, in the order of their start and id.

    Raises:
        ValueError: a row is not a valid run.
    """
    runs = []
    for run, started, *texts in connection.execute(sa.select(*schema.run.c["run", "started", *RUN_TEXTS])):
        fields = dict(zip(RUN_TEXTS, map(json.loads, texts), strict=True))
        runs.append(from_plain({"id": run, "started": started, **fields}))
    return {run.id: run for run in sorted(runs, key=lambda run: (run.started, run.id))}


def used_runs(
    connection: sa.Connection, kind: object = None, devices: Collection[str] | None = None, regime: str | None = None
) -> dict[str, Run]:
    """The runs of these devices and this regime (None for all), except those set aside. Otherwise as `stored_runs`."""
    return {
        run.id: run
        for run in stored_runs(connection).values()
        if not run.is_dropped
        and kind in (None, run.device.kind)
        and (devices is None or run.device.label in devices)
        and regime in (None, run.regime)
    }


def completions(connection: sa.Connection) -> list[tuple[str, str]]:
    """The id of a run and the key of a request that it completed, of each."""
    if _is_older(connection):
        return []
    query = sa.select(schema.run.c.run, schema.completion.c.request).select_from(schema.completion.join(schema.run))
    return [(run, request) for run, request in connection.execute(query)]


def _is_older(connection: sa.Connection) -> bool:
    """Whether a store is of version 4, opened to be read."""
    return not sa.inspect(connection).has_table(schema.completion.name)


def _measurements(connection: sa.Connection) -> sa.Select[Any]:
    """The measurements, with the values of what they refer to, which may be lost."""
    lacking = schema.NEW_COLUMNS if _is_older(connection) else ()
    return (
        sa.select(
            schema.run.c.run,
            *(schema.problem.c[name] for name in PROBLEM_FIELDS),
            schema.config.c.config,
            schema.fingerprint.c.fingerprint,
            *(sa.null() if name in lacking else _COLUMNS[name] for name in ("id", "first_round", *CONTENT)),
        )
        .select_from(
            schema.measurement.join(schema.run)
            .outerjoin(schema.problem)
            .outerjoin(schema.config)
            .outerjoin(schema.fingerprint)
        )
        .order_by(_COLUMNS.id)
    )


def stored_rows(connection: sa.Connection, runs: Mapping[str, Run]) -> Iterator[Row]:
    """All measurements of runs, damaged ones too, by start of the run, and in the order in which they were stored."""
    share = dict[Any, Any]().setdefault  # equal values are one object
    measurements = _measurements(connection)
    for _, group in groupby(sorted(runs, key=lambda run: runs[run].started), lambda run: runs[run].started):
        statement = measurements.where(schema.run.c.run.in_([*group]))
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


def coverage(rows: Iterable[Row], runs: Mapping[str, Run]) -> dict[tuple[Problem, Config], Coverage]:
    """State of each config on each problem, of the rows of these runs, in the order of `stored_rows`."""
    newest: dict[tuple[Any, ...], str] = {}
    states: dict[tuple[Any, ...], Coverage] = {}  # by problem, config and fingerprint
    tritons = {run.id: run.software.get("triton", "") for run in runs.values()}
    nothing = Coverage(status="", fingerprint="", samples=0, median_ns=None)
    for row in rows:
        newest[row.problem, row.config] = row.fingerprint
        kernels = row.problem, row.config, row.fingerprint
        state = states.get(kernels, nothing)
        triton = tritons[row.run] if row.code else ""
        if row.code and state.code and not row.code.is_of(state.code, triton == state.triton):
            state = nothing  # another Triton, or a launch that no source shows
        decides = row.status in DECISIVE or state.status not in DECISIVE
        states[kernels] = Coverage(
            status=row.status if decides else state.status,
            fingerprint=row.fingerprint,
            samples=state.samples + len(row.samples) // 4,
            median_ns=state.median_ns if row.median is None else row.median,
            code=row.code if decides else state.code,
            triton=triton if decides else state.triton,
        )
    problems = {values: Problem.of(*values) for values, _ in newest}
    configs = {pair: read_config(*pair) for pair in {(values[0], text) for values, text in newest}}
    return {
        (problems[values], configs[values[0], text]): states[values, text, fingerprint]
        for (values, text), fingerprint in newest.items()
    }


def counts(connection: sa.Connection, runs: Mapping[str, Run]) -> list[Counted]:
    """Number of measurements of runs by problem and status; damaged ones included.

    Raises:
        TypeError: a problem is not stored.
    """
    numbers = Counter[tuple[Any, ...]]()
    for run, *problem, status, count in connection.execute(_COUNTS):
        numbers[run, *problem, status] += count
        if status != "ok":
            numbers[run, *problem, "ok"] -= count
    return [
        Counted(runs[run], Problem.of(*problem), status, count)
        for (run, *problem, status), count in numbers.items()
        if count and run in runs
    ]


def counts_by_kernels(connection: sa.Connection) -> Iterable[Any]:
    """Number of measurements by id of the run (None if it is lost), operator and fingerprint; damaged ones included."""
    return connection.execute(_COUNTS_BY_KERNELS)
