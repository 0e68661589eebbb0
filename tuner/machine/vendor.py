"""What the management library of a GPU's vendor says of it: one interface for NVIDIA's NVML and AMD's amdsmi.

In: whether torch is built for ROCm; a GPU's hardware id (`kernels.calling.device.hardware_id`). Out: readings, in which
a value that the library, the driver or the GPU does not have is None. `nvidia` and `amd` alone know a library.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from normtune.kernels.calling.probe import Facts, message

# One of them is there wherever an NVIDIA driver or, in WSL, that of Windows is; AMD's driver has the last one.
NVIDIA_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
AMD_FILE = "/dev/kfd"

# Reasons for low clocks, as words. The first is usual under load, the others are not.
POWER, THERMAL, HARDWARE = "power limit", "heat", "hardware slowdown"

Value = TypeVar("Value")


class Clocks(NamedTuple):
    """What changes from moment to moment: SM clock (MHz), temperature (C), reasons for low clocks (words, as above)."""

    mhz: int | None
    temperature_c: int | None
    throttled: tuple[str, ...] | None


class State(NamedTuple):
    """What changes rarely.

    Attributes:
        free_bytes, total_bytes: device memory.
        most_mhz: greatest SM clock.
        power_watts, default_power_watts: limit of its power, and that limit as delivered.
        processes: ids of the processes that compute on it or hold a context.
        is_divided: whether it is divided into parts (MIG, compute partitions).
        corrected, uncorrected: ECC errors in its life.
    """

    free_bytes: int | None
    total_bytes: int | None
    most_mhz: int | None
    power_watts: float | None
    default_power_watts: float | None
    processes: tuple[int, ...] | None
    is_divided: bool | None
    corrected: int | None
    uncorrected: int | None


class Library(Protocol):
    """A management library, which its constructor opens; `Any` is its own handle of a GPU.

    Attributes:
        driver: version of the driver.
        cuda: newest CUDA that the driver supports, as 13000; None with ROCm.
    """

    driver: str
    cuda: int | None = None

    def gpus(self) -> Sequence[Any]:
        """All GPUs, those hidden from torch included."""

    def gpu(self, hardware_id: str) -> Any:
        """The GPU of a hardware id."""

    def names(self, gpu: Any) -> tuple[str, str, str]:
        """Name, uuid and hardware id of a GPU."""

    def clocks(self, gpu: Any) -> Clocks:
        """A quick reading."""

    def state(self, gpu: Any) -> State:
        """A full reading."""

    def faults(self, gpu: Any) -> list[int] | None:
        """Codes of the faults since the last call (NVIDIA's XID), to which the first call begins to listen."""
        return None  # amdsmi reports a reset only to those who may read the driver's events

    def cache_bytes(self, gpu: Any) -> int | None:
        """Size of the cache in front of its memory, if that is another one than torch's L2."""
        return None


def open_library(is_hip: bool) -> Library:
    """The library of a vendor, opened; any exception means that it is missing or does not answer."""
    if is_hip:
        from normtune.tuner.machine.amd import AmdSmi

        return AmdSmi()
    from normtune.tuner.machine.nvidia import Nvml

    return Nvml()


def is_amd_here() -> bool:
    """Whether this machine's GPUs are AMD's, by the files of drivers and torch's version, without loading anything."""
    if any(Path(file).exists() for file in NVIDIA_FILES):
        return False
    try:
        return "+rocm" in version("torch") or Path(AMD_FILE).exists()
    except PackageNotFoundError:
        return Path(AMD_FILE).exists()


def smi_facts() -> Facts:
    """GPUs according to the vendor's library, for `probe.ask`.

    Returns:
        `library`, `package` (for pip), and `missing` (it cannot be imported), `error` (it does not start), or `driver`,
        `cuda` and `gpus`, each with `name`, `uuid`, `id`, `clock_mhz` and what a `State` has.
    """
    is_hip = is_amd_here()
    library_name, package = ("amdsmi", "/opt/rocm/share/amd_smi") if is_hip else ("NVML", "nvidia-ml-py")
    facts: Facts = {"library": library_name, "package": package}
    try:
        import_module("amdsmi" if is_hip else "pynvml")
    except Exception as error:  # a broken one raises anything
        return facts | {"missing": message(error)}
    try:
        library = open_library(is_hip)
        gpus = [_gpu_facts(library, gpu) for gpu in library.gpus()]
        return facts | {"driver": library.driver, "cuda": library.cuda, "gpus": gpus}
    except Exception as error:
        return facts | {"error": message(error)}


def _gpu_facts(library: Library, gpu: Any) -> Facts:
    name, uuid, hardware_id = library.names(gpu)
    named = {"name": name, "uuid": uuid, "id": hardware_id, "clock_mhz": library.clocks(gpu).mhz}
    return named | library.state(gpu)._asdict()


def maybe(function: Callable[[], Value]) -> Value | None:
    """A value of a library; None if this driver or GPU does not have it."""
    try:
        return function()
    except Exception:
        return None
