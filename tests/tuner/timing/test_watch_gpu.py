"""The vendor's library of a real GPU tells what the made-up ones do."""

import subprocess
import sys
import time

import pytest
import torch

from normtune.kernels.calling.device import hardware_id
from normtune.tuner.machine.vendor import open_library
from normtune.tuner.timing.disturbance import WARNINGS
from normtune.tuner.timing.watch import Watch

pytestmark = pytest.mark.gpu

NEIGHBOUR = "import torch; torch.ones(1, device='cuda'); print(flush=True); input()"


@pytest.fixture
def hardware():
    torch.ones(1, device="cuda")
    return hardware_id(torch.cuda.get_device_properties(0))


def test_the_library_knows_the_gpu_its_clocks_and_its_memory(hardware):
    library = open_library(torch.version.hip is not None)
    gpu = library.gpu(hardware)
    assert library.names(gpu)[2] == hardware
    clocks, state = library.clocks(gpu), library.state(gpu)
    assert 0 < clocks.mhz <= state.most_mhz and 0 < clocks.temperature_c < 120 and clocks.throttled is not None
    assert 0 < state.free_bytes < state.total_bytes and 0 < state.power_watts <= state.default_power_watts
    assert library.faults(gpu) == ([] if torch.version.hip is None else None)


def test_a_neighbour_is_told(hardware):
    is_hip = torch.version.hip is not None
    library = open_library(is_hip)
    watch = Watch(hardware, is_hip)
    child = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline()
        if len(library.state(library.gpu(hardware)).processes or ()) < 2:
            pytest.skip("this container hides the processes on the GPU")
        watch.start()
        time.sleep(0.5)
        found = watch.stop()
    finally:
        child.kill()
        child.communicate()
    assert "other_processes" in found[WARNINGS]
