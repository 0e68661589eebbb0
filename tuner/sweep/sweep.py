"""The loop of a sweep: measures the tasks that the store lacks, and stores each while the next one is measured.

In: devices, a store, and for like devices a plan and a search, which chooses tasks and rounds. Out: measurements in the
store, and a `Summary`. A kill loses at most the tasks in progress and those just done; the same call continues.

A problem stays on the device that began it, because only times of one round are compared. The main thread alone asks
the search and writes the store; a thread for each device waits for its answers.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import DeviceGoneError, SkippedError
from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.resume import Stored, without_times
from normtune.tuner.search.exhaustive import all_rounds
from normtune.tuner.search.protocol import Strategy
from normtune.tuner.sweep.backlog import Backlog, search_of
from normtune.tuner.sweep.lane import Lane
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.run_writer import RunWriter, measurements, new_run, searched
from normtune.tuner.sweep.schedule import Schedule
from normtune.tuner.sweep.spread import SharedSample
from normtune.tuner.sweep.summary import Best, Summary

if TYPE_CHECKING:
    from normtune.tuner.cluster.devices import ClusterDevices

# Seconds after which a device without a task asks again while others are busy: a binary or a choice may be ready.
_STARVED_SECONDS = 0.005
# Seconds between two looks for devices that join, and how long a search without any device waits for one.
JOINING_SECONDS = 0.5
REJOIN_SECONDS = 120.0


class Work(NamedTuple):
    """Like devices and what they measure together.

    Attributes:
        benches: the devices, of one kind.
        plan: the wanted problems and configs.
        strategy: creates the search.
        stored: coverage of the store; None to load it.
        key: of the request, stored when it is completed; None where that follows from the store.
    """

    benches: Sequence[Bench]
    plan: Plan
    strategy: Strategy
    stored: Stored | None = None
    key: str | None = None


def sweep(
    works: Sequence[Work],
    store: Store,
    budget_seconds: float | None = None,
    progress: Silent | None = None,
    retry_failed: bool = False,
    joining: "ClusterDevices | None" = None,
    work_of: Callable[[Bench], Work] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Summary]:
    """Measure the part of each plan that the store lacks; closes the benches at the end.

    Args:
        works: devices and their plans.
        store: for the measurements, one transaction per task.
        budget_seconds: tasks that would probably end later do not begin; None for no limit.
        progress: receives the events.
        clock: returns seconds, for the budget.
        retry_failed: whether to repeat configs that are stored as crashed or timed out.
        joining: has devices that join later.
        work_of: what such a device measures if it is unlike all others.

    Returns:
        Summaries of the works, and of those of `work_of`.

    Raises:
        NormtuneError: all devices of a work or the store failed. All measurements are in the store, or in the file that
            the message names.
    """
    groups: list[_Group] = []
    progress = progress or Silent()
    end = math.inf if budget_seconds is None else clock() + budget_seconds

    def add(work: Work) -> None:
        groups.append(_Group(work, store, end, progress, clock, retry_failed, joining is not None))
        groups[-1].begin()

    try:
        for work in works:
            add(work)
        looked = -math.inf
        while True:
            if joining and time.monotonic() > looked + JOINING_SECONDS:
                for bench in joining.new_devices():
                    group = next((group for group in groups if group.device.kind == bench.device.kind), None)
                    if group:
                        group.join(bench)
                    elif work_of:
                        add(work_of(bench))
                joining.request(sum(group.demand for group in groups))
                looked = time.monotonic()
            for group in groups:
                for lane in group.idle:
                    group.start(lane, waits=not _busy(groups))
            for report in [report for group in groups for report in group.save()]:
                progress.measured(*report, [group.summary for group in groups])
            if not (busy := _busy(groups)):
                if not any([group.waits_for_devices() for group in groups]):
                    break
                time.sleep(JOINING_SECONDS)
            is_starved = any(group.idle for group in groups)
            longest = _STARVED_SECONDS if is_starved else JOINING_SECONDS if joining else None
            wait(busy, longest, FIRST_COMPLETED)
            for group in groups:
                group.collect()
    finally:
        with ExitStack() as stack:
            for group in groups:
                stack.callback(group.close)
    return [group.summary for group in groups]


class _Group:
    """Like devices that share a search: each takes the next task that is free, of a problem that no other began."""

    def __init__(
        self,
        work: Work,
        store: Store,
        end: float,
        progress: Silent,
        clock: Callable[[], float],
        retry_failed: bool,
        is_growing: bool,
    ) -> None:
        start = clock()
        first = work.benches[0]
        self.device = first.device
        self._store, self._is_growing = store, is_growing
        self._gone: DeviceGoneError | None = None
        self._gone_at = 0.0
        stored = store.coverage(first.device, first.regime) if work.stored is None else work.stored
        self._work, self._clock = work, clock
        self._search = search = search_of(work.plan, work.strategy, stored, retry_failed)
        tasks = tuple(search.pending())
        before = work.plan.complete(tasks)
        self.summary = Summary(store.option, known=len(before), known_failed=without_times(stored, before))
        self.lanes: list[Lane] = []
        self._lost: list[Lane] = []
        self._owners: dict[Problem, Lane] = {}
        self._retries: list[Task] = []
        self._reports: list[tuple[Lane, Problem, Best | None]] = []
        self._sample = SharedSample()
        self._shared: dict[Lane, list[Task]] | None = None
        self._tasks = tasks
        self._limit = end
        if not tasks:
            self.summary.phases = first.phases()
            for bench in work.benches:
                bench.close()
            return
        self.summary.backlog = backlog = Backlog.of(work.plan, tasks)
        progress.planned(backlog)
        self._planned = clock()
        self.summary.starting_seconds = self._planned - start
        self.summary.total = self.summary.left = len(tasks)
        compiling = partial(progress.compiling, total=backlog.binaries)
        self._schedule = Schedule(first, search, tasks, end, clock, compiling)
        self._entries = searched(work.plan) if search.leaves_out else {}
        problems = (task.problem for task in work.plan.tasks)
        self._holding = ExitStack()
        self._holding.enter_context(store.sweeping(first.device, first.regime, work.key, problems))
        for bench in work.benches:
            self.join(bench)

    def join(self, bench: Bench) -> None:
        """Take a further device of this kind."""
        if not self._tasks:
            bench.close()
            return
        self.summary.lost.pop(bench.name, None)
        run = new_run(bench, self._search.name, self._entries)
        self.lanes.append(Lane(bench, RunWriter(self._store, run), self._clock))

    def begin(self) -> None:
        """Check the functions of the operators, on one device."""
        while self.lanes:
            try:
                return self.lanes[0].bench.examine(self._tasks)
            except DeviceGoneError as error:
                self._leave_out(self.lanes[0], None, error)

    @property
    def demand(self) -> int:
        """Number of problems left, as many devices can be busy."""
        return self.summary.left if self._shared is None else 0

    def waits_for_devices(self) -> bool:
        """Whether all devices are gone and others may come; raises the error of the last one after a long wait."""
        if self._gone is None or self.lanes or self._clock() > self._limit:
            return False
        if not self._retries and not self._search.pending():
            return False
        if self._clock() > self._gone_at + REJOIN_SECONDS:
            raise self._gone
        return True

    @property
    def idle(self) -> list[Lane]:
        """The devices without a task."""
        return [lane for lane in self.lanes if lane.task is None]

    def start(self, lane: Lane, waits: bool) -> None:
        """Give an idle device a task, if there is one; `waits` as in `Schedule.next`."""
        busy = [other.task.problem for other in self.lanes if other.task]

        def may_begin(task: Task) -> bool:
            return self._owners.get(task.problem, lane) is lane and task.problem not in busy

        if task := next(filter(may_begin, self._retries), None) or self._schedule.next(may_begin, waits):
            if task in self._retries:
                self._retries.remove(task)
            self._owners[task.problem] = lane
            return lane.begin(task, self._search.race(task))
        if shared := self._shared_task(lane, is_over=not busy):
            lane.begin(shared, all_rounds(shared))

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
                if self._shared is None:
                    self._skip(lane, task, str(error))
            else:
                lane.writer.add(measurements(task, outcomes, lane.writer.run.id))
                if self._shared is not None:
                    self._sample.add_shared(lane.bench.name, task, outcomes)
                    continue
                self._sample.add_measured(task, outcomes)
                self._schedule.measured(task, seconds)
                self._search.tell(task, outcomes)
                self._reports.append((lane, task.problem, self.summary.add(task.problem, outcomes)))

    def _skip(self, lane: Lane, task: Task, reason: str) -> None:
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

    def close(self) -> None:
        """Complete the runs and close the devices."""
        if not self._tasks:
            return
        search, summary = self._search, self.summary
        summary.spread = self._sample.spread()
        summary.unguided = search.report().get("unguided", [])
        completed = None if summary.left or summary.skipped else self._work.key
        with self._holding, ExitStack() as stack:  # until all is stored
            for lane in [*self.lanes, *self._lost]:
                stack.callback(self._end, lane, completed)
                lane.leave()
        summary.seconds = self._clock() - self._planned

    def _end(self, lane: Lane, completed: str | None) -> None:
        closing = lane.close()  # before `phases`, which has what was seen of the device until then
        phases = lane.bench.phases()
        self.summary.phases = phases if self.summary.phases is None else self.summary.phases.plus(phases)
        protocol = {
            "strategy": self._search.name,
            **phases.protocol,
            "seconds": {name: round(getattr(phases, name), 3) for name in ("compile", "gate", "timing")},
        }
        lane.writer.end(closing | protocol | self._entries, completed)

    def _leave_out(self, lane: Lane, task: Task | None, error: DeviceGoneError) -> None:
        """Go on without a device, whose problems others take over; raises the error if there can be none."""
        if len(self.lanes) == 1 and not self._is_growing:
            raise error
        self._gone, self._gone_at = error, self._clock()
        self.lanes.remove(lane)
        self._lost.append(lane)
        self._retries += [task] if task and self._shared is None else []
        self._owners = {problem: owner for problem, owner in self._owners.items() if owner is not lane}
        self.summary.lost[lane.bench.name] = str(error)

    def _shared_task(self, lane: Lane, is_over: bool) -> Task | None:
        """The next task that every device measures, once the search is over."""
        if self._shared is None:
            if not is_over or len(self.lanes) == 1 or self._retries or self._search.pending():
                return None
            tasks = self._sample.tasks()
            has_time = self._schedule.has_time(len(tasks))
            self._shared = {each: [*tasks] if has_time else [] for each in self.lanes}
        tasks = self._shared.get(lane, [])
        return tasks.pop(0) if tasks else None

    def _count_left(self) -> None:
        remaining = [*self._search.pending(), *self._retries]
        problems = {task.problem for task in remaining}
        busy = [lane.task for lane in self.lanes if lane.task] if self._shared is None else []
        remaining += [task for task in busy if task.problem not in problems]
        self.summary.expect(remaining)
        seconds = self._schedule.left_seconds(remaining)
        self.summary.left_seconds = None if seconds is None else seconds / max(1, len(self.lanes))


def _busy(groups: Sequence[_Group]) -> list[Future[Any]]:
    return [lane.future for group in groups for lane in group.lanes if lane.future]
