"""A sweep and its worker, interrupted, terminated and killed: nothing stored is lost or doubled, nothing is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normtune.tests.commands import PATIENCE, wait_until
from normtune.tests.results.stores import loaded
from normtune.tests.tuner.store_faults import count

COMMAND = [sys.executable, "-m", "normtune", "sweep", "--device", "replay:nvidia-h200"]
COMMAND += ["--operator", "rms_norm_forward", "--dtype", "bfloat16"]


def start(folder):
    """A replay, which takes seconds, into `folder/store.db`."""
    return subprocess.Popen(
        [*COMMAND, "--store", f"{folder}/store.db"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def worker_of(sweep):
    """The process of a sweep that drives the device."""
    # A thread that waits for a worker starts the next one.
    children = [
        child for task in Path(f"/proc/{sweep.pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    (worker,) = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(worker)


def cells(folder):
    """What is stored, without run and time of day."""
    frame = loaded(f"sqlite:///{folder}/store.db").frame
    columns = ["operator", "variant", "dtype", "rows", "hidden", "config", "status", "reason"]
    found = frame[columns].assign(samples=[tuple(samples.tolist()) for samples in frame["samples"]])
    assert not found.duplicated(columns[:6]).any()
    return found.sort_values(columns, ignore_index=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep = start(folder)
    assert sweep.wait(PATIENCE) == 0, sweep.stderr.read()
    return cells(folder)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path, undisturbed):
    sweep = start(tmp_path)
    for more in (200, 1000):
        wait_until(lambda wanted=more: count(tmp_path / "store.db") > wanted)
        os.kill(worker_of(sweep), signal.SIGKILL)
    _, errors = sweep.communicate(timeout=PATIENCE)
    # On a busy machine a command may say first what it does.
    assert sweep.returncode == 0 and errors in ("", "normtune: planning, a few seconds ...\n"), errors
    # A new worker draws anew from the recording.
    found, expected = (frame.drop(columns="samples") for frame in (cells(tmp_path), undisturbed))
    assert found.equals(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [("SIGINT", 130), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("SIGTERM", 143), ("SIGKILL", -9)))],
)
@pytest.mark.one_in(2)
def test_a_sweep_that_is_ended_goes_on_where_it_was(tmp_path, undisturbed, end, code):
    sweep = start(tmp_path)
    wait_until(lambda: count(tmp_path / "store.db") > 200)
    worker = worker_of(sweep)
    sweep.send_signal(getattr(signal, end))
    _, errors = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == code
    is_told = "a sweep goes on from there by the same command" in errors
    assert "Traceback" not in errors and is_told == (end != "SIGKILL"), errors
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    assert 200 < count(tmp_path / "store.db") < len(undisturbed)
    again = start(tmp_path)
    _, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert cells(tmp_path).equals(undisturbed)
