"""NVIDIA's GPUs: NVML as a `vendor.Library`, and CUDA's driver, which tells their limits without torch.

In: nothing; a uuid. Out: readings, facts. Neither makes a CUDA context.
"""

import ctypes
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from normtune.kernels.calling.probe import Facts, message
from normtune.tuner.machine.vendor import HARDWARE, POWER, THERMAL, Clocks, Library, State, maybe

# nvmlClocksEventReason* of nvml.h; a GPU that is idle, or has fixed or synchronized clocks, is not slowed down.
_REASONS = {0x4: POWER, 0x8: HARDWARE, 0x20: THERMAL, 0x40: THERMAL, 0x80: HARDWARE}

# CUdevice_attribute of cuda.h.
_ATTRIBUTES = {"sms": 16, "shared_bytes": 97, "warp_size": 10, "max_threads": 1, "l2_bytes": 38}
_ATTRIBUTES |= {"major": 75, "minor": 76}


class Nvml(Library):
    """NVML; a `vendor.Library`."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        self.cuda = maybe(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion()))
        self._events: Any = None

    def gpus(self) -> Sequence[Any]:
        """All GPUs."""
        return [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())]

    def gpu(self, hardware_id: str) -> Any:
        """The GPU of a uuid."""
        return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{hardware_id.removeprefix('GPU-')}")

    def names(self, gpu: Any) -> tuple[str, str, str]:
        """Name, uuid and hardware id."""
        number = str(self._nvml.nvmlDeviceGetUUID(gpu))
        return str(self._nvml.nvmlDeviceGetName(gpu)), number, number.removeprefix("GPU-")

    def clocks(self, gpu: Any) -> Clocks:
        """A quick reading."""
        nvml = self._nvml
        reasons: int | None = maybe(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
        words = None if reasons is None else {word for bit, word in _REASONS.items() if reasons & bit}
        return Clocks(
            maybe(lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            maybe(lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
            None if words is None else tuple(sorted(words)),
        )

    def state(self, gpu: Any) -> State:
        """A full reading."""
        nvml = self._nvml
        memory = maybe(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu))
        return State(
            getattr(memory, "free", None),
            getattr(memory, "total", None),
            maybe(lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            maybe(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3),
            maybe(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1e3),
            maybe(lambda: tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu))),
            maybe(lambda: bool(nvml.nvmlDeviceGetMigMode(gpu)[0])),
            maybe(lambda: self._ecc(gpu, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
            maybe(lambda: self._ecc(gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
        )

    def faults(self, gpu: Any) -> list[int] | None:
        """XID errors since the last call."""
        nvml = self._nvml
        if self._events is None:
            self._events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
        codes = []
        while True:
            try:
                codes.append(int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData))
            except nvml.NVMLError_Timeout:
                return codes

    def _ecc(self, gpu: Any, kind: int) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, self._nvml.NVML_AGGREGATE_ECC))


def driver_facts() -> Facts:
    """GPUs as CUDA numbers them, from the driver alone: without torch, which takes seconds, and without a context.

    Returns:
        `error` (why the driver does not answer), or `driver` (its version, from NVML) and `gpus`, each with `name`,
        `uuid`, `target`, `memory_bytes`, `free_bytes` (None if NVML does not say) and the limits of `Target`.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        _done(cuda.cuInit(0))
        count = _number(cuda.cuDeviceGetCount)
        gpus = [_driver_gpu(cuda, _number(cuda.cuDeviceGet, index)) for index in range(count)]
    except Exception as error:
        return {"error": message(error)}
    try:
        library = Nvml()
        for gpu in gpus:
            gpu["free_bytes"] = maybe(partial(_free_bytes, library, gpu["uuid"]))
    except Exception as error:
        return {"driver": unknown_driver(error), "gpus": gpus}
    return {"driver": library.driver, "gpus": gpus}


def unknown_driver(error: Exception) -> str:
    """In place of the version of a driver whose library does not answer."""
    return f"unknown ({type(error).__name__})"


def _free_bytes(library: Nvml, number: str) -> int | None:
    return library.state(library.gpu(number)).free_bytes


def _driver_gpu(cuda: Any, device: int) -> Facts:
    name, number, size = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16), ctypes.c_size_t()
    _done(cuda.cuDeviceGetName(name, len(name), device))
    _done(cuda.cuDeviceGetUuid_v2(number, device))
    _done(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device))
    limits = {key: _number(cuda.cuDeviceGetAttribute, place, device) for key, place in _ATTRIBUTES.items()}
    return {
        "name": name.value.decode("utf-8", "replace"),
        "uuid": str(uuid.UUID(bytes=number.raw)),
        "target": f"sm_{limits.pop('major')}{limits.pop('minor')}",
        "memory_bytes": size.value,
        "free_bytes": None,
        **limits,
    }


def _number(function: Callable[..., int], *arguments: int) -> int:
    """The number that a function of the driver writes to its first argument."""
    number = ctypes.c_int()
    _done(function(ctypes.byref(number), *arguments))
    return number.value


def _done(status: int) -> None:
    if status:
        raise OSError(f"CUDA's driver answers with error {status}")
