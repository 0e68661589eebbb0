"""A sweep from Python, and its run, which the command shares.

In: a `Request`. Out: a `Sweep`: the device, the plan, and counts of the measurements. `progress` displays, `command`
reads the options.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from normtune.results.database.store import Store
from normtune.results.database.url import parse, resolve_url, sqlite_path
from normtune.results.options import keywords_of
from normtune.results.records import Device
from normtune.tuner.compiling.ahead import Ahead, compile_ahead
from normtune.tuner.compiling.binary_cache import BinaryCache, check_out
from normtune.tuner.compiling.pool import default_workers
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import Bench, Phases, begin_device, open_device_to_plan
from normtune.tuner.device.unopened import unopened
from normtune.tuner.plan.estimate import PLAN_SECONDS, compile_seconds
from normtune.tuner.plan.plan import fitting, warm_start
from normtune.tuner.plan.resume import without_times
from normtune.tuner.search.control import Control
from normtune.tuner.search.protocol import Strategy
from normtune.tuner.staleness.stored import compare
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
from normtune.tuner.sweep.sweep import Outlook, look_ahead
from normtune.tuner.sweep.sweep import sweep as measure

# Shorter plans are not announced.
_BRIEF = 3.0


class Sweep(NamedTuple):
    """Result of a sweep.

    Attributes:
        device: the measured device, or the one of the plan.
        outlook: the plan, with the expected time; None if there was nothing to measure.
        summary: counts and times; empty for a dry run, and if nothing was stale.
        damage: line about damaged stored measurements, which were left out; empty without any.
        is_dry: whether the sweep was only planned.
        compiled: binaries of `compile_only`; None without that option.
        control: time of unchanged code relative to its stored time, for `stale`; None without that option.
    """

    device: Device
    outlook: Outlook | None
    summary: Summary
    damage: str = ""
    is_dry: bool = False
    compiled: Ahead | None = None
    control: Control | None = None

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
        return plain | ({"control": self.control._asdict()} if self.control else {})


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
    if request.dry_run:
        return _planned(request, wanted, url, cache, display_of)
    path = sqlite_path(parse(url))
    with ExitStack() as stack:

        def start_device() -> Bench:
            """Start opening the device in the background."""
            bench = begin_device(request.device, request.regime, cache)
            stack.callback(bench.close)
            return bench

        opened = stack.enter_context(Store.open(url)) if path is None or path.exists() else None
        bench = None if opened else start_device()
        runs = opened.runs() if opened else []
        identity = unopened(request.device, request.regime, runs)
        display = _named(identity, display_of) if identity else None
        if bench is None and identity:
            key = request.key(request.always(wanted.problems, identity.device, identity.target))
            if key and not is_finished(key, runs, identity.device, request.regime):
                bench = start_device()
        if bench and identity and identity.compiles:
            bench.expect(identity.target.name)
            bench.prepare(())
        work = prepare(request, wanted, opened, identity.device, identity.target) if identity else None
        if identity and display and work and opened and not work.search.left():
            return _done(request, work, identity, opened, display, begun)
        bench = bench or start_device()
        if work:
            bench.prepare(work.search.ask(math.inf))
        bench.open()
        display = display or _named(bench, display_of)
        bench.prepare(())
        opened = opened or stack.enter_context(Store.open(url))
        if work is None or not work.is_of(bench.device, bench.target):
            lines = work.lines if work else []
            work = prepare(request, wanted, opened, bench.device, bench.target)
            work = work._replace(lines=list(dict.fromkeys([*lines, *work.lines])))
        return _swept(request, work, opened, bench, cache, display, begun)


def _named(device: Bench | Identity, display_of: Callable[[str], Silent]) -> Silent:
    """The display of a sweep, with the name of the device, which is shown at once, as opening takes seconds."""
    display = display_of(device.device.label)
    display.say(device_line(device))
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
    return Sweep(device, None, Summary(), compiled=ahead)


def _done(
    request: Request,
    work: PreparedSweep,
    identity: Identity,
    opened: Store,
    display: Silent,
    begun: float,
) -> Sweep:
    """The end of a sweep that has nothing to measure and did not open its device."""
    protocol = {"regime": request.regime, "rounds": 0, "void_rounds": 0, "worker_restarts": 0}
    failed = without_times(work.stored, [task.problem for task in work.plan.tasks])
    summary = Summary(known=len(work.plan.tasks), known_failed=failed, phases=Phases(0.0, 0.0, 0.0, protocol))
    summary.starting_seconds = time.monotonic() - begun
    with display:
        display.say(*work.lines)
        if nothing := _nothing(request, work):
            display.say(*nothing)
            return Sweep(identity.device, None, Summary())
        display.say(*end_lines(summary, request.chosen.budget_seconds, display.details))
    return Sweep(identity.device, None, summary, opened.damage)


def _swept(
    request: Request,
    work: PreparedSweep,
    opened: Store,
    bench: Bench,
    cache: BinaryCache | None,
    display: Silent,
    begun: float,
) -> Sweep:
    budget = request.chosen.budget_seconds
    with display:
        display.say(*_unusable(cache, bench), *work.lines)
        if nothing := _nothing(request, work):
            display.say(*nothing)
            return Sweep(bench.device, None, Summary())
        display.say(*refinement_lines(work.search))
        chosen = fitting(work.plan, bench.free_bytes)
        starting = time.monotonic() - begun
        left = None if budget is None else budget - starting
        strategy = work.strategy_of(chosen)
        summary = measure(
            *(bench, opened, chosen, strategy, left, display),
            retry_failed=request.retry_failed,
            stored=work.stored,
            key=work.key if chosen.tasks == work.plan.tasks else None,
        )
        summary.starting_seconds += starting
    control = work.control.result() if work.control else None
    more = control.line() if control else "", cache.line() if cache else ""
    pruned = pruned_lines(chosen) if summary.is_fruitless else []
    display.say(
        *refinement_lines(work.search), *end_lines(summary, budget, display.details), *pruned, *filter(None, more)
    )
    return Sweep(bench.device, display.outlook, summary, opened.damage, control=control)


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
    request: Request, wanted: Wanted, url: str, cache: BinaryCache | None, display_of: Callable[[str], Silent]
) -> Sweep:
    effort, regime = request.chosen, request.regime
    path = sqlite_path(parse(url))
    bench = open_device_to_plan(request.device, regime)
    try:
        with ExitStack() as stack:
            exists = path is None or path.exists()
            opened = stack.enter_context(Store.open(url, create=False)) if exists else None
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
            outlook = look_ahead(
                *(bench, opened, chosen, strategy, effort.budget_seconds, request.retry_failed), stored=stored
            )
        planned = [*plan_lines(outlook), *pruned_lines(chosen)] if chosen.tasks or not wanted.refined else [SETTLED]
        lines = *_unusable(cache, bench), *kernels.lines, *more, *planned
        display_of(bench.device.label).say(device_line(bench), *lines, "a dry run: nothing is measured")
        return Sweep(bench.device, outlook, Summary(), is_dry=True)
    finally:
        bench.close()
