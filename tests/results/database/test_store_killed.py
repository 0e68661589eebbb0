"""A process killed between two commits loses nothing that it had committed."""

import signal
import sqlite3
import subprocess
import sys

import pytest

from normtune.results.database.store import Store

SWEEP = """
import sys
import numpy as np
from normtune.kernels.rms_norm.operator import RMSNormConfig as Config
from normtune.kernels.problem import Problem
from normtune.results.records import Device, Measurement, Run
from normtune.results.database.store import Store

run = Run("a" * 32, Device("GPU", "sm_90", 1, 1, 1, "GPU-0", "1"), {}, "2026-11-21T10:00:00+00:00", {})
store = Store.open(sys.argv[1])
store.begin_run(run)
times = np.arange(1, 17, dtype=np.int32)
for rows in range(1, 100_000):
    problem = Problem.of("op", rows, 64, "bfloat16")
    configs = [Config("row", num_warps=warps) for warps in range(1, 31)]
    store.add([Measurement(problem, config, run.id, "f", "ok", "", times - 1, times) for config in configs])
    print(rows, flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_loses_nothing_committed(tmp_path):
    path = tmp_path / "store.db"
    process = subprocess.Popen([sys.executable, "-c", SWEEP, f"sqlite:///{path}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    committed = 0
    for line in process.stdout:
        committed = int(line)
        if committed >= 20:
            process.kill()
            break
    # What was printed before the signal arrived was committed too.
    committed = max([committed, *map(int, process.stdout.read().split())])
    assert process.wait() == -signal.SIGKILL
    assert path.with_name("store.db-wal").stat().st_size > 0, "the process ended in order, so nothing is proved"

    with Store.open(f"sqlite:///{path}") as store:
        sizes = store.load().frame.groupby("rows").size()
    assert sizes.index.tolist() in (list(range(1, committed + 1)), list(range(1, committed + 2)))
    assert set(sizes) == {30}, "a problem is stored in part"
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
