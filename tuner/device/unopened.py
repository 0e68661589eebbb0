"""The identity of devices that are not open: from CUDA's driver, for a replay from a store, of an H200 for no GPU.

In: the devices' names, the runs of a store. Out: for each its `Identity`, or None if the device has to be opened first.
It needs neither torch nor a CUDA context, which take seconds, so that a sweep can plan, or find that nothing is left to
measure, without them. A GPU of AMD has to be opened.
"""

from collections.abc import Collection
from typing import NamedTuple

from normtune.kernels.calling.probe import Facts, facts_in_child
from normtune.kernels.target import TARGETS, Target
from normtune.results.records import Device, Run
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import ALL, names_of, split
from normtune.tuner.machine.nvidia import driver_facts

_DRIVER_SECONDS = 10.0


class Named(NamedTuple):
    """Name and identity of a device; the identity is None if it has to be opened first."""

    name: str | None
    identity: Identity | None


def absent_gpu(regime: str) -> Identity:
    """The limits of an H200, for a regime of the timing."""
    target = TARGETS["sm_90"]
    device = Device("no GPU here, planned as for an H200", "sm_90", target.sms, target.l2_bytes, 0, "absent", "none")
    return Identity(device, target, {}, None, False, regime)


def unopened(names: str | None, regime: str, runs: Collection[Run]) -> list[Named]:
    """Identities of devices, with the software of the newest run of each.

    Args:
        names: as in `open.names_of`; `all` gives each GPU of the driver, or without one `None`.
        regime: of the timing.
        runs: of the store.
    """
    listed = names_of(names)
    are_replays = names != ALL and split(listed[0])[0] == "replay"
    facts = {} if are_replays else facts_in_child(driver_facts, _DRIVER_SECONDS)
    if names == ALL:
        listed = [f"cuda:{index}" for index in range(len(facts.get("gpus", [])))] or [None]
    return [Named(name, _identity(name, regime, runs, facts)) for name in listed]


def _identity(name: str | None, regime: str, runs: Collection[Run], facts: Facts) -> Identity | None:
    kind, rest = split(name)
    if kind == "replay":
        run = _newest(name or "", runs)
        if run is None or run.device.target not in TARGETS:
            return None
        return Identity(run.device, run.device.as_target(), run.software, None, False, regime)
    gpus, index = facts.get("gpus", []), int(rest or 0)
    if index >= len(gpus):
        return None
    gpu = gpus[index]
    target = Target(gpu["target"], *(gpu[name] for name in Target._fields[1:]))
    named = gpu["name"], target.name, target.sms, target.l2_bytes, gpu["memory_bytes"], gpu["uuid"], facts["driver"]
    run = _newest(gpu["uuid"], runs)
    return Identity(Device(*named), target, run.software if run else {}, gpu["free_bytes"], True, regime)


def _newest(uuid: str, runs: Collection[Run]) -> Run | None:
    return max((run for run in runs if run.device.uuid == uuid), key=lambda run: run.started, default=None)
