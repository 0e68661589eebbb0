"""The binaries that a plan needs, as `Job`s, one per compile class; `compiling.pool` compiles them."""

from collections.abc import Iterable
from typing import NamedTuple

from normtune.kernels.call import AnyLaunch
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem


class Job(NamedTuple):
    """One binary to compile.

    Attributes:
        problem, launch: representatives of the compile class.
        serves: all (problem, launch) pairs of the class whose code is needed.
    """

    problem: Problem
    launch: AnyLaunch
    serves: tuple[tuple[Problem, AnyLaunch], ...] = ()


def compile_class(problem: Problem, launch: AnyLaunch) -> tuple[Key, AnyLaunch]:
    """Compile class of a launch: its key and the launch without grid and rows."""
    return problem.key, launch.binary


def jobs_of(pairs: Iterable[tuple[Problem, AnyLaunch]]) -> list[Job]:
    """One job per compile class, in the order of first appearance."""
    classes: dict[tuple[Key, AnyLaunch], dict[tuple[Problem, AnyLaunch], None]] = {}
    for problem, launch in pairs:
        classes.setdefault(compile_class(problem, launch), {})[problem, launch] = None
    return [Job(*next(iter(served)), tuple(served)) for served in classes.values()]
