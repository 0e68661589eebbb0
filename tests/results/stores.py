"""Stores that tests fill, read and damage, each in a line."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement, Run


def merge(place: str | Path, *evidence: Evidence) -> int:
    """Merge evidence into a store, which is made where there is none; how many measurements were new."""
    with Store.open(place) as store:
        return sum(store.merge(one) for one in evidence)


def record(place: str | Path, run: Run, items: Iterable[Measurement] = ()) -> None:
    """Add measurements of a run to a store, as a sweep does."""
    with Store.open(place) as store:
        store.begin_run(run)
        store.add(list(items))


def loaded(place: str | Path, regime: str | None = "cold") -> Evidence:
    """The measurements of a store that exists."""
    with Store.open(place, create=False) as store:
        return store.load(regime=regime)


def alter(path: str | Path, *statements: str, values: Sequence[object] = ()) -> None:
    """Change the file of a SQLite store behind its back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement, values).fetchall()
