"""The identity of a sweep's device before it is opened: from CUDA's driver, or for a replay from the runs of a store.

In: the device's name, the runs of a store. Out: its `Identity`, or None if the device has to be opened first. It needs
neither torch nor a CUDA context, which take seconds, so that a sweep can plan, or find that nothing is left to measure,
without them.
"""

from collections.abc import Iterable

from normtune.kernels.calling.probe import ask
from normtune.kernels.target import TARGETS, Target
from normtune.results.records import Device, Run
from normtune.tuner.device.engine import Identity

_DRIVER_SECONDS = 10.0


def unopened(name: str | None, regime: str, runs: Iterable[Run]) -> Identity | None:
    """Identity of a device, with the software of its newest run; None if the device has to be opened first.

    Args:
        name: of the device, as in `open.open_device`.
        regime: of the timing.
        runs: of the store.
    """
    kind, _, rest = (name or "cuda:0").partition(":")
    if kind == "replay":
        return _replayed(name or "", regime, runs)
    if kind != "cuda" or (rest and not rest.isdecimal()):
        return None
    facts = ask("driver", _DRIVER_SECONDS)
    gpus, index = facts.get("gpus", []), int(rest or 0)
    if index >= len(gpus):
        return None
    gpu = gpus[index]
    target = Target(gpu["target"], *(gpu[name] for name in Target._fields[1:]))
    device = Device(
        *(gpu["name"], target.name, target.sms, target.l2_bytes, gpu["memory_bytes"], gpu["uuid"], facts["driver"])
    )
    run = _newest(device.uuid, runs)
    return Identity(device, target, run.software if run else {}, gpu["free_bytes"], True, regime)


def _replayed(name: str, regime: str, runs: Iterable[Run]) -> Identity | None:
    run = _newest(name, runs)
    if run is None or run.device.target not in TARGETS:
        return None
    target = run.device.as_target()
    return Identity(run.device, target, run.software, None, False, regime)


def _newest(uuid: str, runs: Iterable[Run]) -> Run | None:
    return max((run for run in runs if run.device.uuid == uuid), key=lambda run: run.started, default=None)
