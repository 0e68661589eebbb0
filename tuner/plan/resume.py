"""What a store knows of the problems of a plan, and what of it is stale.

In: the coverage of a store. Out: what of it counts under the present kernels, and a plan of the rest. Pure; when a
problem is done is said by the search.
"""

from collections.abc import Collection, Mapping

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.store import Coverage
from normtune.tuner.plan.plan import Plan, Task, candidates

Stored = Mapping[tuple[Problem, Config], Coverage]

# Failures that somebody else may have caused: who kills processes, or lets the machine sleep.
_MAY_PASS = ("crashed", "timeout")


def known(stored: Stored, names: Collection[str], retry_failed: bool = False) -> dict[Problem, dict[Config, Coverage]]:
    """What is stored under the present kernels of the operators of these names.

    With `retry_failed` without what failed because its process died or took too long, which others may have caused.
    """
    current = {name: fingerprint(operator(name)) for name in names}
    found: dict[Problem, dict[Config, Coverage]] = {}
    for (problem, config), one in stored.items():
        if one.fingerprint == current.get(problem.operator) and not (retry_failed and one.status in _MAY_PASS):
            found.setdefault(problem, {})[config] = one
    return found


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
