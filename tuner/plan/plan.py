"""The plan of a sweep, made before anything is compiled.

In: operator keys, dtypes, shapes, a space and a target. Out: a `Plan`: for each problem the configs with different
launches, and the number of configs left out, by reason. Needs neither a GPU nor torch.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import NamedTuple, TypeAlias

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, members, operator, operators
from normtune.kernels.problem import AXES, Problem, Shape
from normtune.kernels.target import Target
from normtune.tuner.plan.binaries import Job, jobs_of
from normtune.tuner.timing.protocol import timed_launches

SPACES = ("default", "full", "quick")
# Most configs per problem in the space `quick`.
QUICK_CONFIGS = 12
# Reason for the configs that the space `quick` leaves out, a key of `Plan.pruned`.
QUICK_REASON = "only in the default space"
# Usable share of the free memory: other processes may take some during the sweep.
_SHARE_OF_FREE = 0.95
# Memory of the float64 reference (inputs, results, tolerances, intermediates), bytes per element of the largest tensor:
# torch's peak on an H200.
_REFERENCE_BYTES = 80
# Context, loaded kernels, evicting read and sentinel of the timing, the allocator's overhead.
_FIXED_BYTES = 1 << 30

# Configs of problems that are timed whatever the space and the search.
Always: TypeAlias = Mapping[Problem, Sequence[Config]]


class Candidate(NamedTuple):
    """A config, and its launch on the problem."""

    config: Config
    launch: AnyLaunch


class Task(NamedTuple):
    """One problem and its candidates."""

    problem: Problem
    candidates: tuple[Candidate, ...]

    @property
    def configs(self) -> list[Config]:
        """Configs of the candidates."""
        return [candidate.config for candidate in self.candidates]


class Plan(NamedTuple):
    """All tasks of a sweep.

    Attributes:
        tasks: in the order of the request.
        pruned: number of (problem, config) pairs left out, by reason.
        oversized: problems left out because they exceed the device's free memory.
        reduced: number of problems of the default grid left out by a smaller effort.
        beyond: number of problems of the user's shapes left out because they are larger than any of a grid.
    """

    tasks: tuple[Task, ...]
    pruned: dict[str, int]
    oversized: tuple[Problem, ...] = ()
    reduced: int = 0
    beyond: int = 0

    def jobs(self) -> list[Job]:
        """The binaries that the tasks need."""
        return jobs_of((task.problem, candidate.launch) for task in self.tasks for candidate in task.candidates)

    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return sum(len(task.candidates) for task in self.tasks)


def candidates(
    spec: OperatorSpec, configs: Iterable[Config], problem: Problem, target: Target
) -> tuple[list[Candidate], dict[str, int]]:
    """The legal configs for a problem, the least of each distinct launch, and the number of others, by reason."""
    kept: dict[AnyLaunch, Candidate] = {}
    pruned: Counter[str] = Counter()
    for config in sorted(configs):
        try:
            launch = spec.launch(config, problem, target)
        except IllegalConfigError as error:
            pruned[_kind(str(error))] += 1
            continue
        if launch in kept:
            pruned["same launch as another config"] += 1
        else:
            kept[launch] = Candidate(config, launch)
    return list(kept.values()), dict(pruned)


def quick_candidates(spec: OperatorSpec, problem: Problem, target: Target) -> tuple[list[Candidate], dict[str, int]]:
    """Candidates of the quick space, at most `QUICK_CONFIGS`, evenly spread, and the number of others, by reason."""
    kept, pruned = candidates(spec, spec.configs("quick", problem, target), problem, target)
    return spread(kept, QUICK_CONFIGS), pruned


def spread(kept: list[Candidate], most: int) -> list[Candidate]:
    """At most `most` (2 or more) of the candidates, evenly spread, the first and the last among them."""
    if len(kept) <= most:
        return kept
    last = len(kept) - 1
    return [kept[round(index * last / (most - 1))] for index in range(most)]


def problems(
    keys: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Shape] | Callable[[OperatorSpec], Sequence[Shape]],
) -> list[Problem]:
    """All problems of these operator keys, dtypes and shapes.

    Args:
        keys: `rms_norm_forward`, `rms_norm_forward:no_rstd`, ...; empty means the plain default operators.
        dtypes: names of dtypes.
        shapes: of the problems, or those of each operator.

    Raises:
        UsageError: a key, dtype or shape is unknown or out of range.
    """
    result = []
    try:
        for text in keys or [name for name, spec in operators().items() if spec.is_default]:
            key = Key.parse(text, "")
            # Shapes with a third size belong to a family, others to each member.
            is_whole = not callable(shapes) and any(len(shape) > len(AXES) for shape in shapes)
            for spec in map(operator, [key.operator] if is_whole else members(key.operator)):
                pairs = shapes(spec) if callable(shapes) else shapes
                result += [spec.problem_at(shape, dtype, key.variant) for dtype in dtypes for shape in pairs]
    except ValueError as error:
        raise UsageError(str(error)) from None
    return result


def plan(wanted: Sequence[Problem], space: str, target: Target, always: Always | None = None) -> Plan:
    """The plan of a space on these problems.

    Args:
        wanted: the problems.
        space: the name of the space.
        target: of the device.
        always: configs of problems that are candidates whatever the space, if they are legal there.

    Raises:
        UsageError: the space is unknown.
    """
    if space not in SPACES:
        raise UsageError(f"unknown space {space!r}: expected one of {', '.join(SPACES)}")
    tasks = []
    pruned: Counter[str] = Counter()
    for problem in wanted:
        spec = operator(problem.operator)
        more, _ = candidates(spec, (always or {}).get(problem, ()), problem, target)
        kept, reasons = candidates(
            spec, spec.configs("default" if space == "quick" else space, problem, target), problem, target
        )
        if space == "quick":
            default = kept
            kept, reasons = quick_candidates(spec, problem, target)
            launches = {candidate.launch for candidate in (*kept, *more)}
            if missed := sum(candidate.launch not in launches for candidate in default):
                reasons[QUICK_REASON] = missed
        pruned.update(reasons)
        launches = {candidate.launch for candidate in kept}
        kept = sorted([*kept, *(candidate for candidate in more if candidate.launch not in launches)])
        tasks.append(Task(problem, tuple(kept)))
    return Plan(tuple(tasks), dict(pruned))


def warm_start(plan: Plan, always: Always, target: Target) -> Always:
    """The configs of the plan with the same launches as those that are always timed, by problem."""
    configs = {}
    for problem, candidates in plan.tasks:
        launch_of = partial(operator(problem.operator).launch_of, problem=problem, target=target)
        by_launch = {candidate.launch: candidate.config for candidate in candidates}
        launches = map(launch_of, always.get(problem, ()))
        configs[problem] = [by_launch[launch] for launch in dict.fromkeys(launches) if launch in by_launch]
    return configs


def fitting(plan: Plan, free_bytes: int | None) -> Plan:
    """The plan without problems that exceed the free device memory, bytes; None for no limit.

    Raises:
        NormtuneError: no problem fits.
    """
    if free_bytes is None or not plan.tasks:
        return plan
    needed = {task.problem: peak_bytes(task.problem) for task in plan.tasks}
    kept = tuple(task for task in plan.tasks if needed[task.problem] <= _SHARE_OF_FREE * free_bytes)
    if not kept:
        raise NormtuneError(
            f"{free_bytes / 2**30:.1f} GiB of device memory are free, the smallest problem takes "
            f"{min(needed.values()) / 2**30:.1f} GiB to measure: free some, or sweep smaller --rows and --hidden"
        )
    left = {task.problem for task in plan.tasks} - {task.problem for task in kept}
    return plan._replace(tasks=kept, oversized=tuple(task.problem for task in plan.tasks if task.problem in left))


def _kind(reason: str) -> str:
    """A reason without its numbers, for counting."""
    return "illegal: " + " ".join(word for word in reason.split() if not word.isdigit())


def peak_bytes(problem: Problem) -> int:
    """Most device memory of gate, timing and check of a problem, bytes."""
    spec = operator(problem.operator)
    footprint = spec.bytes_moved(problem)
    # Each lead-in and timed launch has its own slices, and the copy has as many.
    timing = 2 * (1 + timed_launches(footprint)) * footprint
    largest = max(prod(buffer.shape) for buffer in spec.buffers(problem))  # for qk_norm, all heads of a token
    return _FIXED_BYTES + timing + _REFERENCE_BYTES * largest
