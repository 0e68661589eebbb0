"""Prepares a sweep.

In: a request, a store and the identity of a device, which need not be open. Out: `PreparedSweep`: the plan, the stored
measurements with the fingerprints of their compiled code, and the search over the unmeasured rest.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.fingerprint import unnoticed
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.store import Store
from normtune.results.records import Device
from normtune.tuner.plan.plan import Plan, Task, plan, warm_start
from normtune.tuner.plan.resume import Stored, previous_of, stale_plan
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import First
from normtune.tuner.search.protocol import Previous, Search, Strategy
from normtune.tuner.search.refine import Refine, answers_at
from normtune.tuner.staleness.stored import Pair, compare, is_other_code
from normtune.tuner.sweep.backlog import search_of
from normtune.tuner.sweep.refine import RefinedTable
from normtune.tuner.sweep.request import Request, Scope


class PreparedSweep(NamedTuple):
    """The work of a sweep on a device.

    Attributes:
        device: of the sweep.
        target: its limits.
        lines: about stored measurements whose kernels changed.
        stored: the stored measurements.
        plan: the wanted problems and configs; for `stale`, only stale ones.
        strategy: creates the search.
        search: over the plan, with the stored measurements.
        key: of the request, see `Request.key`.
    """

    device: Device
    target: Target
    lines: list[str]
    stored: Stored
    plan: Plan
    strategy: Strategy
    search: Search
    key: str | None = None

    def is_of(self, device: Device, target: Target) -> bool:
        """Whether the sweep was prepared for such a device."""
        return (self.device.kind, self.target) == (device.kind, target)

    def strategy_of(self, plan: Plan) -> Strategy:
        """The strategy for a plan; for the prepared plan it returns the prepared search."""
        return (lambda tasks, previous: self.search) if plan.tasks == self.plan.tasks else self.strategy


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
def prepare(
    request: Request,
    scope: Scope,
    store: Store | None,
    device: Device,
    target: Target,
) -> PreparedSweep:
    """Plan a sweep, after the stored fingerprints were corrected by a comparison of the compiled code.

    A dry run leaves the store as it is.

    Args:
        request: the sweep.
        scope: its problems.
        store: of the measurements; None if it does not exist yet.
        device: of the sweep.
        target: limits of the device.

    Raises:
        NormtuneError: the store failed, or no compiler can start to compare code.
    """
    stored: Stored = {}
    lines = unnoticed(problem.operator for problem in scope.problems)
    completed: set[str] = set()
    corrected: dict[Pair, tuple[str, str]] = {}
    if store:
        coverage = store.coverage(device, request.regime)
        completed = store.completed_requests(device, request.regime)
        comparison = compare(coverage, target, across_tritons=request.stale)
        if not request.dry_run:
            store.set_fingerprints(device, comparison.fingerprints)
        corrected = comparison.fingerprints
        stored = comparison.applied(coverage)
        lines += [*comparison.lines, *filter(None, [store.ahead])]
    always = request.always(scope.problems, device, target)
    key = request.key(always)
    is_over = key in completed and not is_other_code(stored, scope.problems)
    if store and not store.damage and is_over and not request.dry_run:
        # An empty plan: the plan of a large space takes seconds, and so does the import of some searches.
        empty = Plan(tuple(Task(problem, ()) for problem in scope.problems), {})
        return PreparedSweep(device, target, lines, stored, empty, Adaptive, Adaptive((), {}))
    strategy = request.search()
    if request.stale:
        if store:
            from normtune.tuner.staleness.links import without_links  # other sweeps do not need it

            measured = store.load(devices=[device.label], regime=request.regime).of(device)
            unlinked = without_links(stored, measured, corrected)
            if unlinked:
                lines.append(f"measured again because nothing else compares their times: {len(unlinked)} measurements")
            stored = {**stored, **unlinked}
        chosen = stale_plan(stored, target)
    elif scope.refined:
        chosen, strategy = _refinement_plan(request, scope.refined, stored, device, target)
    else:
        chosen = scope.plan(request.space_of(scope.problems, device), target, always, request.leaves_out)
        strategy = request.search(warm_start(chosen, always, target))
    search = search_of(chosen, strategy, stored, request.retry_failed)
    return PreparedSweep(device, target, lines, stored, chosen, strategy, search, key)


def _refinement_plan(
    request: Request, table: RefinedTable, stored: Stored, device: Device, target: Target
) -> tuple[Plan, Strategy]:
    """The plan of the table's untimed configs and of the shapes to measure from the present estimate, and the strategy.

    Raises:
        UsageError: the store has no measurements of the table's functions.
    """
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
    pending = tuple(Refine(disputed.tasks, before, refinement).pending())

    def strategy(tasks: Sequence[Task], _: Previous) -> First:
        """The search over all disputed shapes, because measurements may show others to be uncertain."""
        too_large = {*pending, *untimed}.difference(tasks)
        refine = Refine([task for task in disputed.tasks if task not in too_large], before, refinement)
        return First([task for task in untimed if task not in too_large], refine)

    return disputed._replace(tasks=(*untimed, *pending)), strategy
