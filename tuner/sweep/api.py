"""A sweep from Python, and its run, which the command shares.

In: a `Request`. Out: a `Sweep`: the device, the plan, and counts of the measurements. `progress` displays, `command`
reads the options.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.results.database.store import Store
from normtune.results.database.url import parse, resolve_url, sqlite_path
from normtune.results.options import keywords_of
from normtune.results.records import Device, Run
from normtune.tuner.compiling.ahead import Ahead, compile_ahead
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.compiling.binary_cache import BinaryCache, check_out
from normtune.tuner.compiling.pool import default_workers
from normtune.tuner.device.absent import AbsentBench
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import Bench, NoDeviceError, Phases
from normtune.tuner.plan.estimate import PLAN_SECONDS, compile_seconds
from normtune.tuner.plan.plan import fitting, warm_start
from normtune.tuner.plan.resume import without_times
from normtune.tuner.search.control import Control
from normtune.tuner.search.protocol import Strategy
from normtune.tuner.staleness.stored import compare
from normtune.tuner.sweep.devices import Devices, Joining, alike, check_limits
from normtune.tuner.sweep.outlook import Outlook, look_ahead
from normtune.tuner.sweep.prepare import (
    PreparedSweep,
    going_on,
    is_finished,
    prepare,
    refinement_lines,
    refinement_plan,
)
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.report import (
    NOTHING_STALE,
    SETTLED,
    ahead_lines,
    device_line,
    end_lines,
    plain_sweep,
    plan_lines,
    pruned_lines,
    seconds_text,
)
from normtune.tuner.sweep.request import Request, Wanted
from normtune.tuner.sweep.summary import Summary
from normtune.tuner.sweep.sweep import Work
from normtune.tuner.sweep.sweep import sweep as measure

if TYPE_CHECKING:
    from normtune.tuner.cluster.devices import ClusterDevices

# Shorter plans are not announced.
_BRIEF = 3.0


class Sweep(NamedTuple):
    """Result of a sweep.

    Attributes:
        device: the measured device, or the one of the plan.
        summary: counts and times; empty for a dry run, and if nothing was stale.
        damage: line about damaged stored measurements, which were left out; empty without any.
        is_dry: whether the sweep was only planned.
        compiled: binaries of `compile_only`; None without that option.
        control: time of unchanged code relative to its stored time, for `stale`; None without that option.
        others: the same of GPUs of other kinds.
    """

    device: Device
    summary: Summary
    damage: str = ""
    is_dry: bool = False
    compiled: Ahead | None = None
    control: Control | None = None
    others: tuple["Sweep", ...] = ()

    @property
    def outlook(self) -> Outlook | None:
        """The plan, with the expected time; None if there was nothing to measure."""
        return self.summary.outlook

    def _repr_html_(self) -> str:
        """What was measured, and a picture of what the time went to where the packages that draw are installed."""
        from normtune.heuristics.report.notebook import of_seconds, plain

        lines = [self.device.label, *(plan_lines(self.outlook) if self.outlook else ())]
        phases = self.summary.phases
        if self.is_dry or self.compiled or phases is None:
            return plain(lines)
        spent = {"compile": phases.compile, "gate": phases.gate, "timing": phases.timing}
        return of_seconds([*lines, *end_lines(self.summary, None)], spent)

    def to_plain(self) -> dict[str, Any]:
        """The object of `normtune sweep --json`, as JSON values; docs/commands.md describes the keys."""
        measured = None if self.is_dry or self.compiled else self.summary
        plain = plain_sweep(self.device, self.outlook, measured, self.compiled)
        plain |= {"control": self.control._asdict()} if self.control else {}
        return plain | ({"others": [other.to_plain() for other in self.others]} if self.others else {})


@keywords_of(Request)
def sweep(request: Request) -> Sweep:
    """Measure configs over shapes and store every sample, as `normtune sweep` does.

    Each problem is stored as soon as it is measured: after an interrupt, or the end of the budget, the same call
    continues. It starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Raises:
        UsageError: a value is unknown or out of range.
        NormtuneError: the GPU does not exist, or the device or the store failed; all measurements so far are stored.
    """
    return run(request, lambda title: Silent())


def run(
    request: Request,
    display_of: Callable[[str], Silent],
    begun: float | None = None,
    announce: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Sweep, with a display.

    Args:
        request: the sweep.
        display_of: creates the display, from the name of the device.
        begun: start on the monotonic clock, seconds; None for now.
        announce: called with a line before a plan of more than a few seconds.
    """
    begun = time.monotonic() if begun is None else begun
    wanted = request.wanted()
    if (seconds := PLAN_SECONDS * len(wanted.problems)) > _BRIEF:
        announce(f"planning {len(wanted.problems)} problems, about {seconds_text(seconds)}")
    if request.compile_only:
        return _compiled(request, wanted, display_of)
    url = resolve_url(None if request.store is None else os.fspath(request.store))
    cache = None if request.cache is None else BinaryCache(Path(request.cache))
    path = sqlite_path(parse(url))
    with ExitStack() as stack:
        exists = path is None or path.exists()
        opened = stack.enter_context(Store.open(url, create=not request.dry_run)) if exists else None
        runs = opened.runs() if opened else []
        devices = _devices(request, runs, cache, stack)
        if request.dry_run:
            return _planned(request, wanted, opened, devices, cache, display_of)
        identities = devices.identities
        display = _named(identities, display_of) if identities else None
        if not opened or _is_unfinished(request, wanted, identities, runs):
            devices.start()
        works = [prepare(request, wanted, opened, one.device, one.target) for one, *_ in alike(identities)]
        if display and opened and not any(work.search.left() for work in works):
            return _done(request, works, opened, display, begun)
        for work, bench in zip(works, devices.start(), strict=False):
            bench.prepare(work.search.ask(math.inf))
        benches = devices.open()
        display = display or _named(benches, display_of)
        opened = opened or stack.enter_context(Store.open(url))
        prepared = partial(_prepared_for, works=works, request=request, wanted=wanted, opened=opened)
        groups: list[tuple[Sequence[Bench], PreparedSweep]] = []
        for group in alike(benches):
            check_limits(group)
            group[0].prepare(())
            groups.append((group, prepared(group[0])))
        return _swept(request, groups, opened, devices, prepared, cache, display, begun)


def _devices(
    request: Request, runs: Sequence[Run], cache: BinaryCache | None, closing: ExitStack
) -> "Devices | ClusterDevices":
    """The devices of this machine, or of a cluster."""
    if request.ray is None:
        return Devices(request.device, request.regime, runs, Compilers(cache), closing)
    from normtune.tuner.cluster.connect import connected
    from normtune.tuner.cluster.devices import ClusterDevices

    ray = closing.enter_context(connected(request.ray))
    return ClusterDevices(ray, request.ray, request.device, request.regime, closing)


def _is_unfinished(request: Request, wanted: Wanted, identities: Sequence[Identity], runs: Sequence[Run]) -> bool:
    """Whether the runs tell that there is something to measure."""
    keys = [(one.device, request.key(request.always(wanted.problems, one.device, one.target))) for one in identities]
    return any(key and not is_finished(key, runs, device, request.regime) for device, key in keys)


def _prepared_for(
    bench: Bench, *, works: Sequence[PreparedSweep], request: Request, wanted: Wanted, opened: Store
) -> PreparedSweep:
    """The work that was prepared for such a device, or one that is prepared now that the device is known."""
    for work in works:
        if work.is_of(bench.device, bench.target):
            return work
    work = prepare(request, wanted, opened, bench.device, bench.target)
    before = [line for other in works for line in other.lines]
    return work._replace(lines=list(dict.fromkeys([*before, *work.lines])))


def _named(devices: Sequence[Bench] | Sequence[Identity], display_of: Callable[[str], Silent]) -> Silent:
    """The display of a sweep, with the names of the devices, which are shown at once, as opening takes seconds."""
    display = display_of(" and ".join(dict.fromkeys(one.device.label for one in devices)))
    for line, count in Counter(map(device_line, devices)).items():
        display.say(f"{count} x {line}" if count > 1 else line)
    return display


def _compiled(request: Request, wanted: Wanted, display_of: Callable[[str], Silent]) -> Sweep:
    limits, out = request.limits(), Path(str(request.out))
    check_out(out)
    device = Device("no GPU here, compiled for one", limits.name, limits.sms, limits.l2_bytes, 0, "absent", "none")
    with display_of(limits.name) as display:
        plan = wanted.plan(request.chosen.space, limits, request.always(wanted.problems, device, limits))

        def begin(binaries: int) -> None:
            seconds = seconds_text(compile_seconds(binaries, default_workers()))
            display.say(f"compiling {binaries} binaries for {limits.name}, about {seconds}")

        ahead = compile_ahead(plan, limits, out, display.compiling, begin)
    display.say(*ahead_lines(ahead))
    return Sweep(device, Summary(), compiled=ahead)


def _done(request: Request, works: Sequence[PreparedSweep], opened: Store, display: Silent, begun: float) -> Sweep:
    """The end of a sweep that has nothing to measure and did not open its devices."""
    protocol = {"regime": request.regime, "rounds": 0, "void_rounds": 0, "worker_restarts": 0}
    done = []
    with display:
        for work in works:
            failed = without_times(work.stored, [task.problem for task in work.plan.tasks])
            summary = Summary(known=len(work.plan.tasks), known_failed=failed, phases=Phases(0.0, 0.0, 0.0, protocol))
            summary.starting_seconds = time.monotonic() - begun
            nothing = _nothing(request, work)
            ending = nothing or end_lines(summary, request.chosen.budget_seconds, display.details)
            display.say(*work.lines, *ending)
            done.append(Sweep(work.device, Summary() if nothing else summary, "" if nothing else opened.damage))
    return done[0]._replace(others=tuple(done[1:]))


def _swept(
    request: Request,
    groups: list[tuple[Sequence[Bench], PreparedSweep]],
    opened: Store,
    devices: "Devices | ClusterDevices",
    prepared: Callable[[Bench], PreparedSweep],
    cache: BinaryCache | None,
    display: Silent,
    begun: float,
) -> Sweep:
    budget = request.chosen.budget_seconds
    planned: list[Work] = []

    def plan_for(benches: Sequence[Bench], work: PreparedSweep) -> Work:
        display.say(*_unusable(cache, benches[0]), *work.lines, *_nothing(request, work))
        if work.plan.tasks:
            display.say(*refinement_lines(work.search))
        chosen = fitting(work.plan, min((b.free_bytes for b in benches if b.free_bytes is not None), default=None))
        key = work.key if chosen.tasks == work.plan.tasks else None
        planned.append(Work(benches, chosen, work.strategy_of(chosen), work.stored, key))
        return planned[-1]

    def work_of(bench: Bench) -> Work:
        display.say(f"joined: {device_line(bench)}")
        groups.append(([bench], prepared(bench)))
        return plan_for(*groups[-1])

    with display:
        works = [plan_for(*group) for group in groups]
        starting = time.monotonic() - begun
        left = None if budget is None else budget - starting
        retry = request.retry_failed
        joining = devices if isinstance(devices, Joining) else None
        summaries = measure(works, opened, left, display, retry_failed=retry, joining=joining, work_of=work_of)
    done = []
    for (benches, work), swept, summary in zip(groups, planned, summaries, strict=True):
        control = work.control.result() if work.control else None
        if swept.plan.tasks:
            summary.starting_seconds += starting
            summary.lost |= devices.lost
            display.say(*([benches[0].device.label] if len(groups) > 1 else []), *refinement_lines(work.search))
            display.say(*end_lines(summary, budget, display.details))
            pruned = pruned_lines(swept.plan) if summary.is_fruitless else []
            display.say(*pruned, *([control.line()] if control else []))
        done.append(Sweep(benches[0].device, summary, opened.damage, control=control))
    display.say(*filter(None, [cache.line() if cache else ""]))
    return done[0]._replace(others=tuple(done[1:]))


def _nothing(request: Request, work: PreparedSweep) -> list[str]:
    """Lines for a sweep with `--stale` or `--refine` that has nothing to measure; empty for others."""
    if work.plan.tasks:
        return []
    if request.refine is not None:
        return [*refinement_lines(work.search), SETTLED]
    return [NOTHING_STALE] if request.stale else []


def _unusable(cache: BinaryCache | None, bench: Bench) -> list[str]:
    """A line if binaries of `--cache` cannot be used."""
    return list(filter(None, [cache.unusable(bench.target.name) if cache else ""]))


def _planned(
    request: Request,
    wanted: Wanted,
    opened: Store | None,
    devices: "Devices | ClusterDevices",
    cache: BinaryCache | None,
    display_of: Callable[[str], Silent],
) -> Sweep:
    effort, regime = request.chosen, request.regime
    try:
        benches = devices.open()
    except NoDeviceError:
        if request.device is not None:
            raise
        benches = [AbsentBench(regime)]
    display = _named(benches, display_of)
    done = []
    for group in alike(benches):
        bench = group[0]
        coverage = opened.coverage(bench.device, regime) if opened else {}
        kernels = compare(coverage, bench.target)
        stored = kernels.applied(coverage)
        more: list[str] = []
        strategy: Strategy = request.search()
        if wanted.refined:
            chosen, strategy = refinement_plan(request, wanted.refined, stored, bench.device, bench.target)
            more = refinement_lines(strategy(chosen.tasks, {}))
        else:
            always = request.always(wanted.problems, bench.device, bench.target)
            chosen = wanted.plan(effort.space, bench.target, always, request.leaves_out)
            strategy = request.search(warm_start(chosen, always, bench.target))
            strategy = going_on(strategy, request.key(always), opened, bench.device, regime)
        chosen = fitting(chosen, bench.free_bytes)
        options = effort.budget_seconds, request.retry_failed, stored, len(group)
        outlook = look_ahead(bench, opened, chosen, strategy, *options)
        planned = [*plan_lines(outlook), *pruned_lines(chosen)] if chosen.tasks or not wanted.refined else [SETTLED]
        display.say(*_unusable(cache, bench), *kernels.lines, *more, *planned)
        done.append(Sweep(bench.device, Summary(outlook=outlook), is_dry=True))
    display.say("a dry run: nothing is measured")
    return done[0]._replace(others=tuple(done[1:]))
