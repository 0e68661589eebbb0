"""Runs of unknown origin: files, DataFrames and stores with unknown regimes and devices."""

import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from normtune.errors import NormtuneError, UsageError
from normtune.results.commands import app
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange import parquet_csv
from normtune.results.exchange.dataframe import evidence_of
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.results.records import Device
from normtune.results.source import measured
from normtune.results.terminal import console, say

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
    with pytest.raises(NormtuneError, match=WHY) as caught:
        read_parquet(tmp_path / "odd.parquet")
    assert "\n" not in str(caught.value)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    found = CliRunner().invoke(app, ["import", str(tmp_path / "odd.parquet"), "--store", url])
    assert isinstance(found.exception, NormtuneError)
    with Store.open(url) as opened:
        assert opened.runs() == []


def test_a_frame_with_an_odd_regime_is_refused():
    row = {"operator": "rms_norm_forward", "dtype": "bfloat16", "rows": 1, "hidden": 64, "regime": ODD}
    frame = pd.DataFrame([{**row, "config": '{"schedule":"row"}', "nanoseconds": 5}])
    with pytest.raises(UsageError, match="known are cold, warm, eager"):
        evidence_of(frame, DEVICE)


def test_a_store_that_has_one_leaves_it_out_and_says_so_once(odd, tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Store.open(url) as opened:
        opened.merge(odd)
    found = measured(url, regime=None)
    assert found.regimes() == ["cold"]
    assert found.digest() == odd.regime("cold").digest()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        r"normtune: left out 1 run of the store, with times of regime 'huge\x1b[2J'; known are cold, warm, eager"
    )
    listed = CliRunner().invoke(app, ["list", "--store", url])
    assert listed.exit_code == 0
    assert listed.output.count("huge") == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("sms", 0), ("sms", 10**30), ("sms", -1), ("l2_bytes", -1), ("l2_bytes", 10**30), ("memory_bytes", 10**400)],
)
def test_a_device_that_is_no_gpu_is_refused(make, make_run, tmp_path, field, value):
    run = make_run(1)
    run = run._replace(device=run.device._replace(**{field: value}))
    write_parquet(Evidence.from_measurements([make(run=run)], [run]), tmp_path / "odd.parquet")
    with pytest.raises(NormtuneError, match=f"{field} of a device is ") as caught:
        read_parquet(tmp_path / "odd.parquet")
    assert len(str(caught.value)) < 400


def test_a_small_file_of_very_many_rows_is_not_read(make, make_run, tmp_path, monkeypatch):
    write_parquet(Evidence.from_measurements([make(run=make_run(1))], [make_run(1)]), tmp_path / "data.parquet")
    monkeypatch.setattr(parquet_csv, "MOST_ROWS", 0)
    monkeypatch.setattr(parquet_csv.pq, "read_table", None)
    with pytest.raises(NormtuneError, match=r"data\.parquet has 1 measurements, at most 0 are read: export fewer"):
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
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        encoding="utf-8",
        env={"FORCE_COLOR": "1", "TERM": "xterm", "PYTHONSAFEPATH": "1", "PYTHONIOENCODING": "utf-8"},
    )
    assert "\x1b[1m" in done.stdout
    assert "\x1b[2J" not in done.stdout and "\x1b]" not in done.stdout and "\x07" not in done.stdout
    assert "c\ufffd" in done.stdout
    assert console() is not None
