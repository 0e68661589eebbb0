"""What CUDA's driver says of its GPUs, by a driver made up here."""

import ctypes
import sys
import uuid
from types import SimpleNamespace

import pytest

from normtune.kernels.calling.probe import facts_in_child
from normtune.tuner.machine.nvidia import driver_facts
from normtune.tuner.machine.vendor import smi_facts

UUID = "01020304-0506-0708-090a-0b0c0d0e0f10"
ATTRIBUTES = {16: 132, 97: 232448, 10: 32, 1: 1024, 38: 60 << 20, 75: 9, 76: 0}


class Driver:
    """`libcuda.so.1` of two GPUs; `failing` names a function that answers with an error."""

    def __init__(self, failing=""):
        self._failing = failing

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "_failing"):
            return lambda *arguments: 999
        return object.__getattribute__(self, name)

    def cuInit(self, flags):
        return flags

    def cuDeviceGetCount(self, count):
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = 10 + index
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = f"GPU {device}".encode()
        return 0 if length == len(name) else 1

    def cuDeviceGetUuid_v2(self, number, device):
        number.raw = uuid.UUID(UUID).bytes
        return 0

    def cuDeviceTotalMem_v2(self, size, device):
        size._obj.value = 140 << 30
        return 0

    def cuDeviceGetAttribute(self, number, attribute, device):
        number._obj.value = ATTRIBUTES[attribute]
        return 0


@pytest.fixture
def nvml(monkeypatch):
    free = {f"GPU-{UUID}": SimpleNamespace(free=7)}
    functions = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "590.1",
        "nvmlDeviceGetHandleByUUID": lambda name: name,
        "nvmlDeviceGetMemoryInfo": free.__getitem__,
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**functions))


def test_its_gpus_have_names_limits_and_free_memory(monkeypatch, nvml):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: {"libcuda.so.1": Driver()}[name])
    facts = driver_facts()
    assert facts["driver"] == "590.1" and [gpu["name"] for gpu in facts["gpus"]] == ["GPU 10", "GPU 11"]
    limits = {"sms": 132, "shared_bytes": 232448, "warp_size": 32, "max_threads": 1024, "l2_bytes": 60 << 20}
    sizes = {"memory_bytes": 140 << 30, "free_bytes": 7}
    assert facts["gpus"][0] == {"name": "GPU 10", "uuid": UUID, "target": "sm_90", **sizes, **limits}


def test_without_nvml_the_driver_has_no_version_and_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    facts = driver_facts()
    assert facts["driver"] == "unknown (ModuleNotFoundError)"
    assert [gpu["free_bytes"] for gpu in facts["gpus"]] == [None, None]


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDeviceGetUuid_v2"])
def test_an_error_of_the_driver_is_its_answer(monkeypatch, function):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(function))
    assert driver_facts() == {"error": "OSError: CUDA's driver answers with error 999"}


def test_no_driver_is_an_error(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_facts() == {"error": "OSError: libcuda.so.1: cannot open shared object file"}


@pytest.mark.gpu
def test_torch_says_the_same():
    import torch

    from normtune.kernels.calling.device import describe

    gpus = facts_in_child(driver_facts)["gpus"]
    assert len(gpus) == torch.cuda.device_count()
    for index, gpu in enumerate(gpus):
        properties, target = torch.cuda.get_device_properties(index), describe(index)
        assert (gpu["name"], gpu["uuid"]) == (properties.name, str(properties.uuid))
        assert gpu["memory_bytes"] == properties.total_memory
        assert (gpu["target"], *(gpu[name] for name in target._fields[1:])) == tuple(target)
        assert 0 < gpu["free_bytes"] <= gpu["memory_bytes"]
    assert facts_in_child(driver_facts)["driver"] == facts_in_child(smi_facts)["driver"]
