"""Stored measurements of the problems of a plan, under the present kernels and stale ones.

In: the coverage of a store. Out: the part of it under the present kernels, a plan of the stale part, and the key by
which a request is known again whose search came to its end. The search decides when a problem is done.
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
from normtune.results.database.store import Coverage
from normtune.tuner.plan.plan import Always, Plan, Task, candidates

Stored = Mapping[tuple[Problem, Config], Coverage]

# Failures that another process may have caused: by a kill, or by suspending the machine.
_MAY_PASS = ("crashed", "timeout")


def known(stored: Stored, names: Collection[str], retry_failed: bool = False) -> dict[Problem, dict[Config, Coverage]]:
    """Stored measurements under the present kernels of the operators of these names.

    `retry_failed` leaves out crashes and timeouts, which other processes may have caused.
    """
    current = {name: fingerprint(operator(name)) for name in names}
    result: dict[Problem, dict[Config, Coverage]] = {}
    for (problem, config), coverage in stored.items():
        if coverage.fingerprint == current.get(problem.operator) and not (
            retry_failed and coverage.status in _MAY_PASS
        ):
            result.setdefault(problem, {})[config] = coverage
    return result


def without_times(stored: Stored, problems: Collection[Problem]) -> int:
    """Number of problems of which no config has a time."""
    timed = {problem for (problem, config), state in stored.items() if state.status == "ok" and config != COPY}
    return sum(problem not in timed for problem in problems)


def key_of(always: Always, space: str, search: str) -> str | None:
    """What a run of a search says in its protocol that found all there is to find: equal for an equal request.

    A search that does not measure every config takes seconds to tell from what is stored whether it would go on. The
    key changes with the kernels, the modules of their spaces, and the configs that are always timed.

    Args:
        always: the problems, with these configs.
        space: its name.
        search: its name and options.

    Returns:
        The key; None where a module of a space has no file, as in a notebook.
    """
    problems = always.keys()
    specs = {operator(problem.operator) for problem in problems}
    spaces = [getattr(spec.space, "func", spec.space) for spec in specs]  # of a `partial` what it calls
    files = {getattr(sys.modules.get(of_space.__module__), "__file__", None) for of_space in spaces}
    if None in files:
        return None
    sources = sorted(hashlib.sha256(Path(str(file)).read_bytes()).hexdigest() for file in files)
    parts = [space, search, *sorted(map(fingerprint, specs)), *sources]
    parts += sorted(f"{problem} {[config.to_json() for config in configs]}" for problem, configs in always.items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def stale_plan(stored: Stored, target: Target) -> Plan:
    """A plan of the configs whose stored measurements are of changed kernels."""
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
