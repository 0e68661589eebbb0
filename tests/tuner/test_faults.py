"""Faults at random moments of a sweep: its last line and its exit code are true of the files."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normtune.results.database.store import Store
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests.commands import PATIENCE
from normtune.tests.tuner.store_faults import emptied, folder_removed, removed, replaced

SWEEP = [sys.executable, "-m", "normtune", "sweep", "--device", "replay:nvidia-h200", "--operator", "rms_norm_forward"]
SWEEP += ["--shapes", "1,4,16,64,256,1024,4096x256,512,768,1024,2048,4096,8192"]
# So many measurements are in a store that a sweep has filled.
CELLS: list[int] = []


def worker_killed(sweep):
    for child in Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split():
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), signal.SIGKILL)


FAULTS = {
    "removed": lambda sweep, path: removed(path),
    "replaced": lambda sweep, path: replaced(path),
    "truncated": lambda sweep, path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda sweep, path: emptied(path),
    "folder": lambda sweep, path: folder_removed(path),
    "journal": lambda sweep, path: Path(f"{path}-wal").unlink(),
    "worker": lambda sweep, path: worker_killed(sweep),
    "killed": lambda sweep, path: sweep.kill(),
    "interrupted": lambda sweep, path: sweep.send_signal(signal.SIGINT),
    "terminated": lambda sweep, path: sweep.send_signal(signal.SIGTERM),
}


def start(path):
    return subprocess.Popen(
        [*SWEEP, "--store", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=path.parent.parent,
        env={**os.environ, "TMPDIR": str(path.parent.parent)},
    )


def held(path):
    with Store.open(f"sqlite:///{path}", create=False) as store:
        found = len(store.load().frame)
        assert not store.damaged
    return found


@pytest.fixture
def path(tmp_path):
    (tmp_path / "folder").mkdir()
    found = tmp_path / "folder" / "store.db"
    if not CELLS:
        whole = start(found)
        whole.communicate(timeout=PATIENCE)
        CELLS.append(held(found))
        found.unlink()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("NORMTUNE_TEST_FAULTS", "2"))))
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_sweep_says_at_its_end_is_true(path, fault, seed):
    draw = random.Random(f"{fault} {seed}")
    sweep = start(path)
    tenths = draw.randrange(70)
    for line in sweep.stdout:
        if line[:3].strip().isdecimal() and int(line[:3]) >= tenths:
            break
    time.sleep(draw.uniform(0.0, 0.1))
    FAULTS[fault](sweep, path)
    out, errors = sweep.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors, errors
    if fault in ("journal", "worker"):
        assert sweep.returncode == 0 and "complete: " in out, errors
        # Shown if imports are slow.
        assert not errors.removeprefix("normtune: planning, a few seconds ...\n"), errors
        assert held(path) == CELLS[0]
    elif fault in ("killed", "interrupted", "terminated"):
        assert sweep.returncode in (130, 143, -9)
        again = start(path)
        _, errors = again.communicate(timeout=PATIENCE)
        assert again.returncode == 0 and held(path) == CELLS[0], errors
    else:
        assert sweep.returncode == 1 and "complete" not in out, errors
        *announced, line = errors.strip().splitlines()
        assert all(one.startswith("normtune: planning") for one in announced), errors
        told = re.search(r"the (\d+) measurements of this run are in (\S+):", line)
        assert told, line
        assert len(read_parquet(Path(told[2])).frame) == int(told[1]) > 0
