"""Compiles the binaries of a plan without a GPU, into a folder for a sweep on another machine.

In: a plan and its target. Out: the filled folder, and counts. The launch of the gate may use another kernel for the sum
of partial sums than the sweep's, so both are compiled. `kernel_cache` reads the folder.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.kernels.call import AnyLaunch, ImplementationLaunch
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS, Target
from normtune.tuner.compiling.compiler import stderr_discarded
from normtune.tuner.compiling.kernel_cache import Folder, python_version, triton_version
from normtune.tuner.compiling.pool import CompilePool
from normtune.tuner.plan.binaries import Job, jobs_of
from normtune.tuner.plan.plan import Plan
from normtune.tuner.timing.trial import gate_launch


class Ahead(NamedTuple):
    """Binaries in a folder.

    Attributes:
        folder: of the binaries.
        target: architecture that they were compiled for.
        binaries: number of binaries of the plan in the folder.
        compiled: number of new ones among them.
        triton, python: versions that a sweep must have to use them; empty if there are no binaries.
        failures: number of binaries that cannot be compiled or launched, by status and reason.
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


def compile_ahead(
    plan: Plan,
    target: Target,
    folder: Path,
    on_progress: Callable[[int, int], None],
    begin: Callable[[int], None] = lambda binaries: None,
) -> Ahead:
    """Compile all binaries of a plan into a folder, except those that are there already.

    Args:
        plan: for `target`.
        target: architecture to compile for.
        folder: an existing folder.
        on_progress: called from another thread, after each binary, with the number of finished and of all binaries.
        begin: called once, with the number of binaries.

    Raises:
        UsageError: this Triton cannot compile for the target.
        NormtuneError: no compiler can start.
    """
    jobs = jobs_of(_launches(plan, target))
    if target.name not in TARGETS:
        _try(jobs[:1], target.name)
    begin(len(jobs))
    output = Folder(str(folder.resolve()), fills=True)
    pool = CompilePool(jobs, target.name, on_progress=lambda count: on_progress(count, len(jobs)), folder=output)
    with closing(pool):
        results = list(pool)
    output.trim()
    good = [result for result in results if result.kernels]
    triton, python = (triton_version(), python_version()) if good else ("", "")
    failures = Counter(outcome for result in results if (outcome := result.on(target))[0] != "ok")
    compiled = sum(bool(result.new_kernels) for result in good)
    return Ahead(folder, target.name, len(good), compiled, triton, python, failures)


def _try(jobs: Sequence[Job], target: str) -> None:
    """Compile for an architecture that normtune does not list, without the compiler's output on stderr.

    Raises:
        UsageError: this Triton cannot.
    """
    with stderr_discarded(), closing(CompilePool(jobs, target)) as pool:
        results = list(pool)
    for result in results:
        if result.status != "ok":
            targets = ", ".join(TARGETS)
            raise UsageError(
                f"--target is {target!r}, for which this Triton cannot compile ({result.reason}): expected one of "
                f"{targets}, or another target of this Triton"
            )


def _launches(plan: Plan, target: Target) -> Iterator[tuple[Problem, AnyLaunch]]:
    """The launches of a sweep and of its gate."""
    for task in plan.tasks:
        spec = operator(task.problem.operator)
        for candidate in task.candidates:
            if not isinstance(candidate.launch, ImplementationLaunch):
                yield task.problem, candidate.launch
                yield gate_launch(spec, task.problem, candidate, target)
