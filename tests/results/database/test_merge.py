"""Merging stores and files: the same content in any order, however often."""

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normtune.errors import NormtuneError
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.results.api import merge_data
from normtune.results.database.reading import stored_rows, stored_runs
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.results.records import TimedCode
from normtune.results.runs import anonymous, measurer
from normtune.tests.commands import one_line, succeed
from normtune.tests.results.conftest import build_measurement, build_run
from normtune.tests.results.stores import alter, merge

RUNS = [
    build_run(1, protocol={"regime": "cold"}),
    build_run(2, "2026-11-21T11:00:00+00:00", protocol={"regime": "warm"}),
    build_run(3, name="NVIDIA B200", sms=148, protocol={"regime": "cold"}),
]
# Few, so that stores have the same.
PLACES = [
    {"run": run, "config": RMSNormConfig("row"), "first": first}
    for run, first in ((RUNS[0], 0), (RUNS[0], 4), (RUNS[1], 0), (RUNS[2], 0))
]
CODE = TimedCode(b"launch", b"assembly")
# What one store may have of a measurement: its samples, whether its code is known, how often its fingerprint was
# replaced and by what, and whether it is damaged.
KEPT = st.tuples(
    st.sampled_from([(100, 110), (100, 111), ()]),
    st.booleans(),
    st.lists(st.sampled_from("xyz"), max_size=2),
    st.booleans(),
)
STORE = st.fixed_dictionaries(
    {
        "kept": st.dictionaries(st.integers(0, len(PLACES) - 1), KEPT, min_size=1, max_size=4),
        "protocols": st.lists(st.sampled_from([{}, {"rounds": 1}, {"rounds": 2}]), min_size=3, max_size=3),
        "completions": st.lists(st.tuples(st.sampled_from(RUNS), st.sampled_from("pq")), max_size=2),
        "aside": st.lists(st.integers(0, 2), max_size=3),
        "completes_last": st.booleans(),
    }
)


def built(path: Path, given) -> Path:
    """A store with such a history."""
    with Store.open(path) as store:
        for run, more in zip(RUNS, given["protocols"], strict=True):
            store.begin_run(run)
            store.update_run(run._replace(protocol=run.protocol | more))
        if not given["completes_last"]:
            complete(store, given)
        damaged = []
        for number, (place, (times, is_coded, prints, is_damaged)) in enumerate(sorted(given["kept"].items()), 1):
            item = build_measurement(times, **PLACES[place])
            store.add([item._replace(code=CODE if is_coded else None)])
            for old, new in itertools.pairwise([item.fingerprint, *(f"sha256:{name}" for name in prints)]):
                store.set_fingerprints(PLACES[place]["run"].device, {(item.problem, item.config): (old, new)})
            damaged += [number] * is_damaged
        for run in given["aside"]:
            aside = next(one for one in store.runs(dropped=True) if one.id == RUNS[run].id)
            store.drop(aside.id, undo=aside.is_dropped)
        if given["completes_last"]:
            complete(store, given)
    for number in damaged:
        alter(path, f"UPDATE measurement SET checksum = checksum + 1 WHERE id = {number}")
    return path


def complete(store: Store, given) -> None:
    for run, request in given["completions"]:
        store.complete(run.id, request)


def content(path: Path, has_completions: bool):
    """All that a store says, except for the order in which it was stored and what is damaged."""
    with Store.open(path, create=False) as store, store._reading() as connection:
        rows = [row for row in stored_rows(connection, stored_runs(connection)) if not row.is_damaged]
        runs = store.runs(dropped=True)
        requests = [store.completed_requests(run.device, run.regime) for run in runs if has_completions]
        return list(map(anonymous, runs)), {row._replace(number=0) for row in rows}, requests


def joined(path: Path, *sources: Path) -> Path:
    merge_data(sources, path)
    return path


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STORE, min_size=3, max_size=3))
def test_merging_is_commutative_associative_and_idempotent(stores):
    # A store with damage keeps to itself what it completed.
    is_whole = not any(kept[-1] for given in stores for kept in given["kept"].values())
    with tempfile.TemporaryDirectory() as folder:
        of = Path(folder)
        a, b, c = (built(of / f"{name}.db", given) for name, given in zip("abc", stores, strict=True))
        expected = content(joined(of / "abc.db", a, b, c), is_whole)
        assert content(joined(of / "cab.db", c, a, b, a), is_whole) == expected
        bc = joined(of / "bc.db", b, c)
        assert content(joined(of / "a_bc.db", a, bc), is_whole) == expected
        # Into the stores themselves, which know their GPUs.
        for name, order in (("a", (b, c)), ("c", (a, b))):
            shutil.copy(of / f"{name}.db", of / f"into_{name}.db")
            assert content(joined(of / f"into_{name}.db", *order), is_whole) == expected
        again = content(joined(of / "abc.db", b, of / "abc.db", bc), is_whole)
        assert again == expected
        alone = content(a, is_whole)
        assert content(joined(of / "a2.db", a), is_whole) == alone
        assert content(joined(a, of / "a2.db", a), is_whole) == alone


def test_a_request_that_was_completed_travels_with_what_it_relied_on(url, tmp_path, make, make_run):
    run, other = make_run(1), make_run(2)

    def completed(store):
        return store.completed_requests(run.device, "cold")

    with Store.open(tmp_path / "a.db") as source, Store.open(url) as store:
        source.merge(Evidence.from_measurements([make(run=run)], [run]))
        source.complete(run.id, "key")
        store.merge(Evidence.from_measurements([make(run=other)], [other]))
        store.complete(other.id, "mine")
        store.merge(source)
        assert completed(store) == {"key", "mine"}
        # One store says more of what is set aside than the other.
        store.drop(other.id)
        store.merge(source)
        assert completed(store) == set()
        source.merge(store)
        assert completed(source) == set()
        source.complete(run.id, "again")
        store.merge(source)
        assert completed(store) == {"again"}
        source.drop(run.id)
        source.complete(other.id, "none")  # of a run set aside
        store.merge(source)
        assert completed(store) == set()


def test_what_a_damaged_store_completed_stays_there(tmp_path, make, make_run):
    run = make_run(1)
    with Store.open(tmp_path / "a.db") as source, Store.open(tmp_path / "b.db") as store:
        source.merge(Evidence.from_measurements([make(run=run), make((5,), 9, run=run)], [run]))
        source.complete(run.id, "key")
        alter(tmp_path / "a.db", "UPDATE measurement SET median = 1 WHERE id = 1")
        assert store.merge(source) == 1
        assert store.completed_requests(run.device, "cold") == set()


def test_what_a_store_knows_travels(url, tmp_path, make, make_run):
    runs = [make_run(number) for number in (1, 2)]
    with Store.open(tmp_path / "a.db") as source:
        for run in runs:
            source.begin_run(run)
            source.add([make((100, 110), run=run), make((7,), 4, run=run)])
        first = make(run=runs[0])
        source.set_fingerprints(runs[0].device, {(first.problem, first.config): ("sha256:aa", "sha256:new")})
        source.drop(runs[1].id)
        with Store.open(url) as store:
            assert store.merge(source) == 4 and store.merge(source) == 0
            assert [run.is_dropped for run in store.runs(dropped=True)] == [False, True]
            assert store.load().digest() == source.load().digest()
            assert set(store.load().frame["fingerprint"]) == {"sha256:new"}
            # A store that was behind does not undo what was done since.
            store.drop(runs[1].id, undo=True)
            assert store.merge(source) == 0 and len(store.load().frame) == 4
            source.drop(runs[1].id, undo=True)
            source.drop(runs[1].id)
            assert store.merge(source) == 0 and len(store.load().frame) == 2


def test_what_was_changed_in_one_of_two_stores_is_kept(tmp_path, make, make_run):
    run, item = make_run(1), make((100, 110))
    for name, code in (("a", None), ("b", CODE)):
        with Store.open(tmp_path / f"{name}.db") as store:
            store.begin_run(run)
            store.add([item._replace(run=run.id, code=code)])
    with Store.open(tmp_path / "a.db") as store:
        # A text that is less than the one before.
        store.set_fingerprints(run.device, {(item.problem, item.config): (item.fingerprint, "sha256:0")})
    for into, source in (("a", "b"), ("b", "a"), ("a", "b")):
        merge_data(tmp_path / f"{source}.db", tmp_path / f"{into}.db")
        with Store.open(tmp_path / f"{into}.db") as store:
            assert store.load().frame["fingerprint"].tolist() == ["sha256:0"]
    with Store.open(tmp_path / "c.db") as store, Store.open(tmp_path / "b.db", create=False) as source:
        assert store.merge(Evidence.from_measurements([item._replace(run=run.id)], [run])) == 1
        assert store.merge(Evidence.from_measurements([item._replace(run=run.id, code=CODE)], [run])) == 0
        assert store.load().frame["code"].tolist() == [CODE], "what is known of the code is taken"
        assert store.merge(source) == 0 and store.load().frame["fingerprint"].tolist() == ["sha256:0"]


def test_a_whole_measurement_takes_the_place_of_a_damaged_one(tmp_path, varied):
    for name in ("a", "b"):
        merge(tmp_path / f"{name}.db", varied)
    alter(tmp_path / "a.db", "UPDATE measurement SET samples = x'01000000' WHERE id = 1")
    alter(tmp_path / "b.db", "UPDATE measurement SET median = 1 WHERE id = 2")
    whole = len(varied.frame)
    told = succeed("data", "merge", tmp_path / "b.db", "--store", tmp_path / "a.db")
    assert told.startswith(f"{tmp_path / 'b.db'}: {whole - 1} measurements, 0 new\n")
    assert "b.db has 1 damaged measurement, left out here: rms_norm_backward" in told
    with Store.open(tmp_path / "a.db", create=False) as store:
        assert store.load().digest() == varied.digest() and not store.damage


def test_files_and_stores_are_merged_by_one_command(tmp_path, varied, make, make_run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    merge("a.db", varied)
    other = make_run(9, protocol={"regime": "warm"})
    write_parquet(Evidence.from_measurements([make((5, 6), run=other)], [other]), Path("b.parquet"))
    lines = ["a.db: 7 measurements, 7 new", "b.parquet: 1 measurements, 1 new", "a.db: 7 measurements, 0 new"]
    assert succeed("data", "merge", "a.db", "b.parquet", "a.db", "--store", "c.db").splitlines() == lines
    with one_line(NormtuneError, "there is no store missing.db"):
        merge_data(["a.db", "missing.db"], "e.db")
    assert not Path("e.db").exists()


def test_a_store_that_contradicts_is_refused_whole(tmp_path, make, make_run):
    for name, driver in (("a", "1"), ("b", "2")):
        run, good = make_run(1, driver=driver), make_run(2)
        merge(tmp_path / f"{name}.db", Evidence.from_measurements([make(run=run), make(run=good)], [run, good]))
    alter(tmp_path / "a.db", "DELETE FROM measurement")
    with one_line(NormtuneError, "cannot merge .*: run 0+1 is stored with another device"):
        merge_data(tmp_path / "b.db", tmp_path / "a.db")
    with Store.open(tmp_path / "a.db") as store:
        assert store.load().frame.empty


def test_who_measured_is_told_apart_in_the_store_and_not_outside(tmp_path, make, make_run):
    runs = [make_run(number) for number in (1, 2, 3)]
    runs = [run._replace(device=run.device._replace(uuid=f"GPU-{who}")) for run, who in zip(runs, "aab", strict=True)]
    told = [measurer(run.device) for run in runs]
    assert told[0] == told[1] != told[2]
    with Store.open(tmp_path / "a.db") as store:
        for run in runs:
            store.begin_run(run)
            store.add([make(run=run)])
        assert [measurer(run.device) for run in store.runs()] == told
        outside = [run.device.uuid for run in store.load().runs]
        assert len({*outside}) == 3 and all(one.startswith("hash:") for one in outside)
        with Store.open(tmp_path / "b.db") as other:
            other.merge(store)
            assert [run.device.uuid for run in other.runs()] == outside
            store.merge(other)
        assert [measurer(run.device) for run in store.runs()] == told
