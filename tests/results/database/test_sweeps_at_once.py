"""Sweeps at once: an SQLite store takes one of a request, until it ends or its process dies, PostgreSQL takes any."""

import contextlib
import signal
import subprocess
import sys
from collections import Counter

import pytest

from normtune.errors import NormtuneError
from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.tests.commands import one_line
from normtune.tests.results.conftest import DEVICE
from normtune.tests.results.stores import loaded

FIRST, SECOND = (Problem.of("rms_norm_forward", rows, 64, "bfloat16") for rows in (1, 2))
BOTH = (FIRST, SECOND)

# Sweeps a plan of made-up times, and prints each problem that it measures.
SWEEP = """
import sys
from normtune.results.database.store import Store
from normtune.tests.tuner.benches import TARGET, MadeUp, sweep
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.search.adaptive import Adaptive

class Told(MadeUp):
    def measure(self, task, race):
        print(task.problem, flush=True)
        return super().measure(task, race)

wanted = problems(["rms_norm_forward"], ["bfloat16"], shapes("default", [1, 8, 64, 512], [64, 128, 256]))
wanted = plan(wanted, "default", TARGET)
with Store.open(sys.argv[1]) as store:
    stored = store.coverage(Told.device)
    print("ready", flush=True)
    sys.stdin.readline()
    summary = sweep(Told(delay=float(sys.argv[2])), store, wanted, Adaptive, stored=stored)
    print("skipped", sum(summary.skipped.values()), flush=True)
"""


@contextlib.contextmanager
def sweeping(url, delay=0.05):
    """A process that sweeps, and has read the store; a line to it begins."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SWEEP, url, str(delay)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def begin(process):
    process.stdin.write("\n")
    process.stdin.flush()


def measurements(url):
    """How often each config of each problem was measured."""
    frame = loaded(url).frame
    return Counter(zip(frame["rows"], frame["hidden"], frame["config"], strict=True))


def test_an_sqlite_store_takes_one_sweep_of_a_request(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as one, Store.open(path) as other:
        with one.sweeping(DEVICE, "cold", None, BOTH):
            told = f"another sweep of the same request writes to the store {path}: wait for its end"
            with one_line(NormtuneError, told), other.sweeping(DEVICE, "cold", None, BOTH[::-1]):
                pass
            for different in (
                (DEVICE, "cold", None, [FIRST]),
                (DEVICE, "warm", None, BOTH),
                (DEVICE, "cold", "a", BOTH),
            ):
                with other.sweeping(*different):
                    pass
        with other.sweeping(DEVICE, "cold", None, BOTH):
            pass
    assert [file.name for file in tmp_path.iterdir()] == ["store.db"]


@pytest.mark.slow
def test_two_sweeps_of_one_request_at_once_lose_nothing(server):
    with sweeping(server) as first, sweeping(server) as second:
        for process in (first, second):
            begin(process)
        told = [process.communicate() for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], told
    assert [out.count("rms_norm_forward ") for out, _ in told] == [12, 12]
    assert set(measurements(server).values()) == {2}


@pytest.mark.slow
def test_the_problems_of_a_killed_sweep_are_measured_by_the_next(url):
    with sweeping(url, 0.2) as killed:
        begin(killed)
        for _ in range(4):
            killed.stdout.readline()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    with sweeping(url, 0.0) as rest:
        begin(rest)
        out, err = rest.communicate()
    assert rest.returncode == 0 and out.endswith("skipped 0\n"), err
    assert 8 <= out.count("rms_norm_forward ") <= 10
    found = measurements(url)
    assert set(found.values()) == {1} and len({place[:2] for place in found}) == 12


@pytest.mark.slow
def test_a_second_sweep_into_an_sqlite_store_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with sweeping(url, 0.2) as first, sweeping(url) as second:
        begin(first)
        first.stdout.readline()
        begin(second)
        out, err = second.communicate()
        assert second.returncode == 1 and "rms_norm_forward " not in out
        assert "another sweep of the same request writes to the store" in err.splitlines()[-1]
