"""Writes a run to the store, and keeps it in memory until the store is verified.

In: a store, a run and its measurements: `add` keeps those of a task, `flush` stores them while the next task is
measured. Out: rows in the store, verified at the end; or, if the store fails or disappears, a Parquet file beside it
for `normtune data merge`, and an error that names the file.
"""

import platform
import shlex
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.results.database.store import Store
from normtune.results.parallel.interrupts import shielded
from normtune.results.records import SEARCHED, Measurement, Outcome, Run
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Plan, Task


class RunWriter:
    """Writes a new run to a store."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._held: list[Measurement] = []
        self._stored = 0
        self._failed = False
        self.run = run

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Keep the measurements of a task in memory, until `flush`."""
        self._held += measurements

    def flush(self) -> None:
        """Store the measurements that are not stored yet, and before the first ones the run.

        Raises:
            NormtuneError: the store failed or is gone; the whole run is in the file that the message names.
        """
        if len(self._held) == self._stored or self._failed:
            return
        with shielded():
            try:
                if not self._stored:
                    self._store.begin_run(self.run)
                self._store.add(self._held[self._stored :])
                self._stored = len(self._held)
            except (NormtuneError, ValueError) as error:
                raise self._rescued(error) from None

    def end(self, protocol: Mapping[str, Any], completed: str | None = None) -> None:
        """Store the protocol of the run, if anything was measured, and verify that the store has the whole run.

        Args:
            protocol: the whole one.
            completed: key of the request that the run completed; None if it completed none.

        Raises:
            NormtuneError: the store does not have it; the whole run is in the file that the message names.
        """
        self.flush()
        if not self._held or self._failed:
            return
        with shielded():
            try:
                self._store.update_run(self.run._replace(protocol=dict(protocol)))
                stored = self._store.recount(self.run.id)
                if stored != len(self._held):
                    raise NormtuneError(
                        f"the store {self._store.name} holds {stored} of the {len(self._held)} measurements of this run"
                    )
                if completed is not None:
                    self._store.complete(self.run.id, completed)
            # `update_run` raises ValueError for a run that is no longer in the store.
            except (NormtuneError, ValueError) as error:
                raise self._rescued(error) from None

    def _rescued(self, error: Exception) -> NormtuneError:
        """Write the run to a file, and return an error that names it."""
        from normtune.results.evidence import Evidence
        from normtune.results.exchange.parquet_csv import write_parquet

        self._failed = True
        evidence = Evidence.from_measurements(self._held, [self.run])
        count = f"the {len(self._held)} measurements of this run"
        for folder in self._folders():
            path = folder / f"normtune-rescue-{self.run.id[:12]}.parquet"
            with suppress(NormtuneError, OSError):
                write_parquet(evidence, path)
                command = f"`normtune data merge {shlex.quote(str(path))}{self._store.option}`"
                return NormtuneError(f"{error}; {count} are in {path}: {command} stores them")
        return NormtuneError(f"{error}; {count} could not be written to any folder and are lost")

    def _folders(self) -> list[Path]:
        """Candidate folders for the file, best first."""
        folders = [self._store.folder] if self._store.folder else []
        with suppress(OSError):  # the working folder may no longer exist
            folders.append(Path.cwd())
        with suppress(OSError):
            folders.append(Path(tempfile.gettempdir()))
        return folders


def new_run(bench: Bench, strategy: str, protocol: Mapping[str, Any] | None = None) -> Run:
    """A run that begins now; its protocol, with further entries, is completed at the end."""
    return Run(
        id=uuid.uuid4().hex,
        device=bench.device,
        software={"python": platform.python_version(), **bench.software},
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        # A killed sweep leaves only these entries.
        protocol={"strategy": strategy, "regime": bench.regime, **(protocol or {})},
    )


def searched(plan: Plan) -> dict[str, Any]:
    """Entries of a run's protocol for a search that leaves configs out: the configs of each function's problems."""
    pairs: Counter[str] = Counter()
    for task in plan.tasks:
        pairs[str(task.problem.key)] += task.size
    return {SEARCHED: {key: {"pairs": count} for key, count in pairs.items()}}


def measurements(task: Task, outcomes: Mapping[Config, Outcome], run: str) -> Sequence[Measurement]:
    """Measurements of a task in a run, with the fingerprint of the current kernels."""
    current = fingerprint(operator(task.problem.operator))
    return [
        Measurement(
            task.problem,
            config,
            run,
            current,
            outcome.status,
            outcome.reason,
            np.asarray(outcome.rounds, dtype=np.int32),
            np.asarray(outcome.nanoseconds, dtype=np.int32),
            outcome.code,
        )
        for config, outcome in sorted(outcomes.items())
    ]
