"""The loop of a sweep: measures the tasks of searches, and stores each while the next one is measured.

In: devices, a store, and for like devices a `Work` with the search that chooses tasks and rounds. Out: measurements in
the store, and counts in the work's `Summary`. A kill loses at most the tasks in progress and those just done.

A problem stays on the device that began it, because only times of one round are compared. The main thread alone asks
the search and writes the store; a thread for each device waits for its answers.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.results.records import Outcome
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import DeviceGoneError, SkippedError
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.exhaustive import all_rounds
from normtune.tuner.search.protocol import Race
from normtune.tuner.sweep.pace import Pace
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.run_writer import RunWriter, measurements, new_run, searched
from normtune.tuner.sweep.spread import SharedSample
from normtune.tuner.sweep.summary import Best
from normtune.tuner.sweep.work import Work

if TYPE_CHECKING:
    from normtune.tuner.cluster.devices import ClusterDevices

# Most tasks that a task with compiled binaries may overtake.
_OVERTAKEN = 16
# Seconds after which a device without a task asks again while others are busy: a binary or a choice may be ready.
_STARVED_SECONDS = 0.005
# Seconds between two looks for devices that join, and how long a search without any device waits for one.
JOINING_SECONDS = 0.5
REJOIN_SECONDS = 120.0


def measure(
    parts: Sequence[tuple[Work, Sequence[Bench]]],
    store: Store,
    budget_seconds: float | None = None,
    display: Silent | None = None,
    joining: "ClusterDevices | None" = None,
    work_of: Callable[[Bench], Work | None] = lambda bench: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Measure the pending tasks of works, each on its like devices; closes the benches at the end.

    Args:
        parts: works with pending tasks, and their devices.
        store: for the measurements, one transaction per task.
        budget_seconds: tasks that would probably end later do not begin; None for no limit.
        display: receives the events.
        joining: has devices that join later.
        work_of: what such a device measures that is unlike all others; None for nothing.
        clock: returns seconds, for the budget.

    Raises:
        NormtuneError: all devices of a work or the store failed. All measurements are in the store, or in the file that
            the message names.
    """
    end = math.inf if budget_seconds is None else clock() + budget_seconds
    with ExitStack() as closing:
        loop = _Loop(store, display or Silent(), joining, end, clock, closing)
        for work, benches in parts:
            loop.add(work, benches)
        loop.run(work_of)


class _Loop:
    """The groups of like devices; at the end of `closing` their runs are complete."""

    def __init__(
        self,
        store: Store,
        display: Silent,
        joining: "ClusterDevices | None",
        end: float,
        clock: Callable[[], float],
        closing: ExitStack,
    ) -> None:
        self._store, self._display, self._joining = store, display, joining
        self._end, self._clock, self._closing = end, clock, closing
        self._groups: list[_Group] = []

    def add(self, work: Work, benches: Sequence[Bench]) -> None:
        """Begin a work on like devices."""
        self._display.planned(work.backlog)
        group = _Group(work, self._store, self._display, self._end, self._clock, self._joining is not None)
        problems = (task.problem for task in work.backlog.plan.tasks)
        self._closing.enter_context(self._store.sweeping(benches[0].device, benches[0].regime, work.key, problems))
        self._closing.callback(group.close)  # before the store is free for the next sweep
        self._groups.append(group)
        for bench in benches:
            group.join(bench)
        group.examine()

    def run(self, work_of: Callable[[Bench], Work | None]) -> None:
        """Measure until the searches or the budget end."""
        groups, last_look = self._groups, -math.inf
        while True:
            if self._joining and time.monotonic() > last_look + JOINING_SECONDS:
                self._admit(self._joining.new_devices(), work_of)
                self._joining.request(sum(group.demand for group in groups))
                last_look = time.monotonic()
            for group in groups:
                for lane in group.idle:
                    group.begin(lane, waits=not self._busy())
            for report in [report for group in groups for report in group.save()]:
                self._display.measured(*report, [group.summary for group in groups])
            if not (busy := self._busy()):
                if not any([group.waits_for_devices() for group in groups]):
                    return
                time.sleep(JOINING_SECONDS)
            is_starved = any(group.idle for group in groups)
            longest = _STARVED_SECONDS if is_starved else JOINING_SECONDS if self._joining else None
            wait(busy, longest, FIRST_COMPLETED)
            for group in groups:
                group.collect()

    def _admit(self, benches: Sequence[Bench], work_of: Callable[[Bench], Work | None]) -> None:
        for bench in benches:
            group = next((group for group in self._groups if group.device_kind == bench.device.kind), None)
            if group:
                group.join(bench)
            elif work := work_of(bench):
                self.add(work, [bench])
            else:
                bench.close()

    def _busy(self) -> list[Future[Any]]:
        return [lane.future for group in self._groups for lane in group.lanes if lane.future]


class _Group:
    """Like devices that share a search: each takes the next task that is free, of a problem that no other began.

    Attributes:
        summary: of the work.
        lanes: the devices that were not lost.
    """

    def __init__(
        self,
        work: Work,
        store: Store,
        display: Silent,
        end: float,
        clock: Callable[[], float],
        is_growing: bool,
    ) -> None:
        self.summary = work.summary
        self.lanes: list[_Lane] = []
        self.device_kind: tuple[Any, ...] = ()
        self._work, self._search, self._store = work, work.search, store
        self._clock, self._start = clock, clock()
        self._pace = Pace(end, clock)
        self._end = end
        self._on_compiled = partial(display.compiling, total=work.backlog.binaries)
        self._entries = searched(work.backlog.plan) if work.search.leaves_out else {}
        self._is_growing = is_growing
        self._gone: DeviceGoneError | None = None
        self._gone_at = 0.0
        self._lost: list[_Lane] = []
        self._owners: dict[Problem, _Lane] = {}
        self._retries: list[Task] = []
        self._reports: list[tuple[_Lane, Problem, Best | None]] = []
        self._sample = SharedSample()

    def join(self, bench: Bench) -> None:
        """Take a further device of this kind."""
        self.device_kind = bench.device.kind
        self.summary.lost.pop(bench.name, None)
        run = new_run(bench, self._search.name, self._entries)
        self.lanes.append(_Lane(bench, RunWriter(self._store, run), self._clock))

    def examine(self) -> None:
        """Check the functions of the operators, on one device."""
        while self.lanes:
            try:
                return self.lanes[0].bench.examine(self._work.backlog.tasks)
            except DeviceGoneError as error:
                self._leave_out(self.lanes[0], None, error)

    @property
    def demand(self) -> int:
        """Number of problems left, as many devices can be busy."""
        return 0 if self._sample.is_begun else self.summary.left

    def waits_for_devices(self) -> bool:
        """Whether all devices are gone and others may come; raises the error of the last one after a long wait."""
        if self._gone is None or self.lanes or self._clock() > self._end:
            return False
        if not self._retries and not self._search.pending():
            return False
        if self._clock() > self._gone_at + REJOIN_SECONDS:
            raise self._gone
        return True

    @property
    def idle(self) -> list["_Lane"]:
        """The devices without a task."""
        return [lane for lane in self.lanes if lane.task is None]

    def begin(self, lane: "_Lane", waits: bool) -> None:
        """Give an idle device a task, if there is one.

        Args:
            lane: the device.
            waits: whether to wait for the binaries of a task if none is ready.
        """
        busy = {other.task.problem for other in self.lanes if other.task}
        excluded = busy | {problem for problem, owner in self._owners.items() if owner is not lane}
        if task := self._retry(excluded) or self._next(lane.bench, excluded, waits):
            self._owners[task.problem] = lane
            lane.begin(task, self._search.race(task))
        elif shared := self._shared_task(lane, is_over=not busy):
            lane.begin(shared, all_rounds(shared))

    def _retry(self, excluded: set[Problem]) -> Task | None:
        """A task that a lost device did not end."""
        for task in self._retries:
            if task.problem not in excluded:
                self._retries.remove(task)
                return task
        return None

    def _next(self, bench: Bench, excluded: set[Problem], waits: bool) -> Task | None:
        """The next task with compiled binaries that ends in time; None without one."""
        while self._pace.slack() >= 0:
            bench.prepare(self._search.ask(), self._on_compiled)
            tasks = [*islice((task for task in self._search.ask() if task.problem not in excluded), _OVERTAKEN)]
            ready = next((task for task in tasks if bench.compiled(task, 0.0)), None)
            if ready or not tasks or not waits:
                return ready
            bench.compiled(tasks[0], _STARVED_SECONDS)  # then whichever is ready
        return None

    def _shared_task(self, lane: "_Lane", is_over: bool) -> Task | None:
        """The next task that every device measures, once the search is over."""
        if not self._sample.is_begun:
            if not is_over or len(self.lanes) == 1 or self._retries or self._search.pending():
                return None
            tasks = self._sample.tasks()
            has_time = self._pace.slack(len(tasks)) >= 0
            self._sample.begin([other.bench.name for other in self.lanes], tasks if has_time else [])
        return self._sample.next(lane.bench.name)

    def collect(self) -> None:
        """Take the outcomes of all tasks that are done."""
        for lane in [lane for lane in self.lanes if lane.future and lane.future.done()]:
            task = lane.task
            assert task is not None
            try:
                outcomes, seconds = lane.outcomes()
            except DeviceGoneError as error:
                self._leave_out(lane, task, error)
            except SkippedError as error:
                if not self._sample.is_begun:
                    self._skip(lane, task, str(error))
            else:
                lane.writer.add(measurements(task, outcomes, lane.writer.run.id))
                if self._sample.is_begun:
                    self._sample.add_shared(lane.bench.name, task, outcomes)
                    continue
                self._sample.add_measured(task, outcomes)
                self._pace.measured(task, seconds)
                self._search.tell(task, outcomes)
                self._reports.append((lane, task.problem, self.summary.add(task.problem, outcomes)))

    def _skip(self, lane: "_Lane", task: Task, reason: str) -> None:
        self.summary.skipped[reason] += 1
        self._search.tell(task, {})
        self._reports.append((lane, task.problem, None))

    def save(self) -> list[tuple[str, Problem, Best | None]]:
        """Store the tasks that were collected; by now their devices have the next ones.

        Returns:
            For each the device's name, the problem, and its best config.
        """
        for lane in dict.fromkeys([*(lane for lane, *_ in self._reports), *self.lanes]):
            lane.writer.flush()
        if self._reports:
            self._count_left()
        reports, self._reports = self._reports, []
        return [(lane.bench.name, problem, best) for lane, problem, best in reports]

    def _count_left(self) -> None:
        remaining = [*self._search.pending(), *self._retries]
        problems = {task.problem for task in remaining}
        busy = [] if self._sample.is_begun else [lane.task for lane in self.lanes if lane.task]
        remaining += [task for task in busy if task.problem not in problems]
        self.summary.expect(remaining)
        seconds = self._pace.left_seconds(remaining)
        self.summary.left_seconds = None if seconds is None else seconds / max(1, len(self.lanes))

    def close(self) -> None:
        """Complete the runs and close the devices."""
        summary = self.summary
        summary.spread = self._sample.spread()
        summary.unguided = self._search.report().get("unguided", [])
        completed = None if summary.left or summary.skipped else self._work.key
        with ExitStack() as closing:
            for lane in [*self.lanes, *self._lost]:
                closing.callback(self._end_run, lane, completed)
                lane.leave()
        summary.seconds = self._clock() - self._start

    def _end_run(self, lane: "_Lane", completed: str | None) -> None:
        beside = lane.close()  # before `phases`, which has what was seen of the device until then
        phases = lane.bench.phases()
        self.summary.phases = phases if self.summary.phases is None else self.summary.phases.plus(phases)
        protocol = {
            "strategy": self._search.name,
            **phases.protocol,
            "seconds": {name: round(getattr(phases, name), 3) for name in ("compile", "gate", "timing")},
        }
        lane.writer.end(beside | protocol | self._entries, completed)

    def _leave_out(self, lane: "_Lane", task: Task | None, error: DeviceGoneError) -> None:
        """Go on without a device, whose problems others take over; raises the error if there can be none."""
        if len(self.lanes) == 1 and not self._is_growing:
            raise error
        self._gone, self._gone_at = error, self._clock()
        self.lanes.remove(lane)
        self._lost.append(lane)
        self._retries += [task] if task and not self._sample.is_begun else []
        self._owners = {problem: owner for problem, owner in self._owners.items() if owner is not lane}
        self.summary.lost[lane.bench.name] = str(error)


class _Lane:
    """A device that measures one task at a time, in a thread, and its run in the store.

    Args:
        bench: the device.
        writer: of its run.
        clock: returns seconds.

    Attributes:
        task: in progress; None if the device is idle.
        future: of the outcomes of the task.
    """

    def __init__(self, bench: Bench, writer: RunWriter, clock: Callable[[], float]) -> None:
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
