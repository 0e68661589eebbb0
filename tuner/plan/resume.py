"""What a store lacks of a plan, and what it knows already.

In: a plan, and the coverage of a store. Out: the tasks that are missing, those that are stale, the times that are
known. Pure; when a problem counts as done is said here and nowhere else.
"""

from collections.abc import Mapping

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.store import Coverage
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.plan.plan import Plan, Task, candidates
from normtune.tuner.search.rounds import ALL_BLOCKS, FIRST_BLOCKS

Stored = Mapping[tuple[Problem, Config], Coverage]

_ROUNDS = {"adaptive": ROUNDS_PER_BLOCK * FIRST_BLOCKS, "exhaustive": ROUNDS_PER_BLOCK * ALL_BLOCKS}

# Failures that somebody else may have caused: who kills processes, or lets the machine sleep.
_MAY_PASS = ("crashed", "timeout")


def missing(plan: Plan, stored: Stored, strategy: str, retry_failed: bool = False) -> list[Task]:
    """The tasks that the store does not hold yet, each with its missing candidates and its incumbent.

    A candidate is done when it has as many rounds as the strategy gives at least, or failed, under the present
    kernels; with `retry_failed` not when its process died or took too long, which others may have caused. A problem
    that lacks some candidates has its best stored one timed again beside them, as an anchor.
    """
    tasks = []
    for task in plan.tasks:
        current = fingerprint(operator(task.problem.operator))
        found = {c: stored.get((task.problem, c.config)) for c in task.candidates}
        done = {c: known for c, known in found.items() if known and _is_done(known, current, strategy, retry_failed)}
        lacking = [c for c in task.candidates if c not in done]
        if not lacking:
            continue
        timed = {c: known.median_ns for c, known in done.items() if known.median_ns is not None}
        anchors = [min(timed, key=lambda c: (timed[c], c))] if timed else []
        tasks.append(Task(task.problem, tuple(sorted([*lacking, *anchors]))))
    return tasks


def stale_plan(stored: Stored, target: Target) -> Plan:
    """A plan of just what is stored under kernels that have changed since."""
    wanted: dict[Problem, list[Config]] = {}
    for (problem, config), known in stored.items():
        if config != COPY and known.fingerprint != fingerprint(operator(problem.operator)):
            wanted.setdefault(problem, []).append(config)
    tasks = []
    for problem, configs in sorted(wanted.items()):
        kept, _ = candidates(operator(problem.operator), configs, problem, target)
        if kept:
            tasks.append(Task(problem, tuple(kept)))
    return Plan(tuple(tasks), {})


def known_medians(stored: Stored, names: set[str]) -> dict[Problem, dict[Config, int]]:
    """Median times (ns) of what is stored under the present kernels, of the operators of these names."""
    current = {name: fingerprint(operator(name)) for name in names}
    found: dict[Problem, dict[Config, int]] = {}
    for (problem, config), known in stored.items():
        if known.median_ns is not None and known.fingerprint == current.get(problem.operator):
            found.setdefault(problem, {})[config] = known.median_ns
    return found


def _is_done(known: Coverage, current: str, strategy: str, retry_failed: bool) -> bool:
    if known.fingerprint != current or (retry_failed and known.status in _MAY_PASS):
        return False
    return known.status != "ok" or known.samples >= _ROUNDS[strategy]
