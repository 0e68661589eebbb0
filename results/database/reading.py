"""Read a store in one snapshot, checked against its checksums.

In: a connection. Out: the state of each config (`coverage`), all measurements (`evidence`), those of a request in their
order (`history`), and the number of damaged ones, which are left out. `store` connects and writes.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import sqlalchemy as sa

from normtune.kernels.config import Config
from normtune.kernels.operator import read_config
from normtune.kernels.problem import Problem
from normtune.results.database import schema, sql_rows
from normtune.results.database.older import OlderRows
from normtune.results.database.rows import Row, Rows, arrays_of, columns_of
from normtune.results.records import DECISIVE, REQUEST, Coverage, History, Measurement, Run
from normtune.results.runs import anonymous

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Number of problems with damaged measurements that a message names.
_NAMED = 3


class Snapshot:
    """The undamaged measurements of some runs.

    Args:
        connection: in a transaction.
        version: of the schema of the store.
        runs: the runs to read, by number.

    Attributes:
        damaged: number of damaged measurements, by the text of their problem.
        newest: the greatest number of a measurement, by the fields of its problem.
    """

    def __init__(self, connection: sa.Connection, version: int, runs: Mapping[int, Run]) -> None:
        self._runs = runs
        reader = rows_of(connection, version)
        self._problems = reader.problems
        self.damaged: Counter[str] = Counter()
        self._rows = list(reader.undamaged(runs, self.damaged))
        self.newest = {
            self._problems[number]: last for number, last in reader.newest.items() if number in self._problems
        }

    def history(self, request: str, operators: Collection[str]) -> History:
        """The newest measurements of these operators, as long as they are of a request, and the state before these."""
        mine = {number for number, values in self._problems.items() if values[0] in operators}
        rows = sorted((row for row in self._rows if row.problem in mine), key=lambda row: row.number)
        first = len(rows)
        while first and self._runs[rows[first - 1].run].protocol.get(REQUEST) == request:
            first -= 1
        log = []
        for row in rows[first:]:
            problem = Problem.of(*self._problems[row.problem])
            config = read_config(problem.operator, row.config)
            rounds, samples = arrays_of([row.rounds, row.samples])
            values = row.fingerprint, row.status, row.reason, rounds, samples, row.timed_code
            log.append(Measurement(problem, config, self._runs[row.run].id, *values))
        return History(self.coverage(rows[first].number) if log else {}, log)

    def coverage(self, before: float = math.inf) -> dict[tuple[Problem, Config], Coverage]:
        """State of each config on each problem, over all runs, or over the measurements with lesser numbers.

        The newest measurement is that of the run that started last; within a run and second, the one stored last.
        """
        best: dict[tuple[int, str, str], Row] = {}
        samples: Counter[tuple[int, str, str]] = Counter()
        medians: dict[tuple[int, str, str], int] = {}
        newest: dict[tuple[int, str], Row] = {}
        for row in self._rows:
            if row.number >= before:
                continue
            newest[row.problem, row.config] = row
            kernels = (row.problem, row.config, row.fingerprint)
            if row.status in DECISIVE or kernels not in best or best[kernels].status not in DECISIVE:
                best[kernels] = row
            samples[kernels] += len(row.samples) // 4
            if row.median is not None:
                medians[kernels] = row.median
        problems = {number: Problem.of(*values) for number, values in self._problems.items()}
        pairs = {(problems[number].operator, text) for number, text in newest}
        configs = {pair: read_config(*pair) for pair in pairs}
        return {
            (problems[problem], configs[problems[problem].operator, text]): Coverage(
                row.status,
                row.fingerprint,
                samples[problem, text, row.fingerprint],
                medians.get((problem, text, row.fingerprint)),
                code := row.timed_code,
                self._runs[row.run].software.get("triton", "") if code else "",
            )
            for (problem, text), last in newest.items()
            if (row := best[problem, text, last.fingerprint])
        }

    def evidence(self) -> "Evidence":
        """All measurements, without the identifiers of GPUs.

        Raises:
            ValueError: it breaks a rule of `validate`.
        """
        from normtune.results.evidence import Evidence  # loads pandas, which a sweep does not need

        columns = columns_of(self._rows, self._problems, self._runs)
        return Evidence.from_columns(columns, map(anonymous, self._runs.values()))

    def count(self) -> int:
        """Number of undamaged measurements."""
        return len(self._rows)


def rows_of(connection: sa.Connection, version: int) -> Rows:
    """The reader of a store's measurements."""
    return Rows(connection) if version >= schema.SCHEMA_VERSION else OlderRows(connection, version)


def damage_line(name: str, damaged: Mapping[str, int]) -> str:
    """Message about the damaged measurements of a store; empty if there are none."""
    problems = sorted(damaged)
    named = ", ".join(f"{problem} ({damaged[problem]})" for problem in problems[:_NAMED])
    more = f" and of {len(problems) - _NAMED} more problems" if len(problems) > _NAMED else ""
    count = sum(damaged.values())
    return f"the store {name} has {count} damaged measurement{'s' * (count != 1)}, left out here: {named}{more}"


def wanted_runs(
    connection: sa.Connection, kind: object = None, devices: Collection[str] | None = None, regime: str | None = None
) -> dict[int, Run]:
    """Runs by number, of these devices and this regime (None for all), except those set aside."""
    return {
        number: run
        for number, run in sql_rows.stored_runs(connection)
        if not run.is_dropped
        and kind in (None, run.device.kind)
        and (devices is None or run.device.label in devices)
        and regime in (None, run.regime)
    }
