"""Numbers of measurements, from indexes where there are some: no sample is read.

In: a connection. Out: counts by the numbers of runs.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from normtune.kernels.problem import Problem
from normtune.results.database import schema
from normtune.results.database.older import older_table
from normtune.results.database.rows import PROBLEM_FIELDS, stored_numbers
from normtune.results.records import Device


class Tally(NamedTuple):
    """Number of measurements of one operator with one version of its kernels on devices of one kind.

    Attributes:
        device: one device of the kind.
        operator: without its variant.
        fingerprint: of the kernels.
        measurements: their number.
    """

    device: Device
    operator: str
    fingerprint: str
    measurements: int


def by_status(connection: sa.Connection) -> Iterator[tuple[int, Problem, str, int]]:
    """Number of measurements by run, problem and status.

    Raises:
        KeyError: a problem is not stored.
    """
    table = schema.measurement
    stored = stored_numbers(connection, schema.problem, PROBLEM_FIELDS)
    problems = {number: Problem.of(*values) for number, values in stored.items()}
    place = table.c.run_id, table.c.problem_id
    failed: Counter[tuple[int, int]] = Counter()
    # In two statements, each answered by an index; with the status in one, every measurement would be read.
    failures = sa.select(*place, table.c.status, sa.func.count()).where(table.c.status != "ok")
    for run, problem, status, count in connection.execute(failures.group_by(*place, table.c.status)).all():
        failed[run, problem] += count
        yield run, problems[problem], status, count
    for run, problem, count in connection.execute(sa.select(*place, sa.func.count()).group_by(*place)).all():
        if count > failed[run, problem]:
            yield run, problems[problem], "ok", count - failed[run, problem]


def by_kernels(connection: sa.Connection, version: int) -> Iterator[tuple[int, str, str, int]]:
    """Number of measurements by run, operator and fingerprint."""
    table: Any = schema.measurement
    problem = schema.problem
    if version >= schema.SCHEMA_VERSION:
        fingerprint = schema.fingerprint.c.fingerprint
        joined: Any = table.join(schema.fingerprint, schema.fingerprint.c.id == table.c.fingerprint_id)
    else:
        joined = table = older_table()
        fingerprint = table.c.fingerprint
    columns = table.c.run_id, problem.c.operator, fingerprint
    joined = joined.join(problem, problem.c.id == table.c.problem_id)
    yield from connection.execute(sa.select(*columns, sa.func.count()).select_from(joined).group_by(*columns))
