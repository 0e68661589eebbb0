"""A sweep from Python, and its run, which the command shares.

In: a `Request`. Out: a `Sweep`: the device, the plan, and counts of the measurements. `progress` displays, `command`
reads the options.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.results.database.store import Store
from normtune.results.database.url import StoreUrl
from normtune.results.options import keywords_of
from normtune.results.records import Device
from normtune.tuner.compiling.ahead import Ahead, compile_ahead
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.compiling.kernel_cache import KernelCache, check_out
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Identity, Phases
from normtune.tuner.device.open import NoDeviceError
from normtune.tuner.device.unopened import absent_gpu
from normtune.tuner.plan.plan import fitting
from normtune.tuner.plan.resume import without_times
from normtune.tuner.sweep.backlog import Backlog, search_of
from normtune.tuner.sweep.devices import Devices, alike, check_limits
from normtune.tuner.sweep.incumbents import always_on_any
from normtune.tuner.sweep.prepare import PreparedSweep, prepare
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.report import (
    NOTHING_DISPUTED,
    NOTHING_STALE,
    ahead_lines,
    device_line,
    end_lines,
    plain_plan,
    plan_lines,
    pruned_lines,
)
from normtune.tuner.sweep.request import Request, Scope
from normtune.tuner.sweep.summary import Summary
from normtune.tuner.sweep.sweep import Work
from normtune.tuner.sweep.sweep import sweep as measure

if TYPE_CHECKING:
    from normtune.tuner.cluster.devices import ClusterDevices


class Sweep(NamedTuple):
    """Result of a sweep.

    Attributes:
        device: the measured device, or the one of the plan.
        summary: counts and times; empty for a dry run, and if nothing was stale.
        damage: line about damaged stored measurements, which were left out; empty without any.
        is_dry: whether the sweep was only planned.
        compiled: binaries for another machine; None of a sweep that measures.
        others: the same of GPUs of other kinds.
    """

    device: Device
    summary: Summary
    damage: str = ""
    is_dry: bool = False
    compiled: Ahead | None = None
    others: tuple["Sweep", ...] = ()

    @property
    def backlog(self) -> Backlog | None:
        """The plan; None if there was nothing to measure."""
        return self.summary.backlog

    def _repr_html_(self) -> str:
        """The plan, and what was measured."""
        from normtune.heuristics.report.notebook import html_with_charts

        lines = [self.device.label, *(plan_lines(self.backlog) if self.backlog else ())]
        is_measured = not (self.is_dry or self.compiled or self.summary.phases is None)
        return html_with_charts([*lines, *(end_lines(self.summary, None) if is_measured else ())], lambda: ())

    def to_plain(self) -> dict[str, Any]:
        """The object of `normtune sweep --json`, as JSON values; docs/commands.md describes the keys."""
        values: dict[str, Any] = {
            "device": self.device._asdict(),
            "plan": plain_plan(self.backlog) if self.backlog else None,
            "sweep": None if self.is_dry or self.compiled else self.summary.to_plain(),
        }
        values |= {"compiled": self.compiled.to_plain()} if self.compiled else {}
        return values | ({"others": [other.to_plain() for other in self.others]} if self.others else {})


@keywords_of(Request)
def sweep(request: Request) -> Sweep:
    """Measure configs over shapes and store every sample, as `normtune sweep` does.

    Each problem is stored as soon as it is measured: after an interrupt, or the end of the budget, the same call
    continues. It starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Raises:
        UsageError: a value is unknown or out of range.
        NormtuneError: the GPU does not exist, or the device or the store failed; all measurements so far are stored.
    """
    return run(request, Silent())


def run(
    request: Request,
    display: Silent,
    start: float | None = None,
) -> Sweep:
    """Sweep, with a display.

    Args:
        request: the sweep.
        display: gets the names of the devices as its title.
        start: start on the monotonic clock, seconds; None for now.
    """
    start = time.monotonic() if start is None else start
    if request.ray is not None:
        from normtune.results.parallel.connect import check_installed

        check_installed()
    scope = request.scope()
    if request.out is not None:
        return _compiled(request, scope, display)
    with ExitStack() as stack:
        sweeping = _Sweeping(request, scope, display, start, stack)
        return sweeping.planned() if request.dry_run else sweeping.swept()


def _compiled(request: Request, scope: Scope, display: Silent) -> Sweep:
    limits, out = request.limits(), Path(str(request.out))
    check_out(out)
    device = Device("no GPU here, compiled for one", limits.name, limits.sms, limits.l2_bytes, 0, "absent", "none")
    display.title = limits.name
    with display:
        advice = always_on_any(scope.problems, device, limits, request.baseline)
        plan = scope.plan(request.chosen.space, limits, advice)

        def begin(binaries: int) -> None:
            display.say(f"compiling {binaries} binaries for {limits.name}")

        ahead = compile_ahead(plan, limits, out, display.compiling, begin)
    display.say(*ahead_lines(ahead))
    return Sweep(device, Summary(), compiled=ahead)


class _Sweeping:
    """A sweep with its store, devices and display, and the work of each kind of device."""

    def __init__(
        self,
        request: Request,
        scope: Scope,
        display: Silent,
        start: float,
        closing: ExitStack,
    ) -> None:
        self._request, self._scope, self._display = request, scope, display
        self._start, self._closing = start, closing
        self._url = StoreUrl.of(request.store)
        self._cache = None if request.cache is None else KernelCache(Path(request.cache))
        self._store: Store | None = None
        if self._url.path is None or self._url.path.exists():
            self._store = closing.enter_context(Store.at(self._url, create=not request.dry_run))
        self._runs = self._store.runs() if self._store else []
        self._devices = self._find_devices()
        self._works: list[PreparedSweep] = []

    def planned(self) -> Sweep:
        """The plan of a dry run."""
        request = self._request
        benches: Sequence[Bench | Identity]
        try:
            benches = self._devices.open()
        except NoDeviceError:
            if request.device is not None:
                raise
            benches = [absent_gpu(request.regime)]
        self._name(benches)
        done = []
        for bench, *_ in alike(benches):
            work = self._prepare(bench)
            chosen = fitting(work.plan, bench.free_bytes)
            search = search_of(chosen, work.strategy_of(chosen), work.stored, request.retry_failed)
            backlog = Backlog.of(chosen, search.pending())
            plan = self._nothing(work) or [*plan_lines(backlog), *pruned_lines(chosen)]
            self._display.say(*self._unusable(bench), *work.lines, *self._refinement(work), *plan)
            done.append(Sweep(bench.device, Summary(backlog=backlog), is_dry=True))
        self._display.say("a dry run: nothing is measured")
        return _together(done)

    def swept(self) -> Sweep:
        """Measure what the store lacks, if anything; the devices are opened while that is found out."""
        identities = self._devices.identities
        self._name(identities)
        if not self._store or self._is_incomplete(self._store):
            self._devices.start()
        self._works = [self._prepare(one) for one, *_ in alike(identities)]
        if self._works and self._store and not any(work.search.pending() for work in self._works):
            return self._done(self._store)
        for work, bench in zip(self._works, self._devices.start(), strict=False):
            bench.prepare(work.search.ask())
        benches = self._devices.open()
        self._name(benches)
        self._store = self._store or self._closing.enter_context(Store.at(self._url))
        groups = alike(benches)
        for group in groups:
            check_limits(group)
            group[0].prepare(())
        return self._measured([(group, self._prepared(group[0])) for group in groups], self._store)

    def _find_devices(self) -> "Devices | ClusterDevices":
        """The devices of this machine, or of a cluster."""
        request, closing = self._request, self._closing
        if request.ray is None:
            return Devices(request.device, request.regime, self._runs, Compilers(self._cache), closing)
        from normtune.results.parallel.connect import connected
        from normtune.tuner.cluster.devices import ClusterDevices

        ray = closing.enter_context(connected(request.ray))
        return ClusterDevices(ray, request.ray, request.device, request.regime, closing)

    def _name(self, devices: Sequence[Bench | Identity]) -> None:
        """Show the names of the devices, once and as soon as they are known, as opening takes seconds."""
        if not self._display.title:
            self._display.title = " and ".join(dict.fromkeys(one.device.label for one in devices))
            for line, count in Counter(map(device_line, devices)).items():
                self._display.say(f"{count} x {line}" if count > 1 else line)

    def _is_incomplete(self, store: Store) -> bool:
        """Whether the store tells that there is something to measure."""
        request, problems = self._request, self._scope.problems
        if not request.leaves_out:  # has no key
            return False
        keys = {
            one.device: request.key(request.always(problems, one.device, one.target))
            for one in self._devices.identities
        }
        return any(key and key not in store.completed_requests(device, request.regime) for device, key in keys.items())

    def _prepare(self, bench: Bench | Identity) -> PreparedSweep:
        return prepare(self._request, self._scope, self._store, bench.device, bench.target)

    def _prepared(self, bench: Bench) -> PreparedSweep:
        """The work that was prepared for such a device, or one that is prepared now that the device is known."""
        for work in self._works:
            if work.is_of(bench.device, bench.target):
                return work
        work = self._prepare(bench)
        before = [line for other in self._works for line in other.lines]
        return work._replace(lines=list(dict.fromkeys([*before, *work.lines])))

    def _done(self, store: Store) -> Sweep:
        """The end of a sweep that has nothing to measure and did not open its devices."""
        request, done = self._request, []
        protocol = {"regime": request.regime, "rounds": 0, "void_rounds": 0, "worker_restarts": 0}
        with self._display as display:
            for work in self._works:
                failed = without_times(work.stored, [task.problem for task in work.plan.tasks])
                summary = Summary(store.option, known=len(work.plan.tasks), known_failed=failed)
                summary.phases = Phases(0.0, 0.0, 0.0, protocol)
                summary.starting_seconds = time.monotonic() - self._start
                nothing = self._nothing(work)
                ending = nothing or end_lines(summary, request.chosen.budget_seconds)
                display.say(*work.lines, *self._refinement(work), *ending)
                done.append(Sweep(work.device, Summary() if nothing else summary, "" if nothing else store.damage))
        return _together(done)

    def _measured(self, groups: list[tuple[Sequence[Bench], PreparedSweep]], store: Store) -> Sweep:
        """Measure the works of groups of like devices, and of those that join."""
        request, devices, display = self._request, self._devices, self._display
        budget = request.chosen.budget_seconds
        works: list[Work] = []

        def work_of(benches: Sequence[Bench], prepared: PreparedSweep) -> Work:
            display.say(*self._unusable(benches[0]), *prepared.lines)
            display.say(*self._refinement(prepared), *self._nothing(prepared))
            plan = prepared.plan
            chosen = fitting(plan, min((b.free_bytes for b in benches if b.free_bytes is not None), default=None))
            key = prepared.key if chosen.tasks == plan.tasks else None
            works.append(Work(benches, chosen, prepared.strategy_of(chosen), prepared.stored, key))
            return works[-1]

        def work_of_joined(bench: Bench) -> Work:
            display.say(f"joined: {device_line(bench)}")
            groups.append(([bench], self._prepared(bench)))
            return work_of(*groups[-1])

        with display:
            for group in groups:
                work_of(*group)
            starting = time.monotonic() - self._start
            remaining = None if budget is None else budget - starting
            joining = None if isinstance(devices, Devices) else devices
            summaries = measure([*works], store, remaining, display, request.retry_failed, joining, work_of_joined)
        done = []
        for (benches, prepared), work, summary in zip(groups, works, summaries, strict=True):
            if work.plan.tasks:
                summary.starting_seconds += starting
                summary.lost |= devices.lost
                display.say(*([benches[0].device.label] if len(groups) > 1 else []))
                display.say(*self._refinement(prepared), *end_lines(summary, budget))
                pruned = pruned_lines(work.plan) if summary.is_fruitless else []
                display.say(*pruned)
            done.append(Sweep(benches[0].device, summary, store.damage))
        display.say(*filter(None, [self._cache.line() if self._cache else ""]))
        return _together(done)

    def _nothing(self, work: PreparedSweep) -> list[str]:
        """A line for a sweep with `--stale`, or of a table to refine, that has nothing to measure; empty for others."""
        if work.plan.tasks or not (self._request.stale or self._scope.refined):
            return []
        return [NOTHING_DISPUTED if self._scope.refined else NOTHING_STALE]

    def _refinement(self, work: PreparedSweep) -> list[str]:
        """Lines about the loss that the table may have where nothing was measured, to refine."""
        return work.search.report()["refinement"] if self._scope.refined else []

    def _unusable(self, bench: Bench | Identity) -> list[str]:
        """A line if binaries of `--cache` cannot be used."""
        return list(filter(None, [self._cache.unusable(bench.target.name) if self._cache else ""]))


def _together(sweeps: Sequence[Sweep]) -> Sweep:
    return sweeps[0]._replace(others=tuple(sweeps[1:]))
