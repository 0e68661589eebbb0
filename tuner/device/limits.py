"""What may differ between GPUs of one name, whose measurements a store keeps as those of one kind."""

from collections.abc import Sequence
from typing import NamedTuple

from normtune.kernels.calling.probe import facts_in_child
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.tuner.machine.vendor import smi_facts

_SMI_SECONDS = 10.0


class Limits(NamedTuple):
    """Memory, and the limits of power and clock that the driver tells."""

    memory_bytes: int
    power_watts: float | None
    most_mhz: int | None

    def __str__(self) -> str:
        parts = [f"{self.memory_bytes / 2**30:.0f} GiB"]
        parts += [f"{self.power_watts:g} W"] if self.power_watts else []
        return ", ".join([*parts, f"{self.most_mhz} MHz"] if self.most_mhz else parts)


def limits_of(devices: Sequence[Device]) -> list[Limits]:
    """Limits of GPUs of this machine; of replays only the memory."""
    are_here = not all(device.uuid.startswith(REPLAY_PREFIX) for device in devices)
    facts = facts_in_child(smi_facts, _SMI_SECONDS) if are_here else {}
    gpus = {gpu["uuid"].removeprefix("GPU-"): gpu for gpu in facts.get("gpus", [])}
    of_devices = [gpus.get(device.uuid.removeprefix("GPU-"), {}) for device in devices]
    return [
        Limits(device.memory_bytes, gpu.get("power_watts"), gpu.get("most_mhz"))
        for device, gpu in zip(devices, of_devices, strict=True)
    ]
