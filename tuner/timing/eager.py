"""Launches as in a model's eager mode: from Python, one after another, without a graph.

In: a launcher, and slices to launch on. Out: `Streamed`, which a round replays and times like a captured graph.
`timing` chooses the launch; `kernels.calling.launcher` repeats it at the least cost.

The stream is drained before the batch. Otherwise the launches would queue behind the evicting read and run without
gaps, whatever their host time. So the time of a launch is the larger of host time and kernel time. The lead-in launch
reaches this state before the first event.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

EagerCall = Callable[[Mapping[str, Tensor]], None]


class Cold(Protocol):
    """Evicts the cache of a device: `timing.Timer`."""

    device: torch.device

    def evict(self) -> None:
        """Enqueue the evicting read."""
        ...


class Streamed:
    """One batch: cache evicted, stream drained, lead-in launches, then timed launches between two events.

    Args:
        timer: of the device.
        launch: makes one launch on the current stream.
        slices: sets of tensors for the launches, in order.
        lead_in: number of untimed launches at the beginning.
        restore: resets tensors that a launch reads and writes; called for each slice before the batch.
    """

    def __init__(
        self,
        timer: Cold,
        launch: EagerCall,
        slices: Sequence[Mapping[str, Tensor]],
        lead_in: int,
        restore: EagerCall | None = None,
    ) -> None:
        self._restore = restore
        self._timer = timer
        self._launch = launch
        self._slices = slices
        self._lead_in = lead_in
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (self._begin, self._end):
            event.record()  # creates it; at the first replay this would fall into the timed span

    def replay(self) -> None:
        """Launch the batch on the current stream. Waits for earlier work, not for the batch."""
        launch, slices, lead_in = self._launch, self._slices, self._lead_in
        was_enabled = gc.isenabled()
        gc.disable()  # a collection takes as long as hundreds of launches
        try:
            if self._restore:
                for tensors in slices:
                    self._restore(tensors)
            self._timer.evict()
            torch.cuda.synchronize(self._timer.device)
            for tensors in slices[:lead_in]:
                launch(tensors)
            self._begin.record()
            for tensors in slices[lead_in:]:
                launch(tensors)
            self._end.record()
        finally:
            if was_enabled:
                gc.enable()

    def nanoseconds(self) -> int:
        """Mean time of the timed launches in the last replay, which must be complete."""
        return round(1e6 * self._begin.elapsed_time(self._end) / (len(self._slices) - self._lead_in))
