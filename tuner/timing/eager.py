"""Launches as a model makes them in eager mode: from Python, one after the other, without a graph.

In: what launches, and slices to launch it on. Out: `Streamed`, which a round replays and asks for its time as it does a
captured graph. What is launched is left to `timing`, how a launch is made again at least cost to `kernels.launcher`.

The stream is drained before the batch. Else the launches would queue up behind the evicting read and then run without
a gap, whatever they cost the host. So the time of a launch is the host's where that is larger, and the kernel's where
the host runs ahead; the lead-in launch sees to it that this is decided before the first event.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

Run = Callable[[Mapping[str, Tensor]], None]


class Cold(Protocol):
    """What empties the cache of a device: `timing.Timer`."""

    device: torch.device

    def evict(self) -> None:
        """Enqueue the evicting read."""
        ...


class Streamed:
    """One batch: cache evicted, stream drained, lead-in launches, then timed launches between two events.

    Args:
        timer: of the device.
        launch: makes one launch on the current stream.
        slices: what it is launched on, in order.
        lead_in: how many of them are not timed.
        restore: makes good, before all that, what launches on a slice have changed of what they read.
    """

    def __init__(
        self,
        timer: Cold,
        launch: Run,
        slices: Sequence[Mapping[str, Tensor]],
        lead_in: int,
        restore: Run | None = None,
    ) -> None:
        self._restore = restore
        self._timer = timer
        self._launch = launch
        self._slices = slices
        self._lead_in = lead_in
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for event in (self._begin, self._end):
            event.record()  # the first time it is made, which would fall between the launches and the end

    def replay(self) -> None:
        """Launch the batch on the current stream; waits for what was enqueued before, not for the batch."""
        launch, slices, lead_in = self._launch, self._slices, self._lead_in
        collected = gc.isenabled()
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
            if collected:
                gc.enable()

    def nanoseconds(self) -> int:
        """The mean time of the timed launches of the last replay, which must have ended."""
        return round(1e6 * self._begin.elapsed_time(self._end) / (len(self._slices) - self._lead_in))
