"""Read a store in one snapshot, checked against its checksums.

In: a connection. Out: the state of each config (`coverage`), all measurements (`evidence`), those of a request in their
order (`history`), and the number of damaged ones, which are left out. `store` connects and writes.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from normtune.kernels.config import Config
from normtune.kernels.operator import read_config
from normtune.kernels.problem import Problem
from normtune.results.database import schema, sql_rows
from normtune.results.records import DECISIVE, REQUEST, Coverage, History, Measurement, Run, TimedCode
from normtune.results.runs import anonymous

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Number of problems with damaged measurements that a message names.
_NAMED = 3


class _Row(NamedTuple):
    """A stored measurement: run and problem by number, the config as text; `number` is its own, in the order stored."""

    run: int
    problem: int
    config: str
    fingerprint: str
    status: str
    reason: str
    median: int | None
    low: int | None
    high: int | None
    rounds: bytes
    samples: bytes
    launch: bytes | None
    code: bytes | None
    machine_code: bytes | None
    number: int

    @property
    def timed_code(self) -> TimedCode | None:
        return TimedCode(self.launch, self.code or b"", self.machine_code or b"") if self.launch else None


class Snapshot:
    """The undamaged measurements of some runs.

    Args:
        connection: in a transaction.
        version: of the schema of the store.
        runs: the runs to read, by number.

    Attributes:
        damaged: number of damaged measurements, by the text of their problem.
    """

    def __init__(self, connection: sa.Connection, version: int, runs: Mapping[int, Run]) -> None:
        self._runs = runs
        self._problems = sql_rows.stored_numbers(connection, schema.problem, sql_rows.PROBLEM_FIELDS)
        configs = sql_rows.stored_numbers(connection, schema.config, ("config",))
        self._texts = {number: sql_rows.problem_text(values) for number, values in self._problems.items()}
        self.damaged: Counter[str] = Counter()
        table = schema.measurement
        rows = connection.execute(
            sa.select(
                *(table.c.run_id, table.c.problem_id, table.c.config_id, table.c.fingerprint, table.c.status),
                *(table.c.reason, table.c.median, table.c.low, table.c.high, table.c.rounds, table.c.samples),
                *(table.c[name] if version >= since else sa.null() for name, since in reversed(schema.ADDED.items())),
                table.c.id,
            )
            .join(schema.run, schema.run.c.id == table.c.run_id)
            .where(table.c.run_id.in_(list(runs)))
            .order_by(schema.run.c.started, table.c.id)
        )
        self._rows: list[_Row] = []
        for run, problem, config, *values, machine, code, launch, checksum, number in rows:
            # Without a checksum, a wrong reference is an error here, and `validate` checks the values.
            text = configs[config][0] if checksum is None else configs.get(config, ("",))[0]
            row = _Row(run, problem, text, *[*values, launch, code, machine, number])
            if checksum is None or self._is_whole(row, checksum):
                self._rows.append(row)
            else:
                self.damaged[self._texts.get(problem, "an unknown problem")] += 1

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
            rounds, samples = sql_rows.arrays_of([row.rounds, row.samples])
            values = row.fingerprint, row.status, row.reason, rounds, samples, row.timed_code
            log.append(Measurement(problem, config, self._runs[row.run].id, *values))
        return History(self.coverage(rows[first].number) if log else {}, log)

    def coverage(self, before: float = math.inf) -> dict[tuple[Problem, Config], Coverage]:
        """State of each config on each problem, over all runs, or over the measurements with lesser numbers.

        The newest measurement is that of the run that started last; within a run and second, the one stored last.
        """
        best: dict[tuple[int, str, str], _Row] = {}
        samples: Counter[tuple[int, str, str]] = Counter()
        medians: dict[tuple[int, str, str], int] = {}
        newest: dict[tuple[int, str], _Row] = {}
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

        columns_of_rows = _transposed(self._rows, len(_Row._fields))
        run, problem, config, fingerprint, status, reason, _, _, _, rounds, samples, *_ = columns_of_rows
        shapes = _transposed([self._problems[number] for number in problem], len(sql_rows.PROBLEM_FIELDS))
        columns: dict[str, Sequence[Any]] = {
            **dict(zip(sql_rows.PROBLEM_FIELDS, shapes, strict=True)),
            "config": config,
            "run": [self._runs[number].id for number in run],
            "fingerprint": fingerprint,
            "status": status,
            "reason": reason,
            "rounds": sql_rows.arrays_of(rounds),
            "samples": sql_rows.arrays_of(samples),
            "code": [row.timed_code for row in self._rows],
        }
        return Evidence.from_columns(columns, map(anonymous, self._runs.values()))

    def count(self) -> int:
        """Number of undamaged measurements."""
        return len(self._rows)

    def _is_whole(self, row: _Row, checksum: int) -> bool:
        try:
            values = row[2:9]
            content = (self._runs[row.run].id, self._texts[row.problem], values, row.rounds, row.samples)
            return sql_rows.checksum(*content) == checksum
        except (LookupError, TypeError, UnicodeError):
            return False


def damage_line(name: str, damaged: Mapping[str, int]) -> str:
    """Message about the damaged measurements of a store; empty if there are none."""
    problems = sorted(damaged)
    named = ", ".join(f"{problem} ({damaged[problem]})" for problem in problems[:_NAMED])
    more = f" and of {len(problems) - _NAMED} more problems" if len(problems) > _NAMED else ""
    count = sum(damaged.values())
    return f"the store {name} has {count} damaged measurement{'s' * (count != 1)}, left out here: {named}{more}"


def _transposed(rows: Sequence[Sequence[Any]], width: int) -> list[tuple[Any, ...]]:
    """Columns of rows; without rows, `width` empty columns."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


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
