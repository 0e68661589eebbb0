"""Measurements with a flipped bit: reported, left out, measured again."""

import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normtune import cli
from normtune.results.exchange.parquet_csv import read_parquet

SWEEP = ("sweep", "--device", "replay:nvidia-h200", "--rows", "1,512", "--hidden", "256", "--quiet")


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def spoilt(tmp_path):
    """A store with three spoilt measurements of one problem."""
    path = tmp_path / "store.db"
    assert invoke(*SWEEP, "--store", path).exit_code == 0
    with sqlite3.connect(path) as connection:
        ids = "SELECT id FROM measurement WHERE problem_id = 1 AND status = 'ok' LIMIT 3"
        connection.execute(f"UPDATE measurement SET samples = zeroblob(length(samples)) WHERE id IN ({ids})")
    connection.close()
    return path


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT count(*) FROM measurement").fetchone()[0]
    connection.close()
    return found


@pytest.mark.long
def test_what_is_spoilt_is_measured_again_by_the_next_sweep(spoilt):
    before = count(spoilt)
    done = invoke(*SWEEP, "--store", spoilt)
    assert done.exit_code == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"normtune: warning: the store {spoilt} has 3 damaged measurements, left out here: rms_norm")
    assert before + 2 <= count(spoilt) <= before + 5  # those that are candidates, an anchor, the copy
    after = count(spoilt)
    invoke(*SWEEP, "--store", spoilt)
    assert count(spoilt) == after


@pytest.mark.long
def test_doctor_tells_of_it(spoilt):
    told = invoke("doctor", "--store", spoilt).output
    assert "3 damaged measurements, left out here" in told and "data export --regime all" in told


@pytest.mark.long
def test_an_export_holds_what_is_whole(spoilt, tmp_path):
    out = tmp_path / "whole.parquet"
    done = invoke("data", "export", "--out", out, "--store", spoilt)
    assert done.exit_code == 0 and "3 damaged measurements" in done.stderr
    assert len(read_parquet(out).frame) == count(spoilt) - 3
