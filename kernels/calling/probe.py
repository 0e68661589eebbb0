"""Facts about this machine from torch, Triton, CUDA's driver, NVML and other packages, each queried in its own process.

In: a subject. Out: plain facts, as a JSON dictionary. A broken library may raise anything, end its process or hang; the
caller is safe from all three. `no_gpu` and `checks` interpret the facts.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from typing import Any

# torch loads in 2 to 20 s, from a slow disk in up to a minute.
TIMEOUT_SECONDS = 120.0

# Dependencies beside torch, Triton and NVML. Each distribution has the name of its module.
PACKAGES = ("numpy", "optuna", "pandas", "pebble", "pyarrow", "rich", "scipy", "sqlalchemy", "threadpoolctl", "typer")

# CUdevice_attribute of cuda.h.
_ATTRIBUTES = {
    "sms": 16,
    "shared_bytes": 97,
    "warp_size": 10,
    "max_threads": 1,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
}

Facts = dict[str, Any]


def torch_facts() -> Facts:
    """Version of torch and the GPUs that it can use; starts CUDA in this process.

    Returns:
        `missing` (reason why the import fails, with the error's name), or `version`, `cuda` (version of the build, None
        for a build without CUDA), `hip`, `error` (reason why CUDA does not start; empty if it does) and `gpus`, each
        with `name`, `target`, `sms` and `uuid`.
    """
    try:
        import torch

        from normtune.kernels.calling.device import describe
    except (Exception, SystemExit) as error:
        return {"missing": _message(error)}
    facts: Facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    try:
        # NVML also counts GPUs whose driver is too old for torch's CUDA.
        torch.cuda.init()
        gpus = []
        for index in range(torch.cuda.device_count()):
            properties, target = torch.cuda.get_device_properties(index), describe(index)
            named = {"name": properties.name, "uuid": str(properties.uuid)}
            gpus.append(named | {"target": target.name, "sms": target.sms})
    # A build without CUDA raises AssertionError.
    except Exception as error:
        return facts | {"error": _message(error), "gpus": []}
    return facts | {"error": "", "gpus": gpus}


def triton_facts() -> Facts:
    """`missing`, or `version` and `cache`, the folder of its compiled kernels."""
    try:
        import triton
        from triton import knobs

        return {"version": triton.__version__, "cache": str(knobs.cache.dir)}
    except (Exception, SystemExit) as error:
        return {"missing": _message(error)}


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
        return {"error": _message(error)}
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for gpu in gpus:
            gpu["free_bytes"] = _maybe(partial(_free_bytes, pynvml, f"GPU-{gpu['uuid']}"))
    except Exception as error:
        driver = f"unknown ({type(error).__name__})"
    return {"driver": driver, "gpus": gpus}


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


def _free_bytes(nvml: Any, name: str) -> int:
    return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(name)).free)


def nvml_facts() -> Facts:
    """GPUs according to the driver, including those hidden by CUDA_VISIBLE_DEVICES.

    Returns:
        `missing` (pynvml cannot be imported), `error` (NVML does not start), or `driver`, `cuda` (newest version that
        the driver supports, as 13000) and `gpus`, each with `name`, `uuid`, `free_bytes`, `total_bytes`, `clock_mhz`,
        `most_mhz`, `power_watts` (the limit), `mig` and `processes`, a list of process ids. None for a value that NVML
        does not give.
    """
    try:
        import pynvml
    except Exception as error:
        return {"missing": _message(error)}
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        gpus = [_nvml_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
        return {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": _maybe(lambda: pynvml.nvmlSystemGetCudaDriverVersion()),
            "gpus": gpus,
        }
    except Exception as error:
        return {"error": _message(error)}


def _nvml_gpu(nvml: Any, handle: Any) -> Facts:
    memory = _maybe(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "free_bytes": getattr(memory, "free", None),
        "total_bytes": getattr(memory, "total", None),
        "clock_mhz": _maybe(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "most_mhz": _maybe(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "power_watts": _maybe(lambda: round(nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000)),
        "mig": _maybe(lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
        "processes": _maybe(lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
    }


def package_facts() -> Facts:
    """Version of each of `PACKAGES`, or the reason why it is `missing`."""
    facts: Facts = {}
    for name in PACKAGES:
        reason = _importable(name)
        facts[name] = {"missing": reason} if reason else {"version": metadata.version(name)}
    return facts


_SUBJECTS: dict[str, Callable[[], Facts]] = {
    "torch": torch_facts,
    "triton": triton_facts,
    "nvml": nvml_facts,
    "driver": driver_facts,
    "packages": package_facts,
}


def ask(subject: str, timeout: float = TIMEOUT_SECONDS) -> Facts:
    """Facts about `torch`, `triton`, `nvml`, `driver` or `packages`, collected in a child process.

    Returns:
        Result of the function of that name; `missing` if the process died, hung or printed nothing.
    """
    # The child gets the import path of this process.
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer; answer({subject!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"missing": f"loading it takes over {timeout:g} s"}
    except OSError as error:
        return {"missing": f"no process can be started ({error.strerror or error})"}
    with contextlib.suppress(ValueError, IndexError):
        facts = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
        if isinstance(facts, dict):
            return facts
    errors = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return {"missing": f"loading it ended its process with {ended}" + (f": {errors[-1]}" if errors else "")}


def answer(subject: str) -> None:
    """Print the facts about a subject as the last line of stdout; runs in the child."""
    facts = _SUBJECTS[subject]()
    sys.stdout.write("\n" + json.dumps(facts) + "\n")
    sys.stdout.flush()
    # Skips the unloading of libraries: a broken one may crash there.
    os._exit(0)


def _importable(name: str) -> str:
    """Reason why a package cannot be imported or has no metadata; empty if it can and has."""
    try:
        metadata.version(name)
        import_module(name)
    except (Exception, SystemExit) as error:
        return _message(error)
    return ""


def _message(error: BaseException) -> str:
    """Message of an error in one line, with its name."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _maybe(function: Callable[[], Any]) -> Any:
    """A value from NVML; None if this driver or GPU does not have it."""
    try:
        return function()
    except Exception:
        return None
