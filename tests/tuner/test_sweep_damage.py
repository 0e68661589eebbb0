"""Measurements with a flipped bit: reported, left out, measured again."""

import pytest

from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests.commands import main
from normtune.tests.results.stores import alter
from normtune.tests.tuner.store_faults import count

SWEEP = ("sweep", "--device", "replay:nvidia-h200", "--shapes", "1,512x256", "--quiet")


@pytest.fixture
def spoilt(tmp_path):
    """A store with three spoilt measurements of one problem."""
    path = tmp_path / "store.db"
    assert main(*SWEEP, "--store", path).exit_code == 0
    ids = "SELECT id FROM measurement WHERE problem_id = 1 AND status = 'ok' LIMIT 3"
    alter(path, f"UPDATE measurement SET samples = zeroblob(length(samples)) WHERE id IN ({ids})")
    return path


@pytest.mark.slow
def test_what_is_spoilt_is_measured_again_by_the_next_sweep(spoilt):
    before = count(spoilt)
    done = main(*SWEEP, "--store", spoilt)
    assert done.exit_code == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"normtune: warning: the store {spoilt} has 3 damaged measurements, left out here: rms_norm")
    assert before + 2 <= count(spoilt) <= before + 5  # those that are candidates, an anchor, the copy
    after = count(spoilt)
    main(*SWEEP, "--store", spoilt)
    assert count(spoilt) == after


@pytest.mark.slow
def test_doctor_tells_of_it(spoilt):
    told = main("doctor", "--store", spoilt).output
    assert "3 damaged measurements, left out here" in told and "data export --out" in told


@pytest.mark.slow
def test_an_export_holds_what_is_whole(spoilt, tmp_path):
    out = tmp_path / "whole.parquet"
    done = main("data", "export", "--out", out, "--store", spoilt)
    assert done.exit_code == 0 and "3 damaged measurements" in done.stderr
    assert len(read_parquet(out).frame) == count(spoilt) - 3
