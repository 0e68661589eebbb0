"""AMD's GPUs: amdsmi as a `vendor.Library`, by its documented Python functions.

In: a PCI address. Out: readings. Nobody has run it on a GPU of AMD yet: it is tested with an amdsmi that is made up.
"""

from collections.abc import Sequence
from typing import Any

from normtune.tuner.machine.vendor import POWER, THERMAL, Clocks, Library, State, maybe

# Keys of `amdsmi_get_violation_status`; each is True, False or, where the GPU does not say, "N/A".
_VIOLATIONS = {
    "active_ppt_pwr": POWER,
    "active_prochot_thrm": THERMAL,
    "active_socket_thrm": THERMAL,
    "active_vr_thrm": THERMAL,
    "active_hbm_thrm": THERMAL,
}
# The compute partition that is the whole GPU.
_WHOLE = "SPX"


class AmdSmi(Library):
    """amdsmi; a `vendor.Library`."""

    def __init__(self) -> None:
        import amdsmi

        amdsmi.amdsmi_init()
        self._smi: Any = amdsmi
        first = self.gpus()[:1]
        self.driver = str(amdsmi.amdsmi_get_gpu_driver_info(first[0])["driver_version"]) if first else "unknown"

    def gpus(self) -> Sequence[Any]:
        """All GPUs."""
        return list(self._smi.amdsmi_get_processor_handles())

    def gpu(self, hardware_id: str) -> Any:
        """The GPU of a PCI address."""
        return self._smi.amdsmi_get_processor_handle_from_bdf(hardware_id)

    def names(self, gpu: Any) -> tuple[str, str, str]:
        """Name, uuid and hardware id."""
        smi = self._smi
        name = str(smi.amdsmi_get_gpu_asic_info(gpu)["market_name"])
        return name, str(smi.amdsmi_get_gpu_device_uuid(gpu)), str(smi.amdsmi_get_gpu_device_bdf(gpu)).lower()

    def clocks(self, gpu: Any) -> Clocks:
        """A quick reading."""
        smi = self._smi
        status = maybe(lambda: smi.amdsmi_get_violation_status(gpu))
        flags = {key: status.get(key) for key in _VIOLATIONS if isinstance(status.get(key), bool)} if status else {}
        return Clocks(
            _number(maybe(lambda: smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["clk"])),
            _number(maybe(lambda: self._temperature(gpu))),
            tuple(sorted({_VIOLATIONS[key] for key, active in flags.items() if active})) if flags else None,
        )

    def state(self, gpu: Any) -> State:
        """A full reading."""
        smi = self._smi
        memory = maybe(lambda: smi.amdsmi_get_gpu_vram_usage(gpu)) or {}
        total, used = (_number(memory.get(key)) for key in ("vram_total", "vram_used"))
        cap = maybe(lambda: smi.amdsmi_get_power_cap_info(gpu)) or {}
        power, default_power = (_number(cap.get(key)) for key in ("power_cap", "default_power_cap"))
        errors = maybe(lambda: smi.amdsmi_get_gpu_total_ecc_count(gpu)) or {}
        partition = maybe(lambda: smi.amdsmi_get_gpu_compute_partition(gpu))
        return State(
            None if total is None or used is None else (total - used) << 20,
            None if total is None else total << 20,
            _number(maybe(lambda: smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["max_clk"])),
            None if power is None else power / 1e6,
            None if default_power is None else default_power / 1e6,
            maybe(lambda: tuple(int(process["pid"]) for process in smi.amdsmi_get_gpu_process_list(gpu))),
            None if partition in (None, "N/A") else partition != _WHOLE,
            _number(errors.get("correctable_count")),
            _number(errors.get("uncorrectable_count")),
        )

    def cache_bytes(self, gpu: Any) -> int | None:
        """The last-level cache, such as the Infinity Cache, all its instances together."""
        caches = maybe(lambda: self._smi.amdsmi_get_gpu_cache_info(gpu)["cache"]) or []
        last = max(caches, key=lambda cache: int(cache["cache_level"]), default=None)
        return None if last is None else int(last["cache_size"]) * 1024 * int(last["num_cache_instance"])

    def _temperature(self, gpu: Any) -> int:
        kind, metric = self._smi.AmdSmiTemperatureType.HOTSPOT, self._smi.AmdSmiTemperatureMetric.CURRENT
        return int(self._smi.amdsmi_get_temp_metric(gpu, kind, metric))


def _number(value: Any) -> int | None:
    """A number of amdsmi, which says "N/A" for what a GPU does not have."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
