"""A lost worker costs only the config that lost it; no process is left behind."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tests.commands import wait_until
from normtune.tuner.device import bench as bench_module
from normtune.tuner.device import worker as worker_module
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import DeviceGoneError, SkippedError
from normtune.tuner.plan.plan import Task, candidates
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import Exhaustive

pytestmark = pytest.mark.long

SPEC = operator("rms_norm_forward")
PROBLEM = SPEC.problem(64, 4096, "bfloat16")
# Far enough apart that they never are close to the best, which is the one of two warps.
CONFIGS = [RMSNormConfig("row", 1, warps) for warps in (2, 4, 8, 16)]
TASK = Task(PROBLEM, tuple(candidates(SPEC, CONFIGS, PROBLEM, TARGETS["sm_90"])[0]))


def adaptive(task=TASK):
    return Adaptive((), {}).batches(task)


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Opens benches with faults, patient for three seconds, and sees that nothing of them is left in the end."""
    for name in ("STEP_SECONDS", "STEPS_SECONDS"):
        monkeypatch.setattr(bench_module, name, 3.0)
    benches = []

    def make(*faults, once=False):
        benches.append(Bench(("normtune.tests.tuner.hostile_engine", "HostileEngine", (faults, str(tmp_path), once))))
        wait_until((tmp_path / "processes").exists)
        benches[-1].open()
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()
    processes = (tmp_path / "processes").read_text().split()
    assert processes and not any(Path(f"/proc/{pid}").exists() for pid in processes)


def statuses(outcomes):
    return {config.num_warps: outcome.status for config, outcome in outcomes.items() if config != COPY}


@pytest.mark.slow
def test_without_faults_everything_is_timed_by_one_worker(opened, tmp_path):
    bench = opened()
    assert bench.device.name == "Made Up" and bench.target == TARGETS["sm_90"]
    outcomes = bench.measure(TASK, adaptive())
    assert statuses(outcomes) == dict.fromkeys((2, 4, 8, 16), "ok")
    assert len(outcomes[CONFIGS[0]].rounds) == 16 and len(outcomes[CONFIGS[3]].rounds) == 6
    assert outcomes[COPY].nanoseconds == [500] * 16
    phases = bench.phases()
    assert phases.protocol == {"regime": "cold", "rounds": 24, "void_rounds": 8, "worker_restarts": 0}
    assert bench.close() == {"sm_clock_mhz": [1, 2, 3]}
    assert len((tmp_path / "processes").read_text().split()) == 1


REASONS = {
    "hang": ("timeout", "no answer for 3 s"),
    "segfault": ("crashed", "the process died (signal SIGSEGV)"),
    "exit_at_once": ("crashed", "the process died (exit code 3)"),
    "kill": ("crashed", "the process died (signal SIGKILL)"),
    "lose_device": ("crashed", "an illegal memory access was encountered"),
}
STEPS = ("gate", "warm_up", "block", "compare")


# A process that ends is one that ends, however it does: of the three ways one is tried at each step.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "fault"),
    [*product(STEPS, ("hang", "segfault", "lose_device")), ("block", "exit_at_once"), ("gate", "kill")],
)
def test_a_config_that_loses_the_worker_is_stored_with_its_reason_and_the_others_go_on(opened, step, fault):
    status, reason = REASONS[fault]
    bench = opened((step, 8, fault))
    outcomes = bench.measure(TASK, adaptive())
    assert statuses(outcomes) == {2: "ok", 4: "ok", 8: status, 16: "ok"}
    assert reason in outcomes[CONFIGS[2]].reason and step in outcomes[CONFIGS[2]].reason
    assert len(outcomes[CONFIGS[0]].rounds) == 16
    assert 1 <= bench.phases().protocol["worker_restarts"] <= 2
    # A binary that failed in the gate is not tried again.
    again = bench.measure(TASK, adaptive()) if step == "gate" else None
    assert again is None or statuses(again) == statuses(outcomes)


CHOOSY = """
from normtune.tests.tuner.hostile_engine import HostileEngine
from normtune.results.records import Outcome

class ChoosyEngine(HostileEngine):
    def gate(self, problem, candidate):
        if candidate.launch.grid == {grid}:
            return Outcome("wrong_result", "y is off")
"""


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_a_launch_that_fails_the_gate_convicts_no_other_launch_of_its_binary(opened, tmp_path, monkeypatch, alike):
    configs = [RMSNormConfig("persistent", 1, 2, programs_per_sm=count) for count in (2, 4)]
    task = Task(PROBLEM._replace(rows=4096), ())
    task = task._replace(candidates=tuple(candidates(SPEC, configs, task.problem, TARGETS["sm_90"])[0]))
    first, second = (candidate.launch for candidate in task.candidates)
    assert first.binary == second.binary and first != second
    if not alike:  # as of an operator without a trial of its own
        monkeypatch.setattr(bench_module, "gate_launch", lambda spec, problem, one, target: (problem, one.launch))
    (tmp_path / "choosy.py").write_text(CHOOSY.format(grid=first.grid))
    monkeypatch.syspath_prepend(str(tmp_path))
    opened()
    bench = Bench(("choosy", "ChoosyEngine", ((), str(tmp_path))))
    try:
        outcomes = bench.measure(task, adaptive(task))
    finally:
        bench.close()
    told = [outcomes[candidate.config].status for candidate in task.candidates]
    assert told == ["wrong_result", "wrong_result" if alike else "ok"]


@pytest.mark.slow
def test_two_configs_may_lose_the_worker_in_one_problem(opened):
    outcomes = opened(("warm_up", 4, "segfault"), ("block", 16, "lose_device")).measure(
        TASK, Exhaustive((), {}).batches(TASK)
    )
    assert statuses(outcomes) == {2: "ok", 4: "crashed", 8: "ok", 16: "crashed"}


@pytest.mark.slow
def test_all_configs_may_fail(opened):
    outcomes = opened(*(("gate", warps, "lose_device") for warps in (2, 4, 8, 16))).measure(TASK, adaptive())
    assert statuses(outcomes) == dict.fromkeys((2, 4, 8, 16), "crashed") and COPY not in outcomes


@pytest.mark.slow
@pytest.mark.parametrize(("step", "warps"), [("gate", 8), ("begin", 0), ("warm_up", 8), ("block", 8), ("compare", 8)])
def test_a_worker_that_somebody_else_kills_convicts_nobody(opened, step, warps):
    outcomes = opened((step, warps, "kill"), once=True).measure(TASK, adaptive())
    assert statuses(outcomes) == dict.fromkeys((2, 4, 8, 16), "ok")


def test_a_wrong_result_after_timing_is_stored_as_one(opened):
    outcomes = opened(("lie", 2, "")).measure(TASK, adaptive())
    assert statuses(outcomes) == {2: "wrong_result", 4: "ok", 8: "ok", 16: "ok"}
    assert (outcomes[CONFIGS[0]].reason, outcomes[CONFIGS[0]].rounds) == ("off", ())


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_problem_that_does_not_fit_is_skipped_and_the_worker_stays(opened, tmp_path, step):
    bench = opened((step, 8, "run_out_of_memory"), once=True)
    with pytest.raises(SkippedError, match=r"tried to allocate 16\.00 GiB"):
        bench.measure(TASK, adaptive())
    assert statuses(bench.measure(TASK, adaptive())) == dict.fromkeys((2, 4, 8, 16), "ok")
    assert len((tmp_path / "processes").read_text().split()) == 1


@pytest.mark.slow
def test_a_copy_that_loses_the_worker_skips_the_problem(opened):
    with pytest.raises(SkippedError, match="a plain copy failed"):
        opened(("block", COPY.num_warps, "segfault")).measure(TASK, adaptive())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("refuse", UsageError, "^there is no such engine$"),
        ("fail", NormtuneError, "^the driver says no: say yes$"),
        ("bug", RuntimeError, "ZeroDivisionError"),
        ("segfault", NormtuneError, r"was lost 4 times in a row, .* \(signal SIGSEGV\); everything measured is stored"),
    ],
)
def test_an_engine_that_cannot_be_opened_says_why(opened, fault, kind, message):
    with pytest.raises(kind, match=message):
        opened(("open", 0, fault))


@pytest.mark.slow
def test_a_worker_that_dies_over_and_over_ends_the_sweep(opened, monkeypatch):
    bench = opened(("begin", 0, "segfault"), ("gate", 2, "segfault"), ("gate", 4, "segfault"))
    with pytest.raises(SkippedError, match=r"lost before any config \(the process died \(signal SIGSEGV\)\)"):
        bench.measure(TASK, adaptive())
    monkeypatch.setattr(bench_module, "MAX_LOST_BY_CONFIGS", 2)
    wider = SPEC.problem(64, 8192, "bfloat16")
    other = Task(wider, tuple(candidates(SPEC, CONFIGS, wider, TARGETS["sm_90"])[0]))
    with pytest.raises(NormtuneError, match=r"was lost 3 times in a row"):
        bench.measure(other, adaptive(other))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang", "no answer for 3 s"),
        ("segfault", r"the process died \(signal SIGSEGV\)"),
        ("lose_device", "an illegal memory access"),
        ("run_out_of_memory", "CUDA out of memory"),
    ],
)
def test_a_device_that_cannot_even_copy_is_told(opened, fault, reason):
    with pytest.raises(NormtuneError, match=rf"Made Up cannot be measured, a plain copy failed \({reason}"):
        opened(("try_copy", 0, fault)).examine([])


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_copies_is_replaced(opened):
    bench = opened(("try_copy", 0, "kill"), once=True)
    bench.examine([])
    assert bench.phases().protocol["worker_restarts"] == 1


@pytest.mark.slow
def test_a_start_that_hangs_is_given_up(opened, monkeypatch):
    monkeypatch.setattr(worker_module, "START_SECONDS", 1.0)
    with pytest.raises(NormtuneError, match="no answer for 1 s"):
        opened(("open", 0, "hang"))


@pytest.mark.slow
def test_an_interrupt_ends_the_worker_at_once(opened, tmp_path):
    bench = opened(("block", 8, "hang"))
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        bench.measure(TASK, adaptive())
    timer.join()


@pytest.mark.slow
def test_the_last_words_of_a_worker_are_its_reason(opened, tmp_path):
    code = "import os, sys; os.write(2, b'first\\nCUDA assertion failed at line 3\\n'); os._exit(1)"
    (tmp_path / "talkative.py").write_text(f"def engine():\n    exec({code!r})\n")
    sys.path.insert(0, str(tmp_path))
    try:
        opened()
        with pytest.raises(NormtuneError, match=r"\(exit code 1: CUDA assertion failed at line 3\)"):
            Bench(("talkative", "engine", ())).open()
    finally:
        sys.path.remove(str(tmp_path))


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_worker(opened, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from normtune.tuner.device.bench import Bench\n"
        "if __name__ == '__main__':\n"
        f"    bench = Bench(('normtune.tests.tuner.hostile_engine', 'HostileEngine', ((), {str(tmp_path)!r})))\n"
        "    bench.open()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(3600)\n"
    )
    opened()
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"ready\n"
    worker = (tmp_path / "processes").read_text().split()[-1]
    assert Path(f"/proc/{worker}").exists()
    parent.kill()
    parent.wait()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.slow
def test_a_measurement_that_another_thread_waits_for_is_stopped(opened):
    bench = opened(("block", 4, "hang"))
    process = bench.worker()._process
    with ThreadPoolExecutor(1) as thread:
        measured = thread.submit(bench.measure, TASK, adaptive())
        wait_until(measured.running)
        bench.stop()
        with pytest.raises(DeviceGoneError, match="were stopped"):
            measured.result()
    assert not process.is_alive()
    assert bench.close() == {}
