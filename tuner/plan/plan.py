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
from normtune.kernels.config import Config
from normtune.kernels.config_space import Listed, Space, space_of, spread
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, members, operator, operators
from normtune.kernels.problem import AXES, Problem, Shape
from normtune.kernels.target import Target
from normtune.tuner.plan.binaries import Job, jobs_of
from normtune.tuner.plan.pool import SUBSET_SIZE, Candidate, Pool
from normtune.tuner.plan.portfolio import CONFIGS, portfolio
from normtune.tuner.timing.protocol import timed_launches

PORTFOLIO = "portfolio"
USUAL = "bfloat16"
SPACES = ("default", "full", PORTFOLIO)
# The space of a replay: the configs that were recorded at each problem.
RECORDED = "recorded"
# With more configs a problem, and more pairs of both in a plan, a config gets its launch only when a search that leaves
# configs out asks for it: a launch takes up to 0.5 ms and 5 KB.
LARGE, MOST_PAIRS = 2048, 100_000
# Reason for the configs that the portfolio leaves out, a key of `Plan.pruned`.
LEFT_OUT = "only in the default space"
# Usable share of the free memory: other processes may take some during the sweep.
_SHARE_OF_FREE = 0.95
# Context, loaded kernels, evicting read and sentinel of the timing, the allocator's overhead.
_FIXED_BYTES = 1 << 30

# Configs of problems.
ConfigsOf: TypeAlias = Mapping[Problem, Sequence[Config]]


class Task(NamedTuple):
    """One problem and its candidates, those of a large space in a `Pool`, which makes them when they are asked for."""

    problem: Problem
    candidates: tuple[Candidate, ...] | Pool

    @property
    def configs(self) -> list[Config]:
        """Configs of the candidates."""
        return [candidate.config for candidate in self.candidates]

    @property
    def size(self) -> int:
        """Number of candidates; of a large space that of its configs, legal or not."""
        return self.candidates.size if isinstance(self.candidates, Pool) else len(self.candidates)

    def among(self, configs: Iterable[Config]) -> list[Candidate]:
        """The candidates that have these configs; of a large space those with their launches."""
        if isinstance(self.candidates, Pool):
            return self.candidates.among(configs)
        chosen = set(configs)
        return [candidate for candidate in self.candidates if candidate.config in chosen]

    def subset(self, configs: Iterable[Config] = (), seed: int = 0, least: int = 0) -> "Task":
        """Itself; of a large space a task of `SUBSET_SIZE`, or `least`, random ones and of these, see `Pool.subset`."""
        pool = self.candidates
        if not isinstance(pool, Pool):
            return self
        return Task(self.problem, tuple(pool.subset(configs, seed, max(SUBSET_SIZE, least))))


class Plan(NamedTuple):
    """All tasks of a sweep.

    Attributes:
        tasks: in the order of the request.
        pruned: number of (problem, config) pairs left out, by reason.
        oversized: problems left out because they exceed the device's free memory.
        too_large: number of problems of the user's shapes left out because they are larger than any of a grid.
        pools: of problems whose configs are too many to ask each for its launch: `pruned` does not count theirs.
    """

    tasks: tuple[Task, ...]
    pruned: dict[str, int]
    oversized: tuple[Problem, ...] = ()
    too_large: int = 0
    pools: tuple[Pool, ...] = ()

    def jobs(self) -> list[Job]:
        """The binaries that the tasks need."""
        return jobs_of((task.problem, candidate.launch) for task in self.tasks for candidate in task.candidates)

    @property
    def is_empty(self) -> bool:
        """Whether no config is legal at any problem."""
        return not any(task.candidates for task in self.tasks)

    @property
    def illegal(self) -> int:
        """Number of problems at which no config is legal, if one is at others."""
        return 0 if self.is_empty else sum(not task.candidates for task in self.tasks)

    def complete(self, remaining: Iterable[Task]) -> set[Problem]:
        """The problems without a remaining task, but for those at which no config is legal, if one is at others."""
        illegal = self.illegal
        measurable = {task.problem for task in self.tasks if not illegal or task.candidates}
        return measurable - {task.problem for task in remaining}

    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return sum(len(task.candidates) for task in self.tasks)


def candidates(
    spec: OperatorSpec, configs: Iterable[Config], problem: Problem, target: Target
) -> tuple[list[Candidate], dict[str, int]]:
    """The legal configs for a problem, the least of each distinct launch, and the number of others, by reason."""
    pool = Pool(spec, problem, target, Listed(()))
    return pool.admit(configs), dict(pool.pruned)


def problems(
    keys: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Shape] | Callable[[OperatorSpec], Sequence[Shape]],
) -> list[Problem]:
    """All problems of these operator keys, dtypes and shapes.

    Args:
        keys: `rms_norm_forward`, `rms_norm_forward:no_rstd`, ...; empty means the plain default operators.
        dtypes: names of dtypes; empty means `USUAL`, or the first one of an operator without it.
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
                of_spec = dtypes or [USUAL if USUAL in spec.dtypes else spec.dtypes[0]]
                result += [spec.problem_at(shape, dtype, key.variant) for dtype in of_spec for shape in pairs]
    except ValueError as error:
        raise UsageError(str(error)) from None
    return result


def plan(
    requested: Sequence[Problem],
    space: str | ConfigsOf,
    target: Target,
    always: ConfigsOf | None = None,
    is_sampled: bool = False,
) -> Plan:
    """The plan of a space on these problems.

    Args:
        requested: the problems.
        space: the name of the space, or its configs by problem; at others the default space.
        target: of the device.
        always: configs of problems that are candidates whatever the space, if they are legal there.
        is_sampled: whether the search leaves configs out, so that those of a large space need no launch before.

    Raises:
        UsageError: the space is unknown.
    """
    if isinstance(space, str) and space not in SPACES:
        raise UsageError(f"unknown space {space!r}: expected one of {', '.join(SPACES)}")
    tasks, pools = [], []
    pruned: Counter[str] = Counter()
    shared: dict[str, Space] = {}
    for problem in requested:
        pool, more = _pool(space, problem, target, shared), (always or {}).get(problem, ())
        spec = operator(problem.operator)
        near = portfolio(spec, problem, target) if space == PORTFOLIO else []
        rest = CONFIGS - len(near)
        if (is_sampled or space == PORTFOLIO) and _is_large(pool, len(requested)):
            pools.append(pool)
            pool.admit([*near, *more])
            tasks.append(Task(problem, tuple(pool.subset((), 0, rest)) if space == PORTFOLIO else pool))
            continue
        chosen, reasons = [*pool], pool.pruned
        pruned.update(reasons)
        added, _ = candidates(spec, [*near, *more], problem, target)
        launches = {candidate.launch for candidate in (added if space == PORTFOLIO else chosen)}
        if space == PORTFOLIO:
            others = [candidate for candidate in chosen if candidate.launch not in launches]
            chosen = spread(others, rest) if rest > 1 else []
            pruned[LEFT_OUT] += len(others) - len(chosen)
            launches.clear()
        chosen = sorted([*chosen, *(candidate for candidate in added if candidate.launch not in launches)])
        tasks.append(Task(problem, tuple(chosen)))
    return Plan(tuple(tasks), dict(+pruned), pools=tuple(pools))


def some_candidates(space: str, problem: Problem, target: Target) -> tuple[list[Candidate], Pool]:
    """The candidates of a space, of a large one some that are the same every time, and their pool."""
    pool = _pool(space, problem, target, {})
    return [*pool] if pool.is_listed and pool.size <= LARGE else pool.subset((), 0, SUBSET_SIZE), pool


def _pool(space: str | ConfigsOf, problem: Problem, target: Target, shared: dict[str, Space]) -> Pool:
    """The candidates of a space; problems with the same configs share them through `shared`."""
    spec = operator(problem.operator)
    if not isinstance(space, str):
        if problem in space:
            return Pool(spec, problem, target, Listed(space[problem]))
        space = "default"
    space = "default" if space == PORTFOLIO else space  # of which a portfolio takes what its tables leave room for
    configs, name = space_of(spec.space_at(space, problem, target)), f"{space} {spec.name}"
    before = shared.get(name)
    shared[name] = configs if before is None or before != configs else before
    return Pool(spec, problem, target, shared[name])


def _is_large(pool: Pool, problems: int) -> bool:
    return not pool.is_listed or (pool.size > LARGE and pool.size * problems > MOST_PAIRS)


def warm_start(plan: Plan, always: ConfigsOf, target: Target) -> ConfigsOf:
    """The configs of the plan with the same launches as those that are always timed, by problem."""
    configs = {}
    for problem, candidates in plan.tasks:
        if isinstance(candidates, Pool):
            configs[problem] = [
                candidate.config for config in always.get(problem, ()) if (candidate := candidates.of(config))
            ]
            continue
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
    tasks = tuple(task for task in plan.tasks if needed[task.problem] <= _SHARE_OF_FREE * free_bytes)
    if not tasks:
        raise NormtuneError(
            f"{free_bytes / 2**30:.1f} GiB of device memory are free, the smallest problem takes "
            f"{min(needed.values()) / 2**30:.1f} GiB to measure: free some, or sweep smaller --shapes"
        )
    fit = {task.problem for task in tasks}
    oversized = tuple(task.problem for task in plan.tasks if task.problem not in fit)
    return plan._replace(tasks=tasks, oversized=oversized, pools=tuple(p for p in plan.pools if p.problem in fit))


def peak_bytes(problem: Problem) -> int:
    """Most device memory of gate, timing and check of a problem, bytes."""
    spec = operator(problem.operator)
    footprint = spec.bytes_moved(problem)
    # Each lead-in and timed launch has its own slices, and the copy has as many.
    timing = 2 * (1 + timed_launches(footprint)) * footprint
    largest = max(prod(buffer.shape) for buffer in spec.buffers(problem))  # for qk_norm, all heads of a token
    return _FIXED_BYTES + timing + spec.reference_bytes * largest
