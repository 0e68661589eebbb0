"""A store that disappears during a sweep: reported, and all measurements are in a file that can be imported."""

import os
import random
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from normtune.errors import NormtuneError
from normtune.results.database import schema
from normtune.results.database.store import Store
from normtune.results.database.url import StoreUrl
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests.commands import succeed
from normtune.tests.results.stores import alter, loaded, merge
from normtune.tests.tuner.benches import TARGET, MadeUp, sweep
from normtune.tests.tuner.store_faults import emptied, folder_removed, removed, replaced
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.search.adaptive import Adaptive


@pytest.fixture
def wide_plan():
    return plan(problems([], ["bfloat16"], shapes("default", [1, 8, 64, 512], [64, 128, 256])), "default", TARGET)


class Disturbed(MadeUp):
    """A bench that does something to the store after so many problems."""

    def __init__(self, problems, disturb):
        super().__init__()
        self.problems, self.disturb = problems, disturb

    def measure(self, task, race):
        outcomes = super().measure(task, race)
        if len(self.measured) == self.problems:
            self.disturb()
        return outcomes


def truncated(path):
    os.truncate(path, random.Random(path.stat().st_size).randrange(path.stat().st_size))


def rescued(error):
    """The file that a message names."""
    text = str(error)
    assert "\n" not in text and "normtune data merge" in text, text
    return Path(text.partition(" are in ")[2].partition(": `")[0])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("disturb", [removed, replaced, truncated, emptied, folder_removed])
@pytest.mark.parametrize("after", [1, 5, 24])
def test_a_store_that_goes_away_is_told_and_nothing_is_lost(tmp_path, wide_plan, disturb, after, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "folder"
    folder.mkdir()
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    path = folder / "store.db"
    with Store.open(f"sqlite:///{path}") as store:
        with Store.open(f"sqlite:///{path}") as first:  # folds its journal into the file, as a long sweep does
            sweep(MadeUp(), first, plan(problems([], ["float32"], [(1, 64)]), "default", TARGET), Adaptive)
        bench = Disturbed(after, lambda: disturb(path))
        with pytest.raises(NormtuneError, match=r"store\.db") as caught:
            sweep(bench, store, wide_plan, Adaptive)
    assert len(bench.measured) in (after, after + 1)
    file = rescued(caught.value)
    assert file.parent == (working if disturb is folder_removed else folder)
    expected = len(read_parquet(file).frame)
    # The task in progress is lost, as with a kill.
    begun = [
        sum(len(task.candidates) + 1 for task in bench.measured[:count]) for count in (after - 1, after, after + 1)
    ]
    assert expected in begun and expected > 0
    told = succeed("data", "merge", file, "--store", tmp_path / "new.db")
    assert f"{expected} measurements, {expected} new" in told


@pytest.mark.long
def test_a_journal_that_goes_away_costs_nothing(tmp_path, wide_plan):
    path = tmp_path / "store.db"
    with Store.open(f"sqlite:///{path}") as store:
        summary = sweep(Disturbed(5, Path(f"{path}-wal").unlink), store, wide_plan, Adaptive)
    assert summary.problems == len(wide_plan.tasks)
    assert len(loaded(f"sqlite:///{path}").frame) == wide_plan.cells() + len(wide_plan.tasks)


@pytest.mark.long
def test_a_store_that_is_vacuumed_meanwhile_is_the_same_store(tmp_path, wide_plan):
    path = tmp_path / "store.db"

    def shrink():
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE ballast")
        before = path.stat().st_size
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        assert path.stat().st_size < before

    Store.open(f"sqlite:///{path}").close()
    alter(path, "CREATE TABLE ballast AS SELECT zeroblob(1000000) AS x")
    with Store.open(f"sqlite:///{path}") as store:
        assert sweep(Disturbed(5, shrink), store, wide_plan, Adaptive).problems == len(wide_plan.tasks)


@pytest.mark.slow
def test_rows_that_go_away_are_counted_at_the_end(tmp_path, wide_plan):
    path = tmp_path / "store.db"
    delete = partial(alter, path, "DELETE FROM measurement WHERE id <= 7")
    with Store.open(f"sqlite:///{path}") as store, pytest.raises(NormtuneError, match=r"holds \d+ of the") as caught:
        sweep(Disturbed(5, delete), store, wide_plan, Adaptive)
    held = read_parquet(rescued(caught.value))
    assert merge(f"sqlite:///{path}", held) == 7


@pytest.mark.long
def test_an_interrupted_sweep_whose_store_is_gone_does_not_say_that_all_is_stored(tmp_path, wide_plan):
    path = tmp_path / "store.db"

    def disturb():
        path.unlink()
        raise KeyboardInterrupt

    with Store.open(f"sqlite:///{path}") as store, pytest.raises(NormtuneError, match="was removed") as caught:
        sweep(Disturbed(5, disturb), store, wide_plan, Adaptive)
    assert len(read_parquet(rescued(caught.value)).frame)


@pytest.mark.parametrize("statement", ["DROP TABLE measurement CASCADE", "TRUNCATE run CASCADE"])
def test_a_table_of_postgresql_that_goes_away_is_told_and_nothing_is_lost(tmp_path, wide_plan, statement, monkeypatch):
    server = os.environ.get("NORMTUNE_TEST_POSTGRES")
    if not server:
        pytest.skip("NORMTUNE_TEST_POSTGRES names no PostgreSQL database")
    monkeypatch.chdir(tmp_path)
    engine = sa.create_engine(StoreUrl.of(server).url)

    def disturb():
        with engine.begin() as connection:
            # In the order in which the sweep takes them, or either of the two may be refused as a deadlock.
            connection.exec_driver_sql("LOCK TABLE problem, config, fingerprint, measurement, run")
            connection.exec_driver_sql(statement)

    schema.metadata.drop_all(engine)
    try:
        with Store.open(server) as store, pytest.raises(NormtuneError) as caught:
            sweep(Disturbed(5, disturb), store, wide_plan, Adaptive)
    finally:
        schema.metadata.drop_all(engine)
        engine.dispose()
    file = rescued(caught.value)
    assert file.parent == tmp_path and len(read_parquet(file).frame)
