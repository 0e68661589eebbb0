"""What a sweep measures on like devices, which need not be open.

In: a request, a store and the identities of devices. Out: `Part`: the search over what the store lacks, which is
made here, once, and the lines that come first.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.fingerprint import unnoticed
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.store import Store
from normtune.results.records import Device
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Identity
from normtune.tuner.plan.plan import ConfigsOf, fitting, plan, warm_start
from normtune.tuner.plan.resume import Stored, previous_of, stale_plan, without_times
from normtune.tuner.search.refine import Refine, answers_at
from normtune.tuner.staleness.stored import Pair, compare, is_other_code
from normtune.tuner.sweep.refine import RefinedTable
from normtune.tuner.sweep.report import NOTHING_DISPUTED, NOTHING_STALE
from normtune.tuner.sweep.request import Request, Scope
from normtune.tuner.sweep.summary import Summary
from normtune.tuner.sweep.work import Work


class Kind(NamedTuple):
    """Like devices, which share a search.

    Attributes:
        device: the first of them.
        target: its limits.
        devices: number of them.
        free_bytes: least free memory of them; None for no limit.
        always: the configs that are timed on them at each problem.
        key: of the request, see `Request.key`.
        is_complete: whether the store says that the request was completed on them.
    """

    device: Device
    target: Target
    devices: int
    free_bytes: int | None
    always: ConfigsOf
    key: str | None
    is_complete: bool

    @classmethod
    def of(
        cls, devices: Sequence[Bench | Identity], request: Request, problems: Sequence[Problem], store: Store | None
    ) -> "Kind":
        """The kind of these devices, which are alike."""
        first, free = devices[0], [one.free_bytes for one in devices if one.free_bytes is not None]
        always = request.always(problems, first.device, first.target)
        key = request.key(always)
        completed = store.completed_requests(first.device, request.regime) if store and key else set()
        return cls(first.device, first.target, len(devices), min(free, default=None), always, key, key in completed)

    def is_of(self, device: Bench | Identity) -> bool:
        """Whether a device is of this kind."""
        return (device.device.kind, device.target) == (self.device.kind, self.target)


@dataclass(eq=False)
class Part:
    """The part of a sweep on like devices.

    Attributes:
        kind: of the devices.
        lines: about stored measurements whose kernels changed, a refinement, and that nothing is to be measured.
        summary: counts of what was and is measured.
        work: what is measured; None if the request is finished, which is found without a plan.
        is_empty: whether nothing was asked for: nothing is stale, or the table needs no refinement.
        benches: the devices, once they are open.
    """

    kind: Kind
    lines: list[str]
    summary: Summary
    work: Work | None
    is_empty: bool = False
    benches: list[Bench] = field(default_factory=list)

    @property
    def is_pending(self) -> bool:
        """Whether there was something to measure at the start."""
        return self.work is not None and bool(self.work.backlog.tasks)

    def refinement_lines(self) -> list[str]:
        """Lines about the loss that a refined table may have where nothing was measured; empty for other sweeps."""
        return self.work.search.report().get("refinement", []) if self.work else []


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collections, which look at each of a plan's millions of objects again and again."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@_uncollected()
def prepare(request: Request, scope: Scope, store: Store | None, kind: Kind) -> Part:
    """Plan a sweep, after the stored fingerprints were corrected by a comparison of the compiled code.

    A dry run leaves the store as it is.

    Args:
        request: the sweep.
        scope: its problems.
        store: of the measurements; None if it does not exist yet.
        kind: of the devices.

    Raises:
        NormtuneError: the store failed, no compiler can start to compare code, or no problem fits into the free memory.
    """
    device, target = kind.device, kind.target
    stored: Stored = {}
    lines = unnoticed(problem.operator for problem in scope.problems)
    corrected: dict[Pair, tuple[str, str]] = {}
    if store:
        coverage = store.coverage(device, request.regime)
        comparison = compare(coverage, target, across_tritons=request.stale)
        if not request.dry_run:
            store.set_fingerprints(device, comparison.fingerprints)
        corrected = comparison.fingerprints
        stored = comparison.applied(coverage)
        lines += [*comparison.lines, *filter(None, [store.ahead])]
    option = store.option if store else ""
    is_complete = kind.is_complete and not (store and store.damage) and not is_other_code(stored, scope.problems)
    if is_complete and not request.dry_run:
        # Without a plan: that of a large space takes seconds, and so does the import of some searches.
        failed = without_times(stored, scope.problems)
        return Part(kind, lines, Summary(option, known=len(scope.problems), known_failed=failed), None)
    if request.stale:
        if store:
            from normtune.tuner.staleness.links import without_links  # other sweeps do not need it

            measured = store.load(devices=[device.label], regime=request.regime).of(device)
            unlinked = without_links(stored, measured, corrected)
            if unlinked:
                lines.append(f"measured again because nothing else compares their times: {len(unlinked)} measurements")
            stored = {**stored, **unlinked}
        requested = stale_plan(stored, target)
    elif scope.refined:
        return _refinement(request, scope.refined, stored, kind, lines, option)
    else:
        space = request.space_of(scope.problems, device)
        requested = scope.plan(space, target, kind.always, request.leaves_out)
    chosen = fitting(requested, kind.free_bytes)
    previous = previous_of(stored, {task.problem.operator for task in chosen.tasks}, request.retry_failed)
    advice = warm_start(chosen, kind.always, target) if request.leaves_out else None
    search = request.search(advice, kind.devices)(chosen.tasks, previous)
    key = kind.key if chosen.tasks == requested.tasks else None
    work = Work.of(chosen, search, stored, option, key)
    is_empty = request.stale and not chosen.tasks
    return Part(kind, [*lines, *[NOTHING_STALE] * is_empty], work.summary, work, is_empty)


def _refinement(
    request: Request, table: RefinedTable, stored: Stored, kind: Kind, lines: list[str], option: str
) -> Part:
    """The table's configs without a time, then the shapes to measure from the present estimate.

    Raises:
        UsageError: the store has no measurements of the table's functions.
        NormtuneError: no problem fits into the free memory.
    """
    device, target = kind.device, kind.target
    refinement = table.on(device, request.regime)
    before = previous_of(stored, {key.operator for key in table.trees}, request.retry_failed)
    disputes = refinement.disputes(before)
    if not disputes:
        raise UsageError(
            f"table {table.table} cannot be refined: the store has no measurement of its functions on this device with "
            "the present kernels; sweep first"
        )
    problems = [Problem(key, *dispute.shape) for key, of_key in disputes.items() for dispute in of_key.open()]
    always = {
        problem: [*configs, *answers_at(table.choices, problem)]
        for problem, configs in request.always(problems, device, target).items()
    }
    disputed = plan(problems, request.space_of(problems, device), target, always)._replace(pruned={})
    recorded = request.space_of(list(before), device)
    untimed = table.untimed(before, target, None if isinstance(recorded, str) else recorded)
    fit = fitting(disputed._replace(tasks=(*untimed, *disputed.tasks)), kind.free_bytes)
    fitting_problems = {task.problem for task in fit.tasks}
    first, others = ([one for one in tasks if one.problem in fitting_problems] for tasks in (untimed, disputed.tasks))
    search = Refine(others, before, refinement, first)
    work = Work.of(fit._replace(tasks=tuple(search.pending())), search, stored, option)
    is_empty = not work.backlog.tasks
    part = Part(kind, lines, work.summary, work, is_empty)
    part.lines += [*part.refinement_lines(), *[NOTHING_DISPUTED] * is_empty]
    return part
