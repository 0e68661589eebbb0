"""The engine of a GPU of AMD that is not there, as far as a CPU can.

torch for ROCm and amdsmi are faked, kernels are interpreted, with few compute units and a small cache, so that this
takes seconds. Opened by workers in tests. What torch for ROCm refuses raises here, too: events as nodes of graphs.
"""

import os
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

PROPERTIES = SimpleNamespace(
    **{"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-", "multi_processor_count": 4},
    **{"shared_memory_per_block": 65536, "warp_size": 64, "L2_cache_size": 4096, "total_memory": 192 << 30},
    **{"uuid": "37656464-3566-3833-3464-343933666665", "pci_domain_id": 0, "pci_bus_id": 0x63, "pci_device_id": 0},
)


class Event:
    """An event of a stream."""

    capturing = False

    def __init__(self, enable_timing=False, external=False):
        if external:
            raise RuntimeError("External events are disallowed in rocm")

    def record(self):
        assert not Event.capturing
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


class Graph:
    """A captured graph, which runs what was captured."""

    def __init__(self, stream, *steps):
        self._steps = steps
        Event.capturing = True
        try:
            for step in steps:
                step()
        finally:
            Event.capturing = False

    def replay(self):
        for step in self._steps:
            step()


class _Torch:
    """torch, with every GPU on the CPU."""

    def __getattr__(self, name):
        import torch

        return getattr(torch, name)

    def device(self, *_):
        import torch

        return torch.device("cpu")


def open_rocm():
    """The engine of the first GPU."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from normtune.tests.tuner.made_up_smi import AmdSmi
    from normtune.tuner.device import cuda
    from normtune.tuner.machine import no_gpu
    from normtune.tuner.timing import batch, gate, rounds, timing

    sys.modules["amdsmi"] = smi = AmdSmi()
    smi.amdsmi_get_gpu_cache_info = lambda gpu: {  # a cache that an interpreter reads in no time
        "cache": [{"cache_level": 3, "cache_size": 64, "num_cache_instance": 1}]
    }
    torch.version.cuda, torch.version.hip = None, "6.4.43484"
    faked = {
        **{"init": lambda: None, "device_count": lambda: 1, "get_device_properties": lambda index: PROPERTIES},
        **{"set_device": lambda device: None, "synchronize": lambda device=None: None, "empty_cache": lambda: None},
        **{"mem_get_info": lambda device: (190 << 30, 192 << 30), "stream": lambda stream: nullcontext()},
        **{"Stream": lambda device: SimpleNamespace(device=device), "Event": Event},
    }
    for name, function in faked.items():
        setattr(torch.cuda, name, function)
    cuda.torch = _Torch()
    batch.capture = gate.capture = Graph
    timing.SENTINEL_BYTES, timing.WARM_UP_SECONDS, gate.CALLS = 1 << 14, 0.0, 2
    rounds.MAX_VOID_ROUNDS = 0  # an interpreter's times never agree
    no_gpu.at_a_glance = str  # this machine's torch is another one
    assert no_gpu.why_no_gpu() == ""
    return cuda.CudaEngine(0)
