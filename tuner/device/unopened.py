"""The device of a sweep, known without being opened, from the runs of a store.

In: the device's name, the runs of a store. Out: its `Identity`, as the newest run there has it, if the driver confirms
that it is here; None where it has to be opened to be known. A run names the GPU's limits, so NVML's uuid is enough:
neither torch nor a CUDA context, which take seconds, is needed to see that nothing is left to measure.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from normtune.kernels.target import TARGETS, target_for
from normtune.results.records import REPLAY_PREFIX, Run
from normtune.tuner.device.engine import Identity
from normtune.tuner.machine.no_gpu import VISIBLE
from normtune.tuner.machine.probe import Facts, ask

_ORDER = "CUDA_DEVICE_ORDER"
_UUID_PREFIX = "GPU-"
_NVML_SECONDS = 5.0


def unopened(name: str | None, regime: str, runs: Iterable[Run]) -> Identity | None:
    """Identity of a device by the newest run on it.

    Args:
        name: of the device, as in `open.open_device`.
        regime: of the timing.
        runs: of the store.
    """
    kind, _, rest = (name or "cuda:0").partition(":")
    if kind == "replay":
        return _newest(name or "", None, regime, runs)
    runs = [run for run in runs if not run.device.uuid.startswith(REPLAY_PREFIX)]
    if kind != "cuda" or (rest and not rest.isdecimal()) or not runs:
        return None
    facts = ask("nvml", _NVML_SECONDS)
    gpu = gpu_of(int(rest or 0), facts)
    if gpu is None:
        return None
    known = _newest(gpu["uuid"].removeprefix(_UUID_PREFIX), gpu["free_bytes"], regime, runs)
    return known and known._replace(device=known.device._replace(driver=facts["driver"]))


def gpu_of(index: int, facts: Facts, environment: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """NVML's facts about the GPU that CUDA numbers so; None if that cannot be said for certain.

    CUDA numbers GPUs of different models by speed, NVML by their place on the bus. Those of one model share their
    measurements, so one stands for all.
    """
    gpus: list[dict[str, Any]] = facts.get("gpus", [])
    if any(gpu["mig"] for gpu in gpus):
        return None
    if len({gpu["name"] for gpu in gpus}) > 1 and environment.get(_ORDER) != "PCI_BUS_ID":
        return None
    visible = environment.get(VISIBLE)
    if visible is not None:
        numbers = [text.strip() for text in visible.split(",")]
        if not all(text.isdecimal() and int(text) < len(gpus) for text in numbers):
            return None
        gpus = [gpus[int(text)] for text in numbers]
    return gpus[index] if index < len(gpus) else None


def _newest(uuid: str, free_bytes: int | None, regime: str, runs: Iterable[Run]) -> Identity | None:
    run = max((run for run in runs if run.device.uuid == uuid), key=lambda run: run.started, default=None)
    if run is None or run.device.target not in TARGETS:
        return None
    target = target_for(run.device.target, run.device.sms)._replace(l2_bytes=run.device.l2_bytes)
    return Identity(run.device, target, run.software, free_bytes, False, regime)
