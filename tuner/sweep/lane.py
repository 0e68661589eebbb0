"""One device of a sweep: the thread that drives it, its task, and its run in the store."""

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from normtune.kernels.config import Config
from normtune.results.records import Outcome
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Race
from normtune.tuner.sweep.run_writer import RunWriter


class Lane:
    """A device that measures one task at a time.

    Args:
        bench: the device.
        writer: of its run.
        clock: returns seconds.

    Attributes:
        task: in progress; None if the device is idle.
        future: of the outcomes of the task.
    """

    def __init__(self, bench: Bench, writer: RunWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self.bench = bench
        self.writer = writer
        self.task: Task | None = None
        self.future: Future[Mapping[Config, Outcome]] | None = None
        self._clock = clock
        self._start = math.nan
        self._thread = ThreadPoolExecutor(1, "normtune-lane")

    def begin(self, task: Task, race: Race) -> None:
        """Begin to measure a task."""
        self.task, self._start = task, self._clock()
        self.future = self._thread.submit(self.bench.measure, task, race)

    def outcomes(self) -> tuple[Mapping[Config, Outcome], float]:
        """Outcomes and duration of the task, which is then done; raises the error of the measurement."""
        future, self.task, self.future = self.future, None, None
        assert future is not None
        return future.result(), self._clock() - self._start

    def leave(self) -> None:
        """Begin to end the device, and the task in progress without its outcomes."""
        if self.future and not self.future.done():
            self.bench.stop()
        self._ending = self._thread.submit(self.bench.close)

    def close(self) -> dict[str, Any]:
        """Wait until the device has ended, after `leave`; returns the summary of the clocks."""
        self._thread.shutdown()
        return self._ending.result()
