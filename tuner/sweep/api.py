"""A sweep from Python, and the run of one that the command shares.

In: a `Request` in plain values. Out: a `Sweep`: the device, the plan, and what was measured. What is shown meanwhile is
left to `progress`, reading options to `commands`.
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
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import Bench, Phases, begin_device, open_device_to_plan
from normtune.tuner.device.unopened import unopened
from normtune.tuner.plan.plan import fitting, warm_start
from normtune.tuner.plan.resume import without_times
from normtune.tuner.search.control import Control
from normtune.tuner.search.protocol import Strategy
from normtune.tuner.staleness.stored import compare
from normtune.tuner.sweep.prepare import PreparedSweep, is_finished, ready, refined, refined_lines
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
)
from normtune.tuner.sweep.request import Request, Wanted
from normtune.tuner.sweep.summary import Summary
from normtune.tuner.sweep.sweep import Outlook, look_ahead
from normtune.tuner.sweep.sweep import sweep as measure


class Sweep(NamedTuple):
    """Result of a sweep.

    Attributes:
        device: that was measured, or planned for.
        outlook: the plan, with the expected time; None where there was nothing to measure.
        summary: counts and times; empty of a dry run, and where nothing was stale.
        damage: line about stored measurements that were left out as damaged; empty if none were.
        is_dry: whether it was planned and nothing was measured.
        compiled: binaries of `compile_only`; None where it was not given.
        control: time of unchanged code relative to its stored time, of a sweep of what is stale; None without one.
    """

    device: Device
    outlook: Outlook | None
    summary: Summary
    damage: str = ""
    is_dry: bool = False
    compiled: Ahead | None = None
    control: Control | None = None

    def to_plain(self) -> dict[str, Any]:
        """What `normtune sweep --json` prints, as JSON values; docs/commands.md describes the keys."""
        measured = None if self.is_dry or self.compiled else self.summary
        plain = plain_sweep(self.device, self.outlook, measured, self.compiled)
        return plain | ({"control": self.control._asdict()} if self.control else {})


@keywords_of(Request)
def sweep(request: Request) -> Sweep:
    """Measure configs over shapes and store every sample, as `normtune sweep` does.

    Each problem is committed when it is done: after an interrupt, or the end of its budget, the same call resumes.
    Starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Raises:
        UsageError: a value is unknown or out of range.
        NormtuneError: there is no such GPU, or the device or the store failed; what was measured is stored.
    """
    return run(request, lambda title: Silent())


def run(request: Request, face_of: Callable[[str], Silent], begun: float | None = None) -> Sweep:
    """As `sweep`; `face_of` makes the display of a device's name, `begun` is on the monotonic clock, None for now."""
    begun = time.monotonic() if begun is None else begun
    wanted = request.wanted()
    if request.compile_only:
        return _compiled(request, wanted, face_of)
    url = resolve_url(None if request.store is None else os.fspath(request.store))
    cache = None if request.cache is None else BinaryCache(Path(request.cache))
    if request.dry_run:
        return _planned(request, wanted, url, cache, face_of)
    path = sqlite_path(parse(url))
    with ExitStack() as stack:

        def begun_device() -> Bench:
            """The device, which is opened while the sweep is planned."""
            bench = begin_device(request.device, request.regime, cache)
            stack.callback(bench.close)
            return bench

        opened = stack.enter_context(Store.open(url)) if path is None or path.exists() else None
        bench = None if opened else begun_device()
        runs = opened.runs() if opened else []
        known = unopened(request.device, request.regime, runs)
        face = _named(known, face_of) if known else None
        if bench is None and known:
            key = request.key(request.always(wanted.problems, known.device, known.target))
            if key and not is_finished(key, runs, known.device, request.regime):
                bench = begun_device()
        if bench and known and known.compiles:
            bench.expect(known.target.name)
            bench.prepare(())
        work = ready(request, wanted, opened, known.device, known.target) if known else None
        if known and face and work and opened and not work.search.left():
            return _done(request, work, known, opened, face, begun)
        bench = bench or begun_device()
        if work:
            bench.prepare(work.search.ask(math.inf))
        bench.open()
        face = face or _named(bench, face_of)
        bench.prepare(())
        opened = opened or stack.enter_context(Store.open(url))
        if work is None or not work.is_of(bench.device, bench.target):
            said = work.lines if work else []
            work = ready(request, wanted, opened, bench.device, bench.target)
            work = work._replace(lines=list(dict.fromkeys([*said, *work.lines])))
        return _swept(request, work, opened, bench, cache, face, begun)


def _named(device: Bench | Identity, face_of: Callable[[str], Silent]) -> Silent:
    """The display of a sweep, which begins with the device: to open it takes seconds."""
    face = face_of(device.device.label)
    face.say(device_line(device))
    return face


def _compiled(request: Request, wanted: Wanted, face_of: Callable[[str], Silent]) -> Sweep:
    limits, out = request.limits(), Path(str(request.out))
    check_out(out)
    device = Device("no GPU here, compiled for one", limits.name, limits.sms, limits.l2_bytes, 0, "absent", "none")
    with face_of(limits.name) as face:
        plan = wanted.plan(request.chosen.space, limits, request.always(wanted.problems, device, limits))
        ahead = compile_ahead(plan, limits, out, face.compiling)
    face.say(*ahead_lines(ahead))
    return Sweep(device, None, Summary(), compiled=ahead)


def _done(
    request: Request,
    work: PreparedSweep,
    known: Identity,
    opened: Store,
    face: Silent,
    begun: float,
) -> Sweep:
    """The end of a sweep that has nothing to measure; its device was not opened."""
    protocol = {"regime": request.regime, "rounds": 0, "void_rounds": 0, "worker_restarts": 0}
    failed = without_times(work.stored, [task.problem for task in work.plan.tasks])
    summary = Summary(known=len(work.plan.tasks), known_failed=failed, phases=Phases(0.0, 0.0, 0.0, protocol))
    summary.starting_seconds = time.monotonic() - begun
    with face:
        face.say(*work.lines)
        if nothing := _nothing(request, work):
            face.say(*nothing)
            return Sweep(known.device, None, Summary())
        face.say(*end_lines(summary, request.chosen.budget_seconds))
    return Sweep(known.device, None, summary, opened.damage)


def _swept(
    request: Request,
    work: PreparedSweep,
    opened: Store,
    bench: Bench,
    cache: BinaryCache | None,
    face: Silent,
    begun: float,
) -> Sweep:
    budget = request.chosen.budget_seconds
    with face:
        face.say(*_unusable(cache, bench), *work.lines)
        if nothing := _nothing(request, work):
            face.say(*nothing)
            return Sweep(bench.device, None, Summary())
        face.say(*refined_lines(work.search))
        chosen = fitting(work.plan, bench.free_bytes)
        starting = time.monotonic() - begun
        left = None if budget is None else budget - starting
        strategy = work.strategy_of(chosen)
        summary = measure(
            *(bench, opened, chosen, strategy, left, face),
            retry_failed=request.retry_failed,
            stored=work.stored,
            key=work.key if chosen.tasks == work.plan.tasks else None,
        )
        summary.starting_seconds += starting
    control = work.control.result() if work.control else None
    more = control.line() if control else "", cache.line() if cache else ""
    pruned = pruned_lines(chosen) if summary.is_fruitless else []
    face.say(*refined_lines(work.search), *end_lines(summary, budget), *pruned, *filter(None, more))
    return Sweep(bench.device, face.outlook, summary, opened.damage, control=control)


def _nothing(request: Request, work: PreparedSweep) -> list[str]:
    """Lines about a request that leaves nothing to measure, if so."""
    if work.plan.tasks:
        return []
    if request.refine is not None:
        return [*refined_lines(work.search), SETTLED]
    return [NOTHING_STALE] if request.stale else []


def _unusable(cache: BinaryCache | None, bench: Bench) -> list[str]:
    """The line that the binaries cannot be used, if so."""
    return list(filter(None, [cache.unusable(bench.target.name) if cache else ""]))


def _planned(
    request: Request, wanted: Wanted, url: str, cache: BinaryCache | None, face_of: Callable[[str], Silent]
) -> Sweep:
    effort, regime = request.chosen, request.regime
    path = sqlite_path(parse(url))
    bench = open_device_to_plan(request.device, regime)
    try:
        with ExitStack() as stack:
            exists = path is None or path.exists()
            opened = stack.enter_context(Store.open(url, create=False)) if exists else None
            held = opened.coverage(bench.device, regime) if opened else {}
            kernels = compare(held, bench.target)
            stored = kernels.applied(held)
            more: list[str] = []
            strategy: Strategy = request.search()
            if wanted.refining:
                chosen, strategy = refined(request, wanted.refining, stored, bench.device, bench.target)
                more = refined_lines(strategy(chosen.tasks, {}))
            else:
                always = request.always(wanted.problems, bench.device, bench.target)
                chosen = wanted.plan(effort.space, bench.target, always)
                strategy = request.search(warm_start(chosen, always, bench.target))
            chosen = fitting(chosen, bench.free_bytes)
            outlook = look_ahead(
                *(bench, opened, chosen, strategy, effort.budget_seconds, request.retry_failed), stored=stored
            )
        planned = [*plan_lines(outlook), *pruned_lines(chosen)] if chosen.tasks or not wanted.refining else [SETTLED]
        lines = *_unusable(cache, bench), *kernels.lines, *more, *planned
        face_of(bench.device.label).say(device_line(bench), *lines, "a dry run: nothing is measured")
        return Sweep(bench.device, outlook, Summary(), is_dry=True)
    finally:
        bench.close()
