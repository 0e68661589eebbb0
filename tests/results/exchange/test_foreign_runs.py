"""Runs of unknown origin: files, DataFrames and stores with unknown regimes and devices."""

import re
from pathlib import Path

import pandas as pd
import pytest

from normtune.errors import DataWarning, NormtuneError, UsageError
from normtune.results.api import export_data, merge_data
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange import parquet_file
from normtune.results.exchange.dataframe import evidence_of
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.results.records import Device
from normtune.results.source import read_evidence
from normtune.results.terminal import console, say
from normtune.tests.commands import one_line, printed_by, refused, succeed
from normtune.tests.results.stores import merge

ODD = "huge\x1b[2J"
WHY = r"regime 'huge\\x1b\[2J', known are cold, warm, eager"
DEVICE = Device("GPU", "sm_90", 132, 1, 1, "GPU-1", "1")


@pytest.fixture
def odd(make, make_run) -> Evidence:
    """A run of the day and one of another normtune's regime."""
    runs = [make_run(1), make_run(2, "2026-11-22T11:00:00+00:00", protocol={"regime": ODD})]
    return Evidence.from_measurements([make(run=run) for run in runs], runs)


def test_a_file_with_an_odd_regime_is_not_imported(odd, tmp_path):
    write_parquet(odd, tmp_path / "odd.parquet")
    with one_line(NormtuneError, WHY):
        read_parquet(tmp_path / "odd.parquet")
    url = f"sqlite:///{tmp_path / 'store.db'}"
    refused("data", "merge", tmp_path / "odd.parquet", "--store", url, kind=NormtuneError)
    with Store.open(url) as opened:
        assert opened.runs() == []


@pytest.mark.parametrize(
    "started",
    ["soon", "9999", "2026-W47-1", "20261123", "2026-13-01", "2026-11-23T", "\u0662026-11-23", "2026-11-23T25:00:00"],
)
def test_a_start_that_is_no_date_is_refused(make, make_run, tmp_path, started):
    run = make_run(1, started)
    write_parquet(Evidence.from_measurements([make(run=run)], [run]), tmp_path / "odd.parquet")
    with pytest.raises(NormtuneError, match="expected a date such as 2026-11-23T12:00:00"):
        read_parquet(tmp_path / "odd.parquet")


def test_a_run_of_the_future_is_not_imported(make, make_run, tmp_path):
    good, future = make_run(1), make_run(2, "9999-01-01T00:00:00+00:00")
    path, url = tmp_path / "future.parquet", f"sqlite:///{tmp_path / 'store.db'}"
    write_parquet(Evidence.from_measurements([make((), run=future)], [future]), path)
    with Store.open(url) as opened:
        opened.merge(Evidence.from_measurements([make(run=good)], [good]))
        with pytest.raises(
            NormtuneError, match=r"cannot merge .*future\.parquet: run 0+2 started 9999-.*, after tomorrow"
        ):
            merge_data(path, opened)
        assert opened.runs() == [good]


def test_a_file_sets_no_run_of_a_store_aside(make, make_run, tmp_path):
    run = make_run(1)
    aside = run._replace(protocol=run.protocol | {"dropped": "2026-01-01"})
    with Store.open(f"sqlite:///{tmp_path}/a.db") as store:
        assert store.merge(Evidence.from_measurements([make(run=aside)], [aside])) == 1
        assert len(store.load().frame) == 1


@pytest.mark.parametrize("other", ["Nvidia A-10", "NVIDIA A 10", "nvidia a-10"])
def test_a_name_that_differs_in_its_capitals_alone_is_not_merged(other: str, make, make_run, tmp_path):
    first, second = make_run(1), make_run(2)
    named = first._replace(device=first.device._replace(name="NVIDIA A-10"))
    odd = second._replace(device=second.device._replace(name=other))
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert store.merge(Evidence.from_measurements([make(run=named)], [named])) == 1
        with pytest.raises(ValueError, match=f"it is of '{other}', the store has 'NVIDIA A-10': give the same name by"):
            store.merge(Evidence.from_measurements([make(run=odd)], [odd]))
        assert store.merge(Evidence.from_measurements([make(run=named)], [named])) == 0
        assert len(store.load().frame) == 1


def test_a_store_with_a_run_of_the_future_says_what_sets_it_aside(make, make_run, tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    runs = [make_run(1), make_run(2, "9999-01-01T00:00:00+00:00")]
    with Store.open(url) as opened:  # as a sweep whose clock runs ahead
        for run in runs:
            opened.begin_run(run)
        opened.add([make(run=runs[0]), make((), run=runs[1], fingerprint="sha256:bb")])
    with pytest.warns(DataWarning) as warned:
        assert set(read_evidence(url).current().frame["status"]) == {"timeout"}
    (line,) = (str(one.message) for one in warned)
    option = f" --store {tmp_path / 'store.db'}"
    assert line.endswith(f"`normtune data drop {runs[1].id}{option}` sets it aside")
    done = succeed("data", "drop", runs[1].id, "--store", url)
    assert done == (
        f"run {runs[1].id} of 9999-01-01T00:00:00+00:00 is set aside; "
        f"`normtune data drop --undo {runs[1].id}{option}` undoes this\n"
    )
    assert set(read_evidence(url).current().frame["status"]) == {"ok"}
    listed = succeed("data", "list", "--runs", "--store", url).splitlines()
    assert [runs[0].id in listed[0], ", set aside on 20" in listed[0], ", set aside on 20" in listed[1]] == [1, 0, 1]
    assert "is used again" in succeed("data", "drop", "--undo", runs[1].id, "--store", url)
    with pytest.warns(DataWarning):
        assert set(read_evidence(url).current().frame["status"]) == {"timeout"}
    refused("data", "drop", "x", "--store", tmp_path / "none.db", kind=NormtuneError)
    assert not (tmp_path / "none.db").exists()


def test_a_frame_with_an_odd_regime_is_refused():
    row = {"operator": "rms_norm_forward", "dtype": "bfloat16", "rows": 1, "hidden": 64, "regime": ODD}
    frame = pd.DataFrame([{**row, "config": '{"schedule":"row"}', "nanoseconds": 5}])
    with pytest.raises(UsageError, match="known are cold, warm, eager"):
        evidence_of(frame, DEVICE)


def test_no_file_names_a_gpu(make, make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uuid = "GPU-5f2c7f0e-8b6a-4b8c-9d6e-2f1a0c3b4d5e"
    runs = [make_run(number) for number in (1, 2)]
    runs = [run._replace(device=run.device._replace(uuid=uuid)) for run in runs]
    with Store.open("store.db") as opened:
        for run in runs:
            opened.begin_run(run)
        opened.add([make(run=run) for run in runs])
        exported = export_data("data.parquet", opened).evidence
        assert uuid.encode() not in (tmp_path / "data.parquet").read_bytes()
        hashes = [run.device.uuid for run in read_parquet(tmp_path / "data.parquet").runs]
        assert len(set(hashes)) == 2 and all(re.fullmatch("hash:[0-9a-f]{32}", one) for one in hashes)
        assert read_parquet(tmp_path / "data.parquet").digest() == exported.digest() == opened.load().digest()
        # What left a store comes back to it, and the store still knows its GPU.
        assert opened.merge(read_parquet(Path("data.parquet"))) == 0
        assert {run.device.uuid for run in opened.runs()} == {uuid}
    with Store.open("copy.db") as copy:
        assert copy.merge(read_parquet(Path("data.parquet"))) == 2
        assert copy.load().digest() == exported.digest()


def test_a_file_of_before_keeps_its_digest(make, make_run, tmp_path):
    run = make_run(1)
    run = run._replace(device=run.device._replace(uuid="GPU-0"))
    before = Evidence.from_measurements([make(run=run)], [run])
    write_parquet(before, tmp_path / "before.parquet")
    assert read_parquet(tmp_path / "before.parquet").digest() == before.digest()
    assert before.runs[0].device.uuid == "GPU-0"


def test_a_run_of_an_odd_regime_joins_no_store_and_one_that_has_it_gives_the_others(odd, tmp_path):
    path, source = tmp_path / "store.db", tmp_path / "source.db"
    with pytest.raises(ValueError, match=WHY):
        merge(path, odd)
    with Store.open(source) as opened:
        for run in odd.runs:
            opened.begin_run(run)
        opened.add(odd.measurements())
    refused("data", "merge", source, "--store", path, kind=NormtuneError)
    with Store.open(path) as opened:
        assert opened.runs() == [] and opened.load(regime=None).frame.empty
    assert read_evidence(source).digest() == odd.regime("cold").digest()
    assert "\x1b" not in succeed("data", "list", "--store", source)


@pytest.mark.parametrize(
    ("field", "value"),
    [("sms", 0), ("sms", 10**30), ("sms", -1), ("l2_bytes", -1), ("l2_bytes", 10**30), ("memory_bytes", 10**400)],
)
def test_a_device_that_is_no_gpu_is_refused(make, make_run, tmp_path, field, value):
    run = make_run(1)
    run = run._replace(device=run.device._replace(**{field: value}))
    write_parquet(Evidence.from_measurements([make(run=run)], [run]), tmp_path / "odd.parquet")
    with one_line(NormtuneError, f"{field} of a device is ", 399):
        read_parquet(tmp_path / "odd.parquet")


def test_a_small_file_of_very_many_rows_is_not_read(make, make_run, tmp_path, monkeypatch):
    write_parquet(Evidence.from_measurements([make(run=make_run(1))], [make_run(1)]), tmp_path / "data.parquet")
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 1 << 8)
    monkeypatch.setattr(parquet_file.pq.ParquetFile, "iter_batches", None)
    with pytest.raises(NormtuneError, match=r"data\.parquet takes over 0 MB of memory to be read: export fewer"):
        read_parquet(tmp_path / "data.parquet")


def test_what_is_said_steers_no_terminal(capsys):
    say("a\x1b[2J\x9b\u202e\nb\r", error=True)
    say()
    told = capsys.readouterr()
    assert told.err == "a\ufffd[2J\ufffd\ufffd\nb\ufffd\n"
    assert told.out == "\n"


def test_a_console_styles_and_is_not_steered():
    code = (
        "from rich.table import Table; from normtune.results.terminal import console\n"
        "made = console(); table = Table('a\\x1b[2J'); table.add_row('b\\x1b]0;x\\x07', style='bold')\n"
        "made.print(table); made.print('c\\x9b', style='bold')\n"
    )
    env = {"FORCE_COLOR": "1", "TERM": "xterm", "PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "utf-8"}
    told = printed_by(code, encoding="utf-8", env=env)
    assert "\x1b[1m" in told and "c\ufffd" in told
    assert "\x1b[2J" not in told and "\x1b]" not in told and "\x07" not in told
    assert console() is not None
