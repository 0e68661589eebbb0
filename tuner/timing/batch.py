"""Batches of launches that a round replays: captured as a graph, or from Python as in a model's eager mode.

In: a function that launches, and slices to launch on. Out: `Captured` or `Streamed`, with the mean time of the timed
launches. `timing` chooses launches and slices.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from normtune.tuner.timing.capture import capture

EagerCall = Callable[[Mapping[str, Tensor]], None]
Step = Callable[[], object]


class CacheEvictor(Protocol):
    """A device whose cache can be evicted, as `timing.Timer`."""

    device: torch.device
    stream: torch.cuda.Stream

    def evict(self) -> None:
        """Enqueue the evicting read."""
        ...


class Batch(ABC):
    """Cache evicted, lead-in launches, then timed launches between two events.

    Args:
        timer: of the device.
        launch: makes one launch on the current stream.
        slices: sets of tensors for the launches, in order; disjoint for cold launches.
        lead_in: number of untimed launches at the beginning.
        evicted: whether the cache is evicted before the launches.
        restore: resets tensors that a launch reads and writes; called for each slice before the eviction.
    """

    def __init__(
        self,
        timer: CacheEvictor,
        launch: EagerCall,
        slices: Sequence[Mapping[str, Tensor]],
        lead_in: int,
        *,
        evicted: bool = True,
        restore: EagerCall | None = None,
    ) -> None:
        self._launches = len(slices) - lead_in
        self._slices = slices  # keeps their memory as long as a graph may be replayed
        options = self.event_options()
        self._begin, self._end = (torch.cuda.Event(enable_timing=True, **options) for _ in range(2))

        def prepare() -> None:
            if restore:
                for tensors in slices:
                    restore(tensors)
            if evicted:
                timer.evict()

        def untimed() -> None:
            for tensors in slices[:lead_in]:
                launch(tensors)

        def timed() -> None:
            for tensors in slices[lead_in:]:
                launch(tensors)

        self._steps = self.steps(timer, prepare, untimed, timed)

    def event_options(self) -> dict[str, bool]:
        """Options of the events."""
        return {}

    @abstractmethod
    def steps(self, timer: CacheEvictor, prepare: Step, untimed: Step, timed: Step) -> list[Step]:
        """What a replay does, in order: the three steps, with the events around the last."""

    def replay(self) -> None:
        """Enqueue the launches on the current stream."""
        for step in self._steps:
            step()

    def nanoseconds(self) -> int:
        """Mean time of the timed launches in the last replay, which must be complete."""
        return round(1e6 * self._begin.elapsed_time(self._end) / self._launches)


class Captured(Batch):
    """One graph, with the events as nodes; two graphs with ROCm, for which torch refuses events in graphs."""

    def event_options(self) -> dict[str, bool]:
        """Of events that may be nodes."""
        return {"external": True} if torch.version.hip is None else {}

    def steps(self, timer: CacheEvictor, prepare: Step, untimed: Step, timed: Step) -> list[Step]:
        """Replays of graphs."""
        begin, end = self._begin.record, self._end.record
        if torch.version.hip is None:
            return [capture(timer.stream, prepare, untimed, begin, timed, end).replay]
        before, graph = capture(timer.stream, prepare, untimed), capture(timer.stream, timed)
        return [before.replay, begin, graph.replay, end]


class Streamed(Batch):
    """Launches from Python, one after another, without a graph.

    The stream is synchronized before the launches: otherwise they would queue behind the evicting read and run without
    gaps, however long the host takes. The time of a launch is therefore the larger of host time and kernel time.
    """

    def steps(self, timer: CacheEvictor, prepare: Step, untimed: Step, timed: Step) -> list[Step]:
        """The launches, on a synchronized stream."""
        begin, end = self._begin.record, self._end.record
        for record in (begin, end):
            record()  # creates the event, which would otherwise happen inside the first timed batch
        return [prepare, lambda: torch.cuda.synchronize(timer.device), untimed, begin, timed, end]

    def replay(self) -> None:
        """Launch the batch on the current stream. Waits for earlier work, not for the batch."""
        was_enabled = gc.isenabled()
        gc.disable()  # a collection takes as long as hundreds of launches
        try:
            super().replay()
        finally:
            if was_enabled:
                gc.enable()
