"""Claims: a problem is one sweep's, until that sweep ends or its connection or process dies."""

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
import sqlalchemy as sa

from normtune.errors import NormtuneError
from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.results.database.url import parse
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


def test_a_problem_is_that_of_the_sweep_that_claims_it_first(server):
    with Store.open(server) as one, Store.open(server) as other:
        mine = one.claims(DEVICE, "cold", "key", BOTH)
        theirs = other.claims(DEVICE, "cold", "key", BOTH)
        assert mine.claim(FIRST) and theirs.claim(SECOND)
        assert not theirs.claim(FIRST) and not mine.claim(SECOND)
        assert mine.claim(FIRST), "the answer stays the same"
        # Of another request, regime or kind of device.
        for device, regime, request in (
            (DEVICE, "cold", "other"),
            (DEVICE, "warm", "key"),
            (DEVICE._replace(sms=8), "cold", "key"),
        ):
            with other.claims(device, regime, request, BOTH) as claims:
                assert claims.claim(FIRST)
        mine.release()
        with other.claims(DEVICE, "cold", "key", BOTH) as later:
            assert later.claim(FIRST) and not later.claim(SECOND)
        theirs.release()


def test_a_claim_ends_with_its_connection(server):
    engine = sa.create_engine(parse(server), isolation_level="AUTOCOMMIT")
    with Store.open(server) as one, Store.open(server) as other, engine.connect() as connection:
        mine = one.claims(DEVICE, "cold", None, BOTH)
        assert mine.claim(FIRST)
        pids = connection.exec_driver_sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory'").scalars().all()
        assert len(pids) == 1
        connection.exec_driver_sql("SELECT pg_terminate_backend(%s)", tuple(pids))
        for _ in range(100):
            if not connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").all():
                break
            time.sleep(0.05)
        with other.claims(DEVICE, "cold", None, BOTH) as theirs:
            assert theirs.claim(FIRST)
        with pytest.raises(NormtuneError):
            mine.claim(SECOND)
        mine.release()
    engine.dispose()


def test_what_was_measured_since_the_store_was_read_is_left_alone(url, make, make_run):
    run, elsewhere = make_run(1), make_run(2, sms=8)
    with Store.open(url) as one, Store.open(url) as other:
        assert one.coverage(run.device) == other.coverage(run.device) == {}
        for each in (run, elsewhere):
            other.begin_run(each)
        other.add([make(problem=FIRST, run=run), make(problem=SECOND, run=elsewhere)])
        with one.claims(run.device, "cold", None, BOTH) as claims:
            assert not claims.claim(FIRST) and claims.claim(SECOND)
        one.coverage(run.device)
        with one.claims(run.device, "cold", None, BOTH) as claims:
            assert claims.claim(FIRST)


def test_an_sqlite_store_takes_one_sweep_of_a_request(tmp_path):
    path = tmp_path / "store.db"
    with Store.open(path) as one, Store.open(path) as other:
        mine = one.claims(DEVICE, "cold", None, BOTH)
        assert mine.claim(FIRST)
        with one_line(NormtuneError, f"another sweep of the same request writes to the store {path}: wait for its end"):
            other.claims(DEVICE, "cold", None, reversed(BOTH))
        with other.claims(DEVICE, "cold", None, [FIRST]) as claims:
            assert claims.claim(FIRST)
        mine.release()
        with other.claims(DEVICE, "cold", None, BOTH) as claims:
            assert claims.claim(FIRST)
    assert [file.name for file in tmp_path.iterdir()] == ["store.db"]


@pytest.mark.slow
def test_two_sweeps_at_once_measure_nothing_twice(server):
    with sweeping(server) as first, sweeping(server) as second:
        for process in (first, second):
            begin(process)
        told = [process.communicate() for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], told
    problems = [{line for line in out.splitlines() if line.startswith("rms_norm_forward ")} for out, _ in told]
    assert len(problems[0] | problems[1]) == 12 and not problems[0] & problems[1]
    assert all(problems), "one of them did everything, so nothing is proved"
    assert set(measurements(server).values()) == {1}


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
