"""Stored measurements of the problems of a plan, under the present kernels and stale ones.

In: the coverage of a store. Out: the part of it under the present kernels, and a plan of the stale part. Pure. The
search decides when a problem is done.
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
