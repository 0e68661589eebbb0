"""The store: every run and every measurement, in SQLite or PostgreSQL.

In: runs and measurements, one transaction per problem. Out: the state of each config (`coverage`), and all measurements
(`load`). Nothing is deleted. Only two things change: the protocol of a run, which also says whether the run is set
aside, and the fingerprint of measurements once the code of changed sources was compared. A measurement whose content
key is stored is ignored. A killed process loses at most the current transaction.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from normtune.errors import UsageError
from normtune.kernels.arguments import checked
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.columns import COLUMNS, columns_of
from normtune.results.database import reading, writing
from normtune.results.database.connect import WRITE, connect, readable, translated
from normtune.results.database.reading import stored_rows, stored_runs, used_runs
from normtune.results.database.rows import Row, columns_of_rows, rows_of
from normtune.results.database.sqlite_file import SqliteFile
from normtune.results.database.url import StoreUrl
from normtune.results.records import Counted, Coverage, Device, Measurement, Run, Tally
from normtune.results.regimes import COLD
from normtune.results.runs import (
    DROPPED,
    DROPS,
    ahead,
    anonymous,
    changes,
    check_same,
    drops,
    of_store,
    without_store,
)
from normtune.results.validate import check_columns

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# Number of problems with damaged measurements that a message names.
_NAMED = 3
# Number of measurements that a merge reads at once.
_AT_ONCE = 20_000


class Store:
    """An open store; a context manager that closes it. For one thread.

    All methods raise `NormtuneError` if the database fails, or has content that normtune did not write. Those that
    write store nothing then.

    Attributes:
        damaged: number of damaged measurements that the last `coverage` or `load` left out, by the text of their
            problem.
    """

    def __init__(self, url: StoreUrl, engine: sa.Engine) -> None:
        self._url, self._engine = url, engine
        self._file = None if url.path is None else SqliteFile(url.path)
        self.damaged: Counter[str] = Counter()

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
        return cls.at(StoreUrl.of(url), create=create)

    @classmethod
    def at(cls, url: StoreUrl, *, create: bool = True) -> "Store":
        """Open the store of a URL that was read before. Otherwise as `open`."""
        return cls(url, connect(url, create))

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; SQLite then folds its journal into the file."""
        self._engine.dispose()

    @property
    def name(self) -> str:
        """Name for messages."""
        return self._url.name

    @property
    def option(self) -> str:
        """The words of a printed command that name this store, as ` --store FILE`."""
        return self._url.option

    @property
    def folder(self) -> Path | None:
        """Folder of the file of a SQLite store."""
        return self._file.path.parent if self._file else None

    @property
    def damage(self) -> str:
        """Line about measurements left out as damaged; empty if none were."""
        if not self.damaged:
            return ""
        problems, count = sorted(self.damaged), self.damaged.total()
        named = ", ".join(f"{problem} ({self.damaged[problem]})" for problem in problems[:_NAMED])
        more = f" and of {len(problems) - _NAMED} more problems" if len(problems) > _NAMED else ""
        return (
            f"the store {self.name} has {count} damaged measurement{'s' * (count != 1)}, left out here: {named}{more}"
        )

    @property
    def ahead(self) -> str:
        """Line about runs that started after tomorrow; empty if there are none."""
        runs = ahead(self.runs())
        if not runs:
            return ""
        more = f", and {len(runs) - 1} more" if len(runs) > 1 else ""
        return (
            f"run {runs[-1].id} of the store {self.name} started {runs[-1].started[:40]}, after tomorrow{more}, and "
            f"outranks all measurements until then: `normtune data drop {runs[-1].id}{self.option}` sets it aside"
        )

    def begin_run(self, run: Run) -> None:
        """Store a run, before its measurements; a stored run is not changed.

        Raises:
            ValueError: another run has that id.
        """
        with self._writing() as connection:
            stored = stored_runs(connection).get(run.id)
            if stored is None:
                writing.add_run(connection, run)
            else:
                check_same(stored, run)

    def update_run(self, run: Run) -> None:
        """Replace the protocol of a stored run, but not whether it is set aside.

        Raises:
            ValueError: the run is not stored.
        """
        with self._writing() as connection:
            stored = stored_runs(connection).get(run.id)
            if stored is None:
                raise ValueError(f"run {run.id!r} is not known: begin_run comes first")
            writing.write_protocol(connection, run._replace(protocol=run.protocol | of_store(stored.protocol)))

    def drop(self, run: str, *, undo: bool = False) -> Run:
        """Set a run aside, as `normtune data drop` does: its measurements are kept, but not used.

        No request counts as completed any more, as it may have relied on them.

        Args:
            run: its id, or the first characters of it.
            undo: whether to use the run again.

        Returns:
            The changed run.

        Raises:
            UsageError: there is no such run, there are several, or the run is in the wanted state already.
        """
        with self._writing() as connection:
            matches = [stored for stored in stored_runs(connection).values() if run and stored.id.startswith(run)]
            matches = [match for match in matches if match.id == run] or matches
            if len(matches) != 1:
                count = f"{len(matches)} runs have an id that begins so" if matches else "there is no such run"
                every = f"`normtune data list --runs{self.option}` has all"
                raise UsageError(f"run {run[:40]!r}: {count} in {self.name}; {every}")
            (match,) = matches
            if match.is_dropped != undo:
                raise UsageError(f"run {match.id} is {'not ' if undo else ''}set aside: there is nothing to do")
            day = {} if undo else {DROPPED: datetime.now(UTC).strftime("%Y-%m-%d")}
            protocol = without_store(match.protocol) | {DROPS: drops(match.protocol) + 1} | day
            changed = match._replace(protocol=protocol)
            writing.write_protocol(connection, changed)
            writing.forget_completions(connection)
            return changed

    def complete(self, run: str, request: str) -> None:
        """Say that a stored run completed a request, of which this is the key: nothing is left to measure for it."""
        with self._writing() as connection:
            writing.complete(connection, [(run, request)])

    def completed_requests(self, device: Device, regime: str) -> set[str]:
        """Keys of the requests that runs on devices of this kind completed, in one regime."""
        with self._reading() as connection:
            runs = used_runs(connection, device.kind, regime=regime)
            return {request for run, request in reading.completions(connection) if run in runs}

    def sweeping(
        self, device: Device, regime: str, request: str | None, problems: Iterable[Problem]
    ) -> AbstractContextManager[None]:
        """Holds an SQLite store for one sweep of a request; a PostgreSQL store takes any number.

        Args:
            device: of the sweep; devices of its kind share their measurements.
            regime: of the sweep.
            request: key of the request; None where the unmeasured rest follows from the store.
            problems: of the request.

        Raises:
            NormtuneError: another sweep of the request writes to this store; raised when it is entered.
        """
        parts = [*device.kind, regime, request or "", *sorted(str(problem.columns) for problem in problems)]
        return self._file.locked(parts) if self._file else nullcontext()

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Store measurements, all or none; those whose content key is stored are ignored.

        Raises:
            ValueError: a measurement breaks a rule of `validate`, or its run is not stored.
        """
        columns = columns_of(measurements)
        check_columns(columns)
        with self._writing() as connection:
            writing.add(connection, rows_of(columns))

    def set_fingerprints(self, device: Device, fingerprints: Mapping[tuple[Problem, Config], tuple[str, str]]) -> None:
        """Change the fingerprints of measurements on devices of this kind, all or none.

        `fingerprints` has (old, new) by problem and config; measurements with another old one are not changed.
        """
        if not fingerprints:
            return
        texts = {(problem.columns, config.to_json()): new for (problem, config), new in fingerprints.items()}
        with self._writing() as connection:
            changed = []
            for row in stored_rows(connection, used_runs(connection, device.kind)):
                old, new = texts.get((row.problem, row.config), ("", ""))
                if row.fingerprint == old and not row.is_damaged:  # the checksum of a damaged one must stay wrong
                    changed.append(row._replace(fingerprint=new, revision=row.revision + 1))
            writing.replace(connection, changed)

    def merge(self, data: "Evidence | Store") -> int:
        """Store the runs and measurements that are not stored yet, all or none, as `normtune data merge` does.

        The result does not depend on the order of merges, nor on how often one is repeated: of a measurement that was
        changed in one of two stores the changed one is kept, and a whole one in place of a damaged one.

        A request counts as completed where it did so in a store that has been told of all runs that are set aside now.
        What it relied on is merged along with it, so one of a store with damaged measurements does not come along.

        Args:
            data: measurements, which say nothing about which runs are set aside; or another store, whose runs set aside
                are so here, too, unless they were taken back here.

        Returns:
            Number of new measurements.

        Raises:
            ValueError: a run of that id is stored with another device, software or start, a run started after
                tomorrow, or its regime is unknown.
        """
        return self.joined(data)[1]

    def joined(self, data: "Evidence | Store") -> tuple[int, int]:
        """Merge data; returns the number of its measurements, and of the new ones among them."""
        with self._writing() as connection:
            if isinstance(data, Store):
                return self._join_store(connection, data)
            # Only the owner of a store decides which runs are set aside.
            writing.merge_runs(connection, [run._replace(protocol=without_store(run.protocol)) for run in data.runs])
            rows = rows_of({name: data.frame[name].tolist() for name in COLUMNS})
            return len(rows), writing.merge(connection, rows)

    def _join_store(self, connection: sa.Connection, other: "Store") -> tuple[int, int]:
        """Merge another store, without the identifiers of its GPUs."""
        with other._reading() as source:
            stored, completions = stored_runs(source), reading.completions(source)
        aside = writing.merge_runs(connection, [anonymous(run) for run in stored.values()])
        count = added = 0
        for rows in other._batches(stored):
            count, added = count + len(rows), added + writing.merge(connection, rows)
        if aside == changes(stored.values()) and not other.damaged:
            writing.complete(connection, completions)
        return count, added

    def runs(self, *, dropped: bool = False) -> list[Run]:
        """All runs, by start and id, including those without measurements; with `dropped`, also those set aside."""
        with self._reading() as connection:
            return [*(stored_runs if dropped else used_runs)(connection).values()]

    def recount(self, run: str) -> int:
        """Number of measurements of a run in the file of the database, read by a new connection.

        Raises:
            NormtuneError: its file is not the one that was opened.
        """
        self.close()
        self._check_file()
        with self._reading() as connection:
            runs = {run: stored} if (stored := stored_runs(connection).get(run)) else {}
            return sum(not row.is_damaged for row in stored_rows(connection, runs))

    def tally(self) -> list[Tally]:
        """Number of measurements by device, operator and fingerprint, except those of runs set aside."""
        with self._reading() as connection:
            runs = stored_runs(connection)
            devices = {run.device.kind: run.device for run in runs.values()}
            counts: Counter[tuple[Device, str, str]] = Counter()
            for run, operator, fingerprint, count in reading.counts_by_kernels(connection):
                if not runs[run].is_dropped:
                    counts[devices[runs[run].device.kind], operator, fingerprint] += count
            return [Tally(*key, counts[key]) for key in sorted(counts)]

    def counts(self) -> list[Counted]:
        """Number of measurements by run, problem and status, except those of runs set aside, damaged ones included.

        Reads no sample: 10 million measurements take a second.
        """
        with self._reading() as connection:
            return reading.counts(connection, used_runs(connection))

    def coverage(self, device: Device, regime: str = COLD) -> dict[tuple[Problem, Config], Coverage]:
        """State of each config on each problem on devices of this kind, in one regime, failures and the copy included.

        The newest measurement is that of the run that started last; within a run and second, the one stored last. With
        the same kernels, a success outranks any failure but a wrong result. Damaged measurements, unpaired ones and
        those of runs set aside are left out.
        """
        with self._reading() as connection:
            runs = used_runs(connection, device.kind, regime=regime)
            paired = {name: run for name, run in runs.items() if not run.is_unpaired}
            return reading.coverage(self._whole(connection, paired), paired)

    def load(self, *, devices: Collection[str] | None = None, regime: str | None = COLD) -> "Evidence":
        """All measurements except those of runs set aside, 300,000 in a few seconds.

        The identifier of a GPU is replaced by a salted hash. Damaged measurements are left out and counted in
        `damaged`.

        Args:
            devices: labels of the devices; None for all.
            regime: of the measurements; None for all.
        """
        from normtune.results.evidence import Evidence  # loads pandas, which a sweep does not need

        with self._reading() as connection:
            runs = used_runs(connection, devices=devices, regime=regime)
            columns = columns_of_rows([*self._whole(connection, runs)])
            return Evidence.from_columns(columns, map(anonymous, runs.values()))

    def _batches(self, runs: Mapping[str, Run]) -> Iterator[list[Row]]:
        """The checked rows of runs, some at once, and without damaged ones."""
        with self._reading() as connection:
            whole = self._whole(connection, runs)
            while rows := [*islice(whole, _AT_ONCE)]:
                check_columns(columns_of_rows(rows))
                yield rows

    def _whole(self, connection: sa.Connection, runs: Mapping[str, Run]) -> Iterator[Row]:
        """The rows of runs that are not damaged; `damaged` counts the others."""
        self.damaged = Counter()
        for row in stored_rows(connection, runs):
            if row.is_damaged:
                self.damaged[row.place] += 1
            else:
                yield row

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A connection in one snapshot; NormtuneError if the database fails or has content of others."""
        with translated(self.name), self._engine.connect() as connection, readable(self.name):
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction, committed at the end or rolled back; NormtuneError if the database or its file is at fault."""
        self._check_file()
        with (
            translated(self.name),
            self._engine.connect().execution_options(**WRITE) as connection,
            connection.begin(),
        ):
            yield connection
        self._check_file()

    def _check_file(self) -> None:
        if self._file:
            self._file.check()
