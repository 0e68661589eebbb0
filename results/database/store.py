"""The store: every run and every measurement, in SQLite or PostgreSQL.

In: runs and measurements, one transaction per problem. Out: the state of each config (`coverage`), and all measurements
(`load`). Nothing is deleted. Only two things change: the protocol of a run, which also says whether the run is set
aside, and the fingerprint of measurements once the code of changed sources was compared. A measurement whose content
key is stored is ignored. A killed process loses at most the current transaction.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.arguments import checked
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.columns import COLUMNS, columns_of
from normtune.results.database import schema, sql_rows
from normtune.results.database.connect import WRITE, FileIdentity, connect, damaged, stored_version, translated
from normtune.results.database.reading import Snapshot, damage_line, wanted_runs
from normtune.results.database.url import DEFAULT_STORE, display_name, resolve_url, sqlite_path
from normtune.results.records import Coverage, Device, History, Measurement, Run
from normtune.results.regimes import COLD
from normtune.results.runs import ahead
from normtune.results.validate import check_columns

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

__all__ = ["DEFAULT_STORE", "Coverage", "Store", "Tally", "resolve_url"]


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


class Store:
    """An open store; a context manager that closes it. For one thread.

    Attributes:
        damaged: number of damaged measurements that the last `coverage` or `load` left out, by the text of their
            problem.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._file = FileIdentity(sqlite_path(engine.url))
        self.damaged: Mapping[str, int] = {}
        # Numbers of committed rows.
        self._problems: sql_rows.Numbers = {}
        self._configs: sql_rows.Numbers = {}

    @classmethod
    @checked
    def open(cls, url: str | os.PathLike[str] | None = None, *, create: bool = True) -> "Store":
        """Open a store.

        Args:
            url: file of an SQLite store, `sqlite:///FILE` or `postgresql://...`; None for NORMTUNE_STORE, else
                `normtune.db` in the current folder.
            create: whether the store will be written to, and created if it is missing.

        Raises:
            UsageError: the URL is of another kind; or the store or its folder does not exist, or it is no database or
                that of another program.
            NormtuneError: it is damaged, of a newer normtune, locked, or not writable although `create` is set.
        """
        return cls(connect(resolve_url(None if url is None else os.fspath(url)), create))

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; SQLite then folds its journal into the file."""
        self._engine.dispose()

    @property
    def name(self) -> str:
        """Name for messages."""
        return display_name(self._engine.url)

    @property
    def folder(self) -> Path | None:
        """Folder of the file of a SQLite store."""
        return self._file.folder

    @property
    def damage(self) -> str:
        """Line about measurements left out as damaged; empty if none were."""
        return damage_line(self.name, self.damaged) if self.damaged else ""

    def begin_run(self, run: Run) -> None:
        """Store a run, before its measurements; a stored run is not changed.

        Raises:
            ValueError: another run has that id.
            NormtuneError: the database failed.
        """
        with self._writing() as connection:
            sql_rows.add_runs(connection, [run])

    def update_run(self, run: Run) -> None:
        """Replace the protocol of a stored run.

        Raises:
            ValueError: the run is not stored.
            NormtuneError: the database failed.
        """
        with self._writing() as connection:
            sql_rows.set_protocol(connection, run)

    def drop(self, run: str, *, undo: bool = False) -> Run:
        """Set a run aside, as `normtune data drop` does: its measurements are kept, but not used.

        Args:
            run: its id, or the first characters of it.
            undo: whether to use the run again.

        Returns:
            The changed run.

        Raises:
            UsageError: there is no such run, there are several, or the run is in the wanted state already.
            NormtuneError: the database failed.
        """
        with self._writing() as connection:
            matches = [stored for _, stored in sql_rows.stored_runs(connection) if run and stored.id.startswith(run)]
            matches = [match for match in matches if match.id == run] or matches
            if len(matches) != 1:
                count = f"{len(matches)} runs have an id that begins so" if matches else "there is no such run"
                raise UsageError(f"run {run[:40]!r}: {count} in {self.name}; `normtune data list --runs` has all")
            (match,) = matches
            if match.is_dropped != undo:
                raise UsageError(f"run {match.id} is {'not ' if undo else ''}set aside: there is nothing to do")
            sql_rows.set_dropped(connection, match, None if undo else datetime.now(UTC).strftime("%Y-%m-%d"))
            return next(stored for _, stored in sql_rows.stored_runs(connection) if stored.id == match.id)

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Store measurements, all or none; those whose content key is stored are ignored.

        Raises:
            ValueError: a measurement breaks a rule of `validate`, or its run is not stored.
            NormtuneError: the database failed; nothing of this call is stored.
        """
        columns = columns_of(measurements)
        check_columns(columns)
        with self._writing() as connection:
            numbers = self._insert(connection, columns)
        self._problems, self._configs = numbers

    def set_fingerprints(self, device: Device, fingerprints: Mapping[tuple[Problem, Config], tuple[str, str]]) -> None:
        """Change the fingerprints of measurements on devices of this kind, all or none.

        `fingerprints` has (old, new) by problem and config; measurements with another old one are not changed.

        Raises:
            NormtuneError: the database failed; nothing of this call is stored.
        """
        if not fingerprints:
            return
        with self._writing() as connection:
            runs = wanted_runs(connection, device.kind)
            texts = {(problem.columns, config.to_json()): new for (problem, config), new in fingerprints.items()}
            sql_rows.set_fingerprints(connection, runs, texts)

    def merge(self, evidence: "Evidence") -> int:
        """Store the runs and measurements that are not stored yet, all or none.

        Returns:
            Number of new measurements.

        Raises:
            ValueError: a run of that id is stored with another device, software or start, or a run started after
                tomorrow.
            NormtuneError: the database failed; nothing of this call is stored.
        """
        for run in ahead(evidence.runs):
            raise ValueError(
                f"run {run.id} started {run.started[:40]}, after tomorrow by this machine's clock, and would be the "
                "newest until then"
            )
        # Only the owner of this store decides which runs are set aside.
        runs = [
            run._replace(protocol={name: value for name, value in run.protocol.items() if name != "dropped"})
            for run in evidence.runs
        ]
        with self._writing() as connection:
            sql_rows.add_runs(connection, runs)
            before = sql_rows.count_measurements(connection)
            numbers = self._insert(connection, {name: evidence.frame[name].tolist() for name in COLUMNS})
            added = sql_rows.count_measurements(connection) - before
        self._problems, self._configs = numbers
        return added

    def export(self, path: str | os.PathLike[str], *, regime: str | None = COLD) -> "Evidence":
        """Write the measurements to a file, as `normtune data export` does.

        Args:
            path: of the file, `.parquet` (to import or to fit elsewhere) or `.csv` (a line per sample).
            regime: only times measured `cold`, `warm` or `eager`; None for all.

        Returns:
            The written measurements.

        Raises:
            UsageError: the file has another ending or must not be overwritten, or there are no such measurements.
            NormtuneError: the store cannot be read, or the file cannot be written.
        """
        from normtune.results.exchange.transfer import export_file

        return export_file(lambda: self.load(regime=None), Path(path), regime).evidence

    def import_parquet(self, path: str | os.PathLike[str]) -> int:
        """Add the measurements of a Parquet file, as `normtune data import` does; stored ones are not changed.

        Returns:
            Number of new measurements.

        Raises:
            NormtuneError: the file cannot be read or contradicts the store; nothing of it is stored.
        """
        from normtune.results.exchange.transfer import merged, read_files

        (result,) = merged(read_files([path]), self.merge)
        return result.added

    def runs(self, *, dropped: bool = False) -> list[Run]:
        """All runs, by start and id, including those without measurements; with `dropped`, also those set aside."""
        with self._reading() as connection:
            return [run for _, run in sql_rows.stored_runs(connection) if dropped or not run.is_dropped]

    @property
    def ahead(self) -> str:
        """Line about runs that started after tomorrow; empty if there are none."""
        runs = ahead(self.runs())
        if not runs:
            return ""
        more = f", and {len(runs) - 1} more" if len(runs) > 1 else ""
        return (
            f"run {runs[-1].id} of the store {self.name} started {runs[-1].started[:40]}, after tomorrow{more}, and "
            f"outranks all measurements until then: `normtune data drop {runs[-1].id}` sets it aside"
        )

    def recount(self, run: str) -> int:
        """Number of measurements of a run in the file of the database, read by a new connection.

        Raises:
            NormtuneError: the database failed, or its file is not the one that was opened.
        """
        self.close()
        self._file.check()
        with self._reading() as connection:
            runs = {number: stored for number, stored in sql_rows.stored_runs(connection) if stored.id == run}
            return Snapshot(connection, stored_version(connection), runs).count()

    def tally(self) -> list[Tally]:
        """Number of measurements by device, operator and fingerprint, except those of runs set aside.

        Raises:
            NormtuneError: the database failed.
        """
        table = schema.measurement
        grouped = (table.c.run_id, schema.problem.c.operator, table.c.fingerprint)
        with self._reading() as connection:
            runs = dict(sql_rows.stored_runs(connection))
            rows = connection.execute(
                sa.select(*grouped, sa.func.count())
                .join(schema.problem, schema.problem.c.id == table.c.problem_id)
                .group_by(*grouped)
            ).all()
            devices = {run.device.kind: run.device for run in runs.values()}
            counts: Counter[tuple[Device, str, str]] = Counter()
            for run, operator, fingerprint, count in rows:
                if not runs[run].is_dropped:
                    counts[devices[runs[run].device.kind], operator, fingerprint] += count
            return [Tally(*key, counts[key]) for key in sorted(counts)]

    def coverage(self, device: Device, regime: str = COLD) -> dict[tuple[Problem, Config], Coverage]:
        """State of each config on each problem on devices of this kind, in one regime, failures and the copy included.

        The newest measurement is that of the run that started last; within a run and second, the one stored last. With
        the same kernels, a success outranks any failure but a wrong result. Damaged measurements, unpaired ones and
        those of runs set aside are left out.
        """
        with self._reading() as connection:
            return self._measured(connection, device, regime).coverage()

    def history(self, device: Device, regime: str, request: str, operators: Collection[str]) -> History:
        """What a request that was interrupted measured, and what `coverage` was before; empty if it was not the last.

        Args:
            device: of a kind whose measurements count.
            regime: of the measurements.
            request: its key, the entry `records.REQUEST` of the protocol of its runs.
            operators: names of the operators whose measurements count.
        """
        with self._reading() as connection:
            return self._measured(connection, device, regime).history(request, operators)

    def load(self, *, devices: Collection[str] | None = None, regime: str | None = COLD) -> "Evidence":
        """All measurements except those of runs set aside, 300,000 in a few seconds.

        The identifier of a GPU is replaced by a salted hash. Damaged measurements are left out and counted in
        `damaged`.

        Args:
            devices: labels of the devices; None for all.
            regime: of the measurements; None for all.

        Raises:
            NormtuneError: the database failed, or its content breaks a rule of `validate`.
        """
        with self._reading() as connection:
            return self._snapshot(connection, wanted_runs(connection, devices=devices, regime=regime)).evidence()

    def _measured(self, connection: sa.Connection, device: Device, regime: str) -> Snapshot:
        """The measurements of this program on devices of a kind, in a regime."""
        runs = wanted_runs(connection, device.kind, regime=regime)
        return self._snapshot(connection, {number: run for number, run in runs.items() if not run.is_unpaired})

    def _snapshot(self, connection: sa.Connection, runs: Mapping[int, Run]) -> Snapshot:
        snapshot = Snapshot(connection, stored_version(connection), runs)
        self.damaged = snapshot.damaged
        return snapshot

    def _insert(
        self, connection: sa.Connection, columns: Mapping[str, Sequence[Any]]
    ) -> tuple[sql_rows.Numbers, sql_rows.Numbers]:
        """Insert measurements; returns the numbers of problems and configs, to be kept after the commit."""
        run_numbers = sql_rows.run_numbers(connection, set(columns["run"]))
        for unknown in sorted(set(columns["run"]) - set(run_numbers)):
            raise ValueError(f"run {unknown!r} is not known: begin_run comes first")
        shapes = set(zip(*(columns[name] for name in sql_rows.PROBLEM_FIELDS), strict=True))
        texts = {(text,) for text in columns["config"]}
        problems = sql_rows.numbers_of(connection, schema.problem, sql_rows.PROBLEM_FIELDS, shapes, self._problems)
        configs = sql_rows.numbers_of(connection, schema.config, ("config",), texts, self._configs)
        sql_rows.add_measurements(connection, columns, run_numbers, problems, configs)
        return problems, configs

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A connection in one snapshot; NormtuneError if the database fails or has content of others."""
        with translated(self._engine.url), self._engine.connect() as connection:
            try:
                yield connection
            # A flipped bit may turn a text into a number, or a reference into a wrong one.
            except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
                reason = str(error)[:200] if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                raise NormtuneError(damaged(display_name(self._engine.url), reason)) from None

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction, committed at the end or rolled back; NormtuneError if the database or its file is at fault."""
        self._file.check()
        with (
            translated(self._engine.url),
            self._engine.connect().execution_options(**WRITE) as connection,
            connection.begin(),
        ):
            yield connection
        self._file.check()
