"""Binaries of a plan, compiled without a GPU into a folder for another machine.

In: a plan and its target. Out: the folder, filled, and counts. A launch of the gate may differ from that of the sweep
in the kernel that sums partial sums, so both are compiled. `binary_cache` has the folder.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from normtune.kernels.operator import AnyLaunch, ImplementationLaunch, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.tuner.compiling.binary_cache import Folder, name_of
from normtune.tuner.compiling.binary_list import add
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import CompilePool
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import Plan
from normtune.tuner.timing.trial import gate_launch


class Ahead(NamedTuple):
    """Binaries in a folder.

    Attributes:
        folder: of the binaries.
        target: that they are for.
        binaries: number of binaries of the plan in the folder.
        compiled: number of those that were not there before.
        triton, python: versions that a sweep needs to find them; empty without any binary.
        failures: number of binaries that cannot be compiled, by status and reason.
    """

    folder: Path
    target: str
    binaries: int
    compiled: int
    triton: str
    python: str
    failures: Counter[tuple[str, str]]

    def to_plain(self) -> dict[str, Any]:
        """The counts as JSON values."""
        failures = [
            {"status": status, "reason": reason, "binaries": count}
            for (status, reason), count in self.failures.most_common()
        ]
        return self._asdict() | {"folder": str(self.folder), "failures": failures}


def compile_ahead(plan: Plan, target: Target, folder: Path, told: Callable[[int, int], None]) -> Ahead:
    """Compile all binaries of a plan into a folder; those that are there already are kept.

    Args:
        plan: of the target.
        target: to compile for.
        folder: exists.
        told: called from another thread with the number of finished binaries and that of all, after each.

    Raises:
        NormtuneError: no compiler can start, or the list of binaries cannot be written.
    """
    jobs = jobs_of(_launches(plan, target))
    into = Folder(str(folder.resolve()), fills=True)
    pool = CompilePool(jobs, target.name, told=lambda done: told(done, len(jobs)), folder=into)
    done: list[Compiled] = []
    try:
        for result in pool:
            done.append(result)
    finally:
        pool.close()
        good = [(result, result.toolchain) for result in done if result.toolchain]
        if good:  # after an interrupt, too: what is not listed is compiled again
            listed = {name_of(result.job.problem, result.job.launch): result.kernels for result, _ in good}
            add(folder, target.name, good[0][1], listed)
    triton, python = good[0][1][:2] if good else ("", "")
    failures = Counter((result.status, result.reason) for result in done if result.status != "ok")
    compiled = sum(bool(result.made) for result, _ in good)
    return Ahead(folder, target.name, len(good), compiled, triton, python, failures)


def _launches(plan: Plan, target: Target) -> Iterator[tuple[Problem, AnyLaunch]]:
    """What a sweep launches, and what its gate does."""
    for task in plan.tasks:
        spec = operator(task.problem.operator)
        for candidate in task.candidates:
            if not isinstance(candidate.launch, ImplementationLaunch):
                yield task.problem, candidate.launch
                yield gate_launch(spec, task.problem, candidate, target)
