"""`normtune sweep` as a user types it, without a GPU."""

import subprocess
import sys

import pytest

from normtune.errors import UsageError
from normtune.tuner.commands import parse_budget, parse_sizes


def normtune(*arguments, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-m", "normtune", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        timeout=120,
    )


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("8m", 480), ("1.5h", 5400), (None, None)])
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3m", "8 minutes", "m", "1d"])
def test_bad_budgets(text):
    with pytest.raises(UsageError, match="expected a positive time such as 90s, 8m or 1h"):
        parse_budget(text)


def test_sizes():
    assert parse_sizes("rows", "1, 64") == [1, 64]
    for text in ("", "0", "-1", "1.5", "a", "1,,2"):
        with pytest.raises(UsageError, match=r"--rows is .*: expected positive integers"):
            parse_sizes("rows", text)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 1, "there is no GPU to measure: torch"),
        (("--device", "cuda:3"), 1, "device 'cuda:3' cannot be measured: torch"),
        (("--device", "tpu"), 2, "unknown device 'tpu': expected cuda:N or replay:NAME"),
        (("--device", "cuda:x"), 2, "unknown device 'cuda:x'"),
        (("--device", "replay:nothing"), 2, "unknown recording 'nothing'"),
        (("--operator", "layer_norm"), 2, "unknown operator 'layer_norm': expected one of rms_norm_forward"),
        (("--dtype", "int8"), 2, "unknown dtype 'int8'"),
        (("--grid", "huge"), 2, "unknown grid 'huge'"),
        (("--rows", "0"), 2, "--rows is '0'"),
        (("--hidden", "64,x"), 2, "--hidden is '64,x'"),
        (("--hidden", "131072"), 2, "hidden is 131072: rms_norm_forward takes 1 to 65536"),
        (("--rows", "1048576", "--hidden", "4096"), 2, "the grid is empty"),
        (("--space", "tiny", "--dry-run"), 2, "unknown space 'tiny'"),
        (("--strategy", "lucky"), 2, "unknown strategy 'lucky': expected one of adaptive, exhaustive"),
        (("--budget", "soon"), 2, "--budget is 'soon'"),
    ],
)
def test_bad_input_gets_one_line_and_its_exit_code(arguments, code, message, tmp_path):
    store = tmp_path / "store.db"
    done = normtune("sweep", "--store", str(store), *arguments)
    assert done.returncode == code
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not store.exists()


def test_dry_run_says_what_would_be_done():
    done = normtune("sweep", "--dry-run", "--rows", "1,64", "--hidden", "64,4096", "--space", "full")
    assert done.returncode == 0, done.stderr
    assert "nothing is measured" in done.stdout
    assert "8 problems" in done.stdout and "binaries" in done.stdout and "expected: about" in done.stdout
    assert "same launch as another config" in done.stdout
