"""Kernels that hang, fault, crash and lie on purpose, swept on a GPU: each costs itself alone, and none wins."""

import sys
import time

import pytest

from normtune.kernels.config import COPY
from normtune.tests.kernels.registry import forgetting
from normtune.tests.results.stores import loaded
from normtune.tests.tuner.hostile_sweep import OPERATOR, start

pytestmark = pytest.mark.gpu

# What comes of each fault, and how the reason begins.
EXPECTED = {
    "none": ("ok", ""),
    "hang": ("timeout", "in the gate: no answer for 6 s"),
    "out_of_bounds": ("crashed", "in the gate: "),
    "out_of_memory": ("out_of_resources", "its launch allocates more memory than is free"),
    "kill": ("crashed", "in the gate: the process died (signal SIGKILL"),
    "raise": ("crashed", "ValueError: rows of two and more are beyond me"),
    "wrong": ("wrong_result", "y: error is "),
    "wrong_now_and_then": ("wrong_result", "y: error is "),
    "hang_in_compiler": ("timeout", "compiling took over 15 s"),
    "kill_compiler": ("crashed", "the compiler's process died (exit code 9)"),
}
AT_ONE_SIZE = {
    "wrong_at_one_size": ("wrong_result", "after timing: y: error is "),
    "hang_at_one_size": ("timeout", "in warm_up: no answer for 6 s"),
    "out_of_bounds_at_one_size": ("crashed", "in warm_up: "),
}


def compute_processes():
    """Processes on GPU 0 and its used memory in MB, as the driver sees them."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)), memory.used >> 20


@pytest.fixture
def hostile_spec(monkeypatch):
    monkeypatch.syspath_prepend(str(OPERATOR))
    forgetting(monkeypatch)
    monkeypatch.delitem(sys.modules, "hostile_spec", raising=False)
    import hostile_spec

    yield hostile_spec
    sys.modules.pop("hostile_spec", None)


def test_every_fault_costs_its_config_alone(tmp_path, hostile_spec):
    before = compute_processes()
    sizes = ("--shapes", f"4999,{hostile_spec.ROWS}x256")
    sweep = start(tmp_path, *sizes, every=True)
    output, errors = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, output + errors
    assert "2 problems measured" in output, output
    found = {(item.problem.rows, item.config): item for item in loaded(f"sqlite:///{tmp_path}/store.db").measurements()}
    for rows in (4999, hostile_spec.ROWS):
        expected = dict(EXPECTED)
        for fault, outcome in AT_ONE_SIZE.items():
            expected[fault] = outcome if rows == hostile_spec.ROWS else ("ok", "")
        for fault, (status, reason) in expected.items():
            item = found.pop((rows, hostile_spec.config_of(fault)))
            assert item.status == status and item.reason.startswith(reason), (rows, fault, item)
        for warps in (1, 2, 8):
            assert found.pop((rows, hostile_spec.config_of("none", warps))).status == "ok"
        assert found.pop((rows, COPY)).status == "ok"
    assert not found
    again = start(tmp_path, *sizes, every=True)
    output, errors = again.communicate(timeout=60)
    assert again.returncode == 0 and "nothing to do" in output, output + errors
    time.sleep(2)
    after = compute_processes()
    assert after[0] <= before[0] and after[1] <= before[1] + 64
