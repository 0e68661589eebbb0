"""Clocks of the GPU during the timing.

In: a device's UUID. Out: a summary for the run's protocol. It helps to explain void rounds, but voids none itself: in a
virtual machine NVML does not see what other machines run on the GPU.
"""

import threading
from typing import Any

_PERIOD_SECONDS = 0.05


class ClockWatch:
    """Samples SM clock and temperature at 20 Hz in a background thread, from `start` to `stop`."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._stop = threading.Event()
        self._clocks: list[int] = []
        self._temperatures: list[int] = []
        self._error = ""
        self._thread = threading.Thread(target=self._watch, daemon=True, name="normtune-clocks")

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    @property
    def latest(self) -> int | None:
        """The last sample of the SM clock, MHz; None before the first sample or without NVML."""
        return self._clocks[-1] if self._clocks else None

    def stop(self) -> dict[str, Any]:
        """Stop sampling; returns least, median, greatest SM clock (MHz) and greatest temperature (C), or the error."""
        self._stop.set()
        self._thread.join()
        if not self._clocks:
            return {"nvml": self._error or "no sample"}
        ordered = sorted(self._clocks)
        return {
            "sm_clock_mhz": [ordered[0], ordered[len(ordered) // 2], ordered[-1]],
            "temperature_c": max(self._temperatures),
        }

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = self._uuid if self._uuid.startswith("GPU-") else f"GPU-{self._uuid}"
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            while not self._stop.wait(_PERIOD_SECONDS):
                self._clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
                self._temperatures.append(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        # Times are valid without NVML.
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
