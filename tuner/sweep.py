"""The sweep: plan against what is stored, measure what is missing, store each problem as it is done.

In: a bench, a store, what is wanted. Out: measurements in the store and a `Summary`. Killed at any time it loses at
most the problem in hand; the same call goes on where it was.
"""

import platform
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from normtune.kernels.config import Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.results.records import COPY, ROUNDS_PER_BLOCK, Measurement, Run
from normtune.results.store import Coverage, Store
from normtune.tuner.device import Bench, Outcome, Phases, SkippedError
from normtune.tuner.planning import Plan, Task, candidates
from normtune.tuner.racing import ALL_BLOCKS, FIRST_BLOCKS

_ROUNDS = {"adaptive": ROUNDS_PER_BLOCK * FIRST_BLOCKS, "exhaustive": ROUNDS_PER_BLOCK * ALL_BLOCKS}
# Kept of the budget for finishing the problem in hand and writing it down.
_MARGIN_SECONDS = 2.0


@dataclass
class Summary:
    """What a sweep did.

    Attributes:
        problems: problems measured now.
        known: problems that were complete before.
        left: problems that the budget did not reach.
        skipped: problems that could not be measured now, by reason.
        statuses: stored measurements by status.
        phases: seconds in compile, gate and timing, and the run's protocol.
        seconds: seconds on the wall in all.
    """

    problems: int = 0
    known: int = 0
    left: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    phases: Phases | None = None
    seconds: float = 0.0


class Progress(Protocol):
    """Hears what a sweep is doing."""

    def compiling(self, done: int, total: int) -> None:
        """So many binaries of so many are compiled."""
        ...

    def measured(self, task: Task, outcomes: Mapping[Config, Outcome], done: int, total: int) -> None:
        """A problem was measured and stored."""
        ...


Stored = Mapping[tuple[Problem, Config], Coverage]


def missing(plan: Plan, stored: Stored, strategy: str) -> list[Task]:
    """The tasks that the store does not hold yet, each with its missing candidates and its incumbent.

    A candidate is done when it has as many rounds as the strategy gives at least, or failed, under the present
    kernels. A problem that lacks some candidates has its best stored one timed again beside them, as an anchor.
    """
    tasks = []
    for task in plan.tasks:
        current = fingerprint(operator(task.problem.operator))
        found = {c: stored.get((task.problem, c.config)) for c in task.candidates}
        done = {c: known for c, known in found.items() if known and _is_done(known, current, strategy)}
        lacking = [c for c in task.candidates if c not in done]
        if not lacking:
            continue
        timed = {c: known.median_ns for c, known in done.items() if known.median_ns is not None}
        anchors = [min(timed, key=lambda c: (timed[c], c))] if timed else []
        tasks.append(Task(task.problem, tuple(sorted([*lacking, *anchors]))))
    return tasks


def stale_plan(stored: Stored, bench: Bench) -> Plan:
    """A plan of just what is stored under kernels that have changed since."""
    wanted: dict[Problem, list[Config]] = {}
    for (problem, config), known in stored.items():
        if config != COPY and known.fingerprint != fingerprint(operator(problem.operator)):
            wanted.setdefault(problem, []).append(config)
    tasks = []
    for problem, configs in sorted(wanted.items()):
        kept, _ = candidates(operator(problem.operator), configs, problem, bench.target)
        if kept:
            tasks.append(Task(problem, tuple(kept)))
    return Plan(tuple(tasks), {})


def sweep(
    bench: Bench,
    store: Store,
    plan: Plan,
    strategy: str,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Summary:
    """Measure what the plan wants and the store lacks.

    Args:
        bench: the device.
        store: where measurements go, one transaction a problem.
        plan: what is wanted.
        strategy: a name of `racing.STRATEGIES`.
        budget_seconds: stop before the problem that would overrun this; None for no limit.
        progress: told of each step.
        clock: seconds, for the budget.
    """
    begun = clock()
    tasks = missing(plan, store.coverage(bench.device), strategy)
    summary = Summary(known=len(plan.tasks) - len(tasks))
    if not tasks:
        summary.phases = bench.phases()
        bench.close()
        return summary
    # Shuffled, so that a sweep that is cut short has seen all of the grid a little.
    random.Random(0).shuffle(tasks)
    run = Run(
        id=uuid.uuid4().hex,
        device=bench.device,
        software={"python": platform.python_version(), **bench.software},
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        protocol={"strategy": strategy},
    )
    store.begin_run(run)
    longest = 0.0
    try:
        bench.prepare(tasks, progress.compiling if progress else None)
        for number, task in enumerate(tasks):
            start = clock()
            left = None if budget_seconds is None else budget_seconds - (start - begun) - longest - _MARGIN_SECONDS
            if left is not None and (left < 0 or not bench.compiled(task, left)):
                summary.left = len(tasks) - number
                break
            try:
                outcomes = bench.measure(task, strategy)
            except SkippedError as error:
                summary.skipped[str(error)] += 1
                continue
            store.add(_measurements(task, outcomes, run.id))
            summary.problems += 1
            summary.statuses.update(outcome.status for outcome in outcomes.values())
            longest = max(longest, clock() - start)
            if progress:
                progress.measured(task, outcomes, number + 1, len(tasks))
    finally:
        summary.phases = bench.phases()
        store.update_run(run._replace(protocol=_protocol(strategy, summary.phases) | bench.close()))
    summary.seconds = clock() - begun
    return summary


def _protocol(strategy: str, phases: Phases) -> dict[str, Any]:
    """What a run says about how its times were taken."""
    seconds = {name: round(getattr(phases, name), 3) for name in ("compile", "gate", "timing")}
    return {"strategy": strategy, **phases.protocol, "seconds": seconds}


def _is_done(known: Coverage, current: str, strategy: str) -> bool:
    if known.fingerprint != current:
        return False
    return known.status != "ok" or known.samples >= _ROUNDS[strategy]


def _measurements(task: Task, outcomes: Mapping[Config, Outcome], run: str) -> Sequence[Measurement]:
    current = fingerprint(operator(task.problem.operator))
    return [
        Measurement(
            task.problem,
            config,
            run,
            current,
            outcome.status,
            outcome.reason,
            np.asarray(outcome.rounds, dtype=np.int32),
            np.asarray(outcome.nanoseconds, dtype=np.int32),
        )
        for config, outcome in sorted(outcomes.items())
    ]
