"""A sweep: its devices, plan and search are made once, then the loop measures.

In: a `Request`. Out: a `SweepResult`. The command and `normtune.sweep` share it. `prepare` plans, `loop` measures,
`progress` and `report` tell.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.results.database.store import Store
from normtune.results.database.url import StoreUrl
from normtune.results.options import keywords_of
from normtune.results.records import Device
from normtune.tuner.compiling.ahead import compile_ahead
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.compiling.kernel_cache import KernelCache, check_out
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import NoDeviceError
from normtune.tuner.device.unopened import absent_gpu
from normtune.tuner.sweep.devices import Devices, alike, check_limits
from normtune.tuner.sweep.incumbents import always_on_any
from normtune.tuner.sweep.loop import measure
from normtune.tuner.sweep.prepare import Kind, Part, prepare
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.report import SweepResult, ahead_lines, device_line, end_lines, plan_lines, pruned_lines
from normtune.tuner.sweep.request import Request, Scope
from normtune.tuner.sweep.summary import Summary, nothing_timed
from normtune.tuner.sweep.work import Work

if TYPE_CHECKING:
    from normtune.tuner.cluster.devices import ClusterDevices


@keywords_of(Request)
def sweep(request: Request) -> SweepResult:
    """Measure configs over shapes and store every sample, as `normtune sweep` does.

    Each problem is stored as soon as it is measured: after an interrupt, or the end of the budget, the same call
    continues. It starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Raises:
        UsageError: a value is unknown or out of range.
        NormtuneError: the GPU does not exist, or the device or the store failed; all measurements so far are stored.
    """
    return run(request, Silent())


def run(request: Request, display: Silent, start: float | None = None) -> SweepResult:
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
    with ExitStack() as closing:
        session = _Session.of(request, scope, display, start, closing)
        if request.dry_run:
            return session.planned()
        session.prepare()
        if session.is_pending:
            session.open()
            session.measure()
        return session.ended()


def _compiled(request: Request, scope: Scope, display: Silent) -> SweepResult:
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
    return SweepResult(device, Summary(), compiled=ahead)


@dataclass
class _Session:
    """A sweep with its store, devices and display.

    Attributes:
        store: None until there is something to store.
        cache: binaries that were compiled elsewhere, if any.
        closing: closes store and devices.
        parts: of the sweep, on like devices each.
    """

    request: Request
    scope: Scope
    display: Silent
    start: float
    devices: "Devices | ClusterDevices"
    url: StoreUrl
    store: Store | None
    cache: KernelCache | None
    closing: ExitStack
    parts: list[Part] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, scope: Scope, display: Silent, start: float, closing: ExitStack) -> "_Session":
        """A session with an open store, if there is one; its devices are not open."""
        url = StoreUrl.of(request.store)
        store: Store | None = None
        if url.path is None or url.path.exists():
            store = closing.enter_context(Store.at(url, create=not request.dry_run))
        cache = None if request.cache is None else KernelCache(Path(request.cache))
        devices = _devices_of(request, store, cache, closing)
        return cls(request, scope, display, start, devices, url, store, cache, closing)

    def planned(self) -> SweepResult:
        """The plan of a dry run."""
        devices: Sequence[Bench | Identity] = self.devices.identities
        try:
            devices = devices or self.devices.open()
        except NoDeviceError:
            if self.request.device is not None:
                raise
            devices = [absent_gpu(self.request.regime)]
        self._name(devices)
        self.parts = [self._prepared(self._kind(group)) for group in alike(devices)]
        for part in self.parts:
            if part.work and not part.is_empty:
                self.display.say(*plan_lines(part.work.backlog), *pruned_lines(part.work.backlog.plan))
        self.display.say("a dry run: nothing is measured")
        return _together(
            [
                SweepResult(part.kind.device, Summary(), part.work.backlog if part.work else None, is_dry=True)
                for part in self.parts
            ]
        )

    def prepare(self) -> None:
        """Find what the store lacks on the devices that are known before they are open, which takes seconds.

        They are opened meanwhile if there is something to measure for certain.
        """
        identities = self.devices.identities
        self._name(identities)
        kinds = [self._kind(group) for group in alike(identities)]
        if not self.store or any(kind.key and not kind.is_complete for kind in kinds):
            self.devices.start()
        self.parts = [self._prepared(kind) for kind in kinds]

    @property
    def is_pending(self) -> bool:
        """Whether there may be something to measure."""
        return not (self.store and self.parts) or any(part.is_pending for part in self.parts)

    def open(self) -> None:
        """Open the devices, while the first binaries are compiled, and the store."""
        pending = {part.kind.device: part.work for part in self.parts if part.is_pending}
        for identity, bench in zip(self.devices.identities, self.devices.start(), strict=False):
            if work := pending.get(identity.device):
                bench.prepare(work.search.ask())
        benches = self.devices.open()
        self._name(benches)
        self.store = self.store or self.closing.enter_context(Store.at(self.url))
        groups = alike(benches)
        for group in groups:
            check_limits(group)
            group[0].prepare(())
        self.parts = [self._part(group) for group in groups]

    def measure(self) -> None:
        """Measure each part on its devices, and on those that join."""
        assert self.store
        starting, budget = time.monotonic() - self.start, self.request.chosen.budget_seconds
        for part in self.parts:
            part.summary.starting_seconds = starting
        for bench in [bench for part in self.parts if not part.is_pending for bench in part.benches]:
            bench.close()
        with self.display:
            measure(
                [(part.work, part.benches) for part in self.parts if part.work and part.is_pending],
                self.store,
                None if budget is None else budget - starting,
                self.display,
                None if isinstance(self.devices, Devices) else self.devices,
                self._joined,
            )

    def ended(self) -> SweepResult:
        """The result of all parts, which is told."""
        assert self.store
        results = []
        for part in self.parts:
            summary = part.summary
            if len(self.parts) > 1:
                self.display.say(part.kind.device.label)
            if part.is_pending:
                summary.lost |= self.devices.lost
                self.display.say(*part.refinement_lines())
            else:
                summary.phases = nothing_timed(self.request.regime)
                summary.starting_seconds = time.monotonic() - self.start
            if not part.is_empty:
                self.display.say(*end_lines(summary, self.request.chosen.budget_seconds))
            if part.work and summary.is_fruitless:
                self.display.say(*pruned_lines(part.work.backlog.plan))
            backlog = part.work.backlog if part.work and part.is_pending else None
            summary = Summary() if part.is_empty else summary
            results.append(SweepResult(part.kind.device, summary, backlog, self.store.damage))
        self.display.say(*filter(None, [self.cache.line() if self.cache else ""]))
        return _together(results)

    def _name(self, devices: Sequence[Bench | Identity]) -> None:
        """Show the names of the devices, once and as soon as they are known, as opening takes seconds."""
        if not self.display.title:
            self.display.title = " and ".join(dict.fromkeys(one.device.label for one in devices))
            for line, count in Counter(map(device_line, devices)).items():
                self.display.say(f"{count} x {line}" if count > 1 else line)

    def _kind(self, group: Sequence[Bench | Identity]) -> Kind:
        return Kind.of(group, self.request, self.scope.problems, self.store)

    def _prepared(self, kind: Kind) -> Part:
        part = prepare(self.request, self.scope, self.store, kind)
        self.display.say(*filter(None, [self.cache.unusable(kind.target.name) if self.cache else ""]), *part.lines)
        return part

    def _part(self, group: Sequence[Bench]) -> Part:
        """The part that was prepared for such devices, or one that is prepared now that they are known."""
        first = group[0]
        parts = (part for part in self.parts if part.kind.is_of(first))
        part = next(parts, None) or self._prepared(self._kind(group))
        part.benches += group
        return part

    def _joined(self, bench: Bench) -> Work | None:
        """The work of a device that joins and is unlike those that measure; None if nothing is pending for it."""
        self.display.say(f"joined: {device_line(bench)}")
        part = self._part([bench])
        if part not in self.parts:
            self.parts.append(part)
        return part.work if part.is_pending else None


def _devices_of(
    request: Request, store: Store | None, cache: KernelCache | None, closing: ExitStack
) -> "Devices | ClusterDevices":
    """The devices of this machine, or of a cluster."""
    if request.ray is None:
        runs = store.runs() if store else []
        return Devices(request.device, request.regime, runs, Compilers(cache), closing)
    from normtune.results.parallel.connect import connected
    from normtune.tuner.cluster.devices import ClusterDevices

    ray = closing.enter_context(connected(request.ray))
    return ClusterDevices(ray, request.ray, request.device, request.regime, closing)


def _together(results: Sequence[SweepResult]) -> SweepResult:
    return results[0]._replace(others=tuple(results[1:]))
