"""`normtune data` from Python: the files and counts of the commands, and refusals before anything is written."""

import json
from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError, UsageError
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests.commands import one_line, succeed
from normtune.tests.results.stores import merge


@pytest.fixture
def store(varied: Evidence, make, make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with seven cold measurements and a warm one, and nothing else in this folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NORMTUNE_STORE", str(folder / "default.db"))
    warm = make_run(9, protocol={"regime": "warm"})
    merge(tmp_path / "store.db", varied, Evidence.from_measurements([make((5, 6), run=warm)], [warm]))
    return tmp_path / "store.db"


def test_the_counts_are_those_of_the_command(store: Path) -> None:
    frame = normtune.list_data(store)
    printed = [" ".join(line.split()) for line in succeed("data", "list", "--store", store).splitlines()]
    for row in frame.to_dict("records"):
        numbers = f"{row['problems']} {row['measurements']} {row['runs']}"
        place = printed.index(f"{row['device']}, {row['sms']} SMs")
        names = f"{row['operator']} {row['dtype']} "
        assert any(line.startswith(names) and f" {numbers}" in line for line in printed[place:])
    assert json.loads(succeed("data", "list", "--store", store, "--json"))["measurements"] == frame.to_dict("records")
    assert frame["measurements"].sum() == 8 and set(frame["regime"]) == {"cold", "warm"}
    with Store.open(store) as opened:
        assert normtune.list_data(opened).equals(frame)


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    Store.open(tmp_path / "new.db").close()
    frame = normtune.list_data(tmp_path / "new.db")
    assert frame.empty and list(frame)[:3] == ["device", "sms", "operator"]


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_an_export_is_the_file_of_the_command(store: Path, varied: Evidence, name: str) -> None:
    printed = succeed("data", "export", "--out", name, "--store", store)
    by_command = Path(name).read_bytes()
    whole = normtune.export_data(name, store, regime=None).evidence
    assert Path(name).read_bytes() == by_command
    assert f"{len(whole.frame)} measurements of {len(whole.runs)} runs" in printed
    found = normtune.export_data(name, store, operators="rms_norm_forward")
    assert found.paths == (Path(name),) and (found.left_out, found.regimes) == (1, ("warm",))
    assert found.evidence.digest() == varied.select(["rms_norm_forward"]).digest()
    assert len(normtune.export_data(name, store, regime=None).evidence.frame) == 8
    with Store.open(store, create=False) as opened:
        assert normtune.export_data(name, opened).evidence.digest() == varied.digest()


def test_a_recording_has_a_file_for_each_operator(store: Path) -> None:
    found = normtune.export_recording("gpu", ".", store, operators="rms_norm_backward")
    assert found.paths == (Path("gpu.rms_norm_backward.parquet"),)
    assert len(read_parquet(found.paths[0]).frame) == 2


def test_an_import_adds_what_is_new(store: Path) -> None:
    normtune.export_data("a.parquet", store)
    normtune.export_data("b.parquet", store, regime=None)
    found = normtune.merge_data(["a.parquet", Path("b.parquet")], "copy.db")
    assert [tuple(one) for one in found] == [("a.parquet", 7, 7, ""), ("b.parquet", 8, 1, "")]
    with Store.open("copy.db") as opened:
        assert [one.added for one in normtune.merge_data("b.parquet", opened)] == [0]
        assert [one.added for one in normtune.merge_data(["a.parquet", "b.parquet"], opened)] == [0, 0]
    assert normtune.merge_data("b.parquet")[0].added == 8
    assert Path("default.db").is_file()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda store: normtune.export_data("a.xlsx", store), "expected a file that ends in .parquet or .csv"),
        (lambda store: normtune.export_data("none/a.csv", store), "none does not exist"),
        (lambda store: normtune.export_data("mine.csv", store), "it exists and normtune did not write it"),
        (lambda store: normtune.export_data("mine.csv", Store.open(store)), "it exists and normtune did not write it"),
        (lambda store: normtune.export_data("a.csv", store, regime="hot"), "unknown regime 'hot'"),
        (lambda store: normtune.export_data("a.csv", store, regime="eager"), "has no times of regime eager"),
        (lambda store: normtune.export_data("a.csv", store, operators="softmax"), "operators is 'softmax'"),
        (lambda store: normtune.export_data("a.csv", store, dtypes=[8]), r"dtypes is \[8\]"),
        (lambda store: normtune.export_data("a.csv", 7), "the measurements are a int"),
        (lambda store: normtune.export_recording("A B", ".", store), "the recording's name is 'A B'"),
        (lambda store: normtune.export_recording("gpu", "none", store), "the folder none does not exist"),
        (lambda store: normtune.export_recording("gpu", ".", store), "the store has 2"),
        (lambda store: normtune.merge_data([]), "no sources are given"),
        (lambda store: normtune.merge_data(7), "sources is 7: expected a path or a sequence"),
        (lambda store: normtune.merge_data("missing.parquet"), "missing.parquet does not exist"),
        (lambda store: normtune.merge_data("mine.csv", "mysql://h/db"), "'mysql': expected sqlite"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(store: Path, call, says: str) -> None:
    Path("mine.csv").write_text("x\n1\n")
    with one_line(UsageError, says):
        call(store)
    assert [path.name for path in Path().iterdir()] == ["mine.csv"] and Path("mine.csv").read_text() == "x\n1\n"


def test_one_bad_file_keeps_the_store_from_being_made(store: Path) -> None:
    normtune.export_data("a.parquet", store)
    Path("b.parquet").write_bytes(b"PAR1")
    with pytest.raises(NormtuneError, match=r"b\.parquet is no Parquet file"):
        normtune.merge_data(["a.parquet", "b.parquet"])
    assert not Path("default.db").exists()
    assert len(read_parquet(Path("a.parquet")).frame) == 7
