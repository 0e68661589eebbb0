"""Watches a GPU beside the timing, by its vendor's library.

In: a GPU's hardware id. Out: whether a round was slowed down; at the end, entries of the run's protocol. In a virtual
machine a library does not see what other machines run on the GPU; `rounds` notices that in the times.
"""

import threading
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

from normtune.tuner.machine.vendor import HARDWARE, POWER, THERMAL, Clocks, Library, State, maybe, open_library
from normtune.tuner.timing.disturbance import WARNINGS, Disturbance

PERIOD_SECONDS = 0.05
# Samples from one full reading to the next.
STATE_EVERY = 20
# A clock below this part of its usual value, the median of the last samples of rounds, makes a round void.
_SLOWED = 0.95
_USUAL_SAMPLES = 200
# Clocks below this part of the greatest, and power limits below this part of the default, are told.
_LOW_CLOCK, _LOW_POWER = 0.9, 0.95
# Share of the samples from which on a power limit is told.
_OFTEN = 0.05


class Watch:
    """Samples clocks and temperature at 20 Hz, and the state each second, from `start` to `stop`, in a thread."""

    def __init__(self, hardware_id: str, is_hip: bool = False) -> None:
        self._id = hardware_id
        self._is_hip = is_hip
        self._stop = threading.Event()
        self._clocks: list[Clocks] = []
        self._states: list[State] = []
        self._faults: list[int] = []
        self._round_start = 0
        self._in_rounds: list[Clocks] = []
        self._usual: deque[int] = deque(maxlen=_USUAL_SAMPLES)
        self._error = ""
        self._thread = threading.Thread(target=self._watch, daemon=True, name="normtune-watch")

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    @property
    def latest(self) -> int | None:
        """The last sample of the SM clock, MHz; None without one."""
        return self._clocks[-1].mhz if self._clocks else None

    def begin_round(self) -> None:
        """A round begins."""
        self._round_start = len(self._clocks)

    def end_round(self) -> bool:
        """The round has ended; whether the GPU was slowed down meanwhile."""
        samples = self._clocks[self._round_start :]
        self._in_rounds += samples
        clocks = [sample.mhz for sample in samples if sample.mhz]
        is_low = bool(clocks and self._usual) and min(clocks) < _SLOWED * median(self._usual)
        self._usual.extend(clocks)
        # A reason lasts until the next sample; an older clock may be that of an idle GPU.
        reasons = {word for sample in self._clocks[max(0, self._round_start - 1) :] for word in sample.throttled or ()}
        return is_low or bool({THERMAL, HARDWARE} & reasons)

    def stop(self) -> dict[str, Any]:
        """Stop sampling; entries for the run's protocol.

        Returns:
            `sm_clock_mhz` (least, median, greatest), `temperature_c` (greatest), `not_told` (what the library does not
            say of this GPU), `warnings` (see `disturbance`), each if there is any.
        """
        self._stop.set()
        self._thread.join()
        entries: dict[str, Any] = {}
        clocks = sorted(sample.mhz for sample in self._clocks if sample.mhz is not None)
        temperatures = [sample.temperature_c for sample in self._clocks if sample.temperature_c is not None]
        if clocks:
            entries["sm_clock_mhz"] = [clocks[0], clocks[len(clocks) // 2], clocks[-1]]
        if temperatures:
            entries["temperature_c"] = max(temperatures)
        if self._clocks and self._states and (unknown := _unknown(self._clocks[-1], self._states[-1])):
            entries["not_told"] = unknown
        if warnings := {one.key: text for one, text in self._disturbances().items() if text}:
            entries[WARNINGS] = warnings
        return entries

    def _disturbances(self) -> dict[Disturbance, str]:
        """What was seen of each disturbance; empty for nothing."""
        if not self._clocks or not self._states:
            return {Disturbance.UNWATCHED: f"nobody watched the GPU ({self._error or 'no sample'})"}
        first, last = self._states[0], self._states[-1]
        samples = self._in_rounds
        throttled = [word for sample in samples for word in sample.throttled or ()]
        badly = sorted({THERMAL, HARDWARE} & {*throttled})
        limited = throttled.count(POWER) / max(1, len(samples))
        usual = median([sample.mhz for sample in samples if sample.mhz] or [0])
        limits = last.power_watts, last.default_power_watts
        errors = [(first.corrected, last.corrected), (first.uncorrected, last.uncorrected)]
        grown = [0 if before is None or after is None else after - before for before, after in errors]
        others = max((_others(state.processes) for state in self._states[1:] or self._states), default=0)
        codes = ", ".join(map(str, sorted(set(self._faults))))
        return {
            Disturbance.OTHER_PROCESSES: f"{others} other process{'es' * (others > 1)} on the GPU" if others else "",
            Disturbance.THROTTLED: f"the GPU slowed itself down ({', '.join(badly)})" if badly else "",
            Disturbance.POWER_LIMITED: (
                f"the power limit held clocks down in {100 * limited:.0f} % of the time" if limited > _OFTEN else ""
            ),
            Disturbance.POWER_LOWERED: (
                f"the power limit is {limits[0]:.0f} of {limits[1]:.0f} W"
                if limits[0] and limits[1] and limits[0] < _LOW_POWER * limits[1]
                else ""
            ),
            Disturbance.LOW_CLOCKS: (
                f"the clock was {usual:.0f} of {last.most_mhz} MHz"
                if usual and last.most_mhz and usual < _LOW_CLOCK * last.most_mhz
                else ""
            ),
            Disturbance.ECC_ERRORS: (
                f"{grown[0]} corrected and {grown[1]} uncorrected ECC errors" if any(one > 0 for one in grown) else ""
            ),
            Disturbance.FAULTS: f"the driver reported XID {codes}" if codes else "",
        }

    def _watch(self) -> None:
        try:
            library = open_library(self._is_hip)
            gpu = library.gpu(self._id)
            self._read_state(library, gpu)
            while not self._stop.wait(PERIOD_SECONDS):
                self._clocks.append(library.clocks(gpu))
                if len(self._clocks) % STATE_EVERY == 0:
                    self._read_state(library, gpu)
            self._read_state(library, gpu)
        # Times are valid without a library.
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def _read_state(self, library: Library, gpu: Any) -> None:
        self._states.append(library.state(gpu))
        faults: list[int] | None = maybe(lambda: library.faults(gpu))
        self._faults += faults or []


def _others(processes: Sequence[int] | None) -> int:
    """Processes on the GPU besides this one, which may have another id there, in a container."""
    return max(0, len(processes or ()) - 1)


def _unknown(clocks: Clocks, state: State) -> list[str]:
    """Names of what the library does not say."""
    return sorted(name for name, value in (clocks._asdict() | state._asdict()).items() if value is None)
