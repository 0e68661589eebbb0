"""Claims of problems: of sweeps that run at once for one request, each problem is measured by one.

In: a store and a request. Out: whether a problem is this sweep's. On PostgreSQL a claim is an advisory lock for each
problem, which the server frees when the connection of a sweep dies. An SQLite file takes one sweep of a request at a
time, by a lock on a file beside it that the system frees when the process dies.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import sqlalchemy as sa

from normtune.errors import NormtuneError
from normtune.kernels.problem import Problem
from normtune.results.database import schema
from normtune.results.database.connect import translated
from normtune.results.database.reading import stored_runs
from normtune.results.database.rows import PROBLEM_FIELDS
from normtune.results.records import Device

# Numbers of measurements that a transaction may have taken and not yet committed when a store was read.
_IN_FLIGHT = 100_000
# Seconds after which a server gives up a client that vanished without a word.
_KEEPALIVE = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}


class Seen(NamedTuple):
    """What a store held when it was read: the greatest number of a measurement, of all and of each problem."""

    last: int = 0
    of_problem: dict[tuple[object, ...], int] = {}  # noqa: RUF012 - never changed


class Claims:
    """The claims of one sweep; a context manager that gives them up at its end.

    Args:
        engine: of the store.
        reading: opens a connection to read the store.
        device: of the sweep; devices of its kind share their measurements.
        regime: of the sweep.
        request: key of the request; None where the unmeasured rest follows from the store.
        problems: of the request.
        seen: what the store held when the work was planned.

    Raises:
        NormtuneError: another sweep of the request writes to this SQLite store.
    """

    def __init__(
        self,
        engine: sa.Engine,
        path: Path | None,
        reading: Callable[[], AbstractContextManager[sa.Connection]],
        device: Device,
        regime: str,
        request: str | None,
        problems: Iterable[Problem],
        seen: Seen,
    ) -> None:
        self._reading, self._device, self._regime, self._seen = reading, device, regime, seen
        self._engine, self._answers = engine, dict[Problem, bool]()
        self._scope: list[object] = [*device.kind, regime, request or ""]
        self._connection: sa.Connection | None = None
        self._file: IO[bytes] | None = None
        if path is None:
            with translated(engine.url):
                self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                for name, value in _KEEPALIVE.items():
                    self._connection.exec_driver_sql(f"SET {name} = {value}")
        else:
            whole = [*self._scope, *sorted(str(problem.columns) for problem in problems)]
            self._file = _locked(Path(f"{path}-sweep-{_digest(whole).hex()}"))
            if self._file is None:
                raise NormtuneError(
                    f"another sweep of the same request writes to the store {path}: wait for its end, or name a "
                    "PostgreSQL store with --store, in which sweeps share the problems"
                )

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def claim(self, problem: Problem) -> bool:
        """Whether the problem is this sweep's: nobody else measures it, or has measured it since the work was planned.

        The answer stays the same. A claim is kept until `release`.

        Raises:
            NormtuneError: the database failed.
        """
        if problem not in self._answers:
            self._answers[problem] = self._is_free(problem) and not self._is_measured(problem)
        return self._answers[problem]

    def release(self) -> None:
        """Give all claims up."""
        if self._connection is not None:
            with suppress(sa.exc.SQLAlchemyError):
                self._connection.invalidate()  # the locks are those of the connection
                self._connection.close()
        if self._file is not None:
            with suppress(OSError):
                os.unlink(self._file.name)
            self._file.close()
        self._connection = self._file = None

    def _is_free(self, problem: Problem) -> bool:
        if self._connection is None:
            return self._file is not None
        key = int.from_bytes(_digest([*self._scope, *problem.columns]), "big", signed=True)
        with translated(self._engine.url):
            return bool(self._connection.execute(sa.select(sa.func.pg_try_advisory_lock(key))).scalar())

    def _is_measured(self, problem: Problem) -> bool:
        table, columns = schema.measurement, schema.problem.c
        is_it = [columns[name] == value for name, value in zip(PROBLEM_FIELDS, problem.columns, strict=True)]
        after = max(self._seen.of_problem.get(problem.columns, 0), self._seen.last - _IN_FLIGHT)
        newer = (
            sa.select(table.c.run_id)
            .join(schema.problem, columns.id == table.c.problem_id)
            .where(table.c.id > after, *is_it)
            .distinct()
        )
        with self._reading() as connection:
            numbers = set(connection.execute(newer).scalars())
            runs = stored_runs(connection) if numbers else []
            return any(
                run.device.kind == self._device.kind and run.regime == self._regime
                for number, run in runs
                if number in numbers
            )


def _digest(parts: Sequence[object]) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()


def _locked(path: Path) -> IO[bytes] | None:
    """The file, created and locked by this process; None if another has it."""
    while True:
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before removes its file at the end, maybe after this one was opened.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise NormtuneError(
                f"{path} cannot be locked ({error.strerror}): name another store with --store"
            ) from None
        file.close()
