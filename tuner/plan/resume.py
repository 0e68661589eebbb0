"""Stored measurements for a sweep that goes on: those with the present kernels, and stale ones.

In: the coverage of a store. Out: the measurements with the present kernels, a plan of the stale ones, and the key of a
request. The search decides when a problem is done.
"""

import hashlib
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import Coverage
from normtune.tuner.plan.plan import ConfigsOf, Plan, Task, candidates

Stored = Mapping[tuple[Problem, Config], Coverage]


# Failures that may have an outside cause: another process killed the worker, or the machine was suspended.
_RETRIED = ("crashed", "timeout")


def previous_of(
    stored: Stored, names: Collection[str], retry_failed: bool = False
) -> dict[Problem, dict[Config, Coverage]]:
    """Stored measurements with the present kernels of these operators; `retry_failed` omits crashes and timeouts."""
    current = {name: fingerprint(operator(name)) for name in names}
    result: dict[Problem, dict[Config, Coverage]] = {}
    for (problem, config), coverage in stored.items():
        is_current = coverage.fingerprint == current.get(problem.operator) and not coverage.why_stale
        if is_current and not (retry_failed and coverage.status in _RETRIED):
            result.setdefault(problem, {})[config] = coverage
    return result


def without_times(stored: Stored, problems: Collection[Problem]) -> int:
    """Number of problems without a time of any config."""
    timed = {problem for (problem, config), state in stored.items() if state.status == "ok" and config != COPY}
    return sum(problem not in timed for problem in problems)


def key_of(always: ConfigsOf, space: str, search: str) -> str | None:
    """Key of a request, which the store has of completed ones: these need no search to find nothing left.

    The key changes with the kernels, the modules of their spaces, and the configs that are always timed.

    Args:
        always: the problems, each with the configs that are always timed.
        space: its name.
        search: its name and options.

    Returns:
        The key; None if the module of a space has no file, as in a notebook.
    """
    problems = always.keys()
    specs = {operator(problem.operator) for problem in problems}
    spaces = [getattr(spec.space, "func", spec.space) for spec in specs]  # a `partial`'s function
    files = {getattr(sys.modules.get(of_space.__module__), "__file__", None) for of_space in spaces}
    if None in files:
        return None
    sources = sorted(hashlib.sha256(Path(str(file)).read_bytes()).hexdigest() for file in files)
    parts = [space, search, *sorted(map(fingerprint, specs)), *sources]
    parts += sorted(f"{problem} {[config.to_json() for config in configs]}" for problem, configs in always.items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def stale_plan(stored: Stored, target: Target) -> Plan:
    """A plan of the configs that were measured with kernels that changed since, or are stale for another reason."""
    stale: dict[Problem, list[Config]] = {}
    for (problem, config), coverage in stored.items():
        is_stale = coverage.why_stale or coverage.fingerprint != fingerprint(operator(problem.operator))
        if is_stale and config != COPY:
            stale.setdefault(problem, []).append(config)
    tasks = []
    for problem, configs in sorted(stale.items()):
        legal, _ = candidates(operator(problem.operator), configs, problem, target)
        if legal:
            tasks.append(Task(problem, tuple(legal)))
    return Plan(tuple(tasks), {})
