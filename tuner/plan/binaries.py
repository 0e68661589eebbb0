"""Which binaries a plan needs.

In: problems and launches. Out: `Job`s, one a compile class. Compiling them is left to `device.compiling`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from normtune.kernels.operator import AnyLaunch
from normtune.kernels.problem import Problem


class Job(NamedTuple):
    """One binary to compile.

    Attributes:
        problem, launch: that represent it.
        serves: all pairs of problem and launch whose code is asked for.
    """

    problem: Problem
    launch: AnyLaunch
    serves: tuple[tuple[Problem, AnyLaunch], ...] = ()


def compile_class(problem: Problem, launch: AnyLaunch) -> tuple[str, str, str, AnyLaunch]:
    """What one binary serves: operator, variant, dtype and the launch without grid and row count."""
    return (problem.operator, problem.variant, problem.dtype, launch.binary)


def jobs_of(pairs: Iterable[tuple[Problem, AnyLaunch]]) -> list[Job]:
    """One job a compile class, in the order of first appearance."""
    found: dict[tuple[str, str, str, AnyLaunch], dict[tuple[Problem, AnyLaunch], None]] = {}
    for problem, launch in pairs:
        found.setdefault(compile_class(problem, launch), {})[problem, launch] = None
    return [Job(*next(iter(served)), tuple(served)) for served in found.values()]
