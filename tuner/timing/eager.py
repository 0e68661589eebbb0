"""Launches as in a model's eager mode: from Python, one after another, without a graph.

In: a function that launches, and slices to launch on. Out: `Streamed`, which a round replays and times like a captured
graph. `timing` chooses the launch.

The stream is synchronized before the batch: otherwise the launches would queue behind the evicting read and run without
gaps, however long the host takes. The time of a launch is therefore the larger of host time and kernel time.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

EagerCall = Callable[[Mapping[str, Tensor]], None]


class CacheEvictor(Protocol):
    """Evicts the cache of a device, as `timing.Timer` does."""

    device: torch.device

    def evict(self) -> None:
        """Enqueue the evicting read."""
        ...


class Streamed:
    """One batch: cache evicted, stream synchronized, lead-in launches, then timed launches between two events.

    Args:
        timer: evicts the cache of the device.
        launch: makes one launch on the current stream.
        slices: sets of tensors for the launches, in order.
        lead_in: number of untimed launches at the beginning.
        restore: resets tensors that a launch reads and writes; called for each slice before the batch.
    """

    def __init__(
        self,
        timer: CacheEvictor,
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
            event.record()  # creates the event, which would otherwise happen inside the first timed batch

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
