"""How much GPUs of one model differ: at the end of a sweep each times the best configs of some problems.

In: the outcomes of the sweep, then those of the shared problems on each device. Out: `Spread`, which bounds what one
table can promise for all of them.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.results.statistics import halves
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.plan.task_queue import covering

# Problems that every device times, and the best configs of each.
PROBLEMS, CONFIGS = 8, 8


class Spread(NamedTuple):
    """How much GPUs of one model differ.

    Attributes:
        problems: number of problems that all of them timed.
        ratios: time of each device relative to the fastest, by its name: geometric mean over problems and configs.
        loss: mean log ratio that the best config of one GPU loses on another.
    """

    problems: int
    ratios: dict[str, float]
    loss: float

    def line(self) -> str:
        """The spread as text."""
        slowest = max(self.ratios, key=lambda name: self.ratios[name])
        return (
            f"{len(self.ratios)} GPUs of one model at {self.problems} problems: the slowest, {slowest}, takes "
            f"{100 * (self.ratios[slowest] - 1):.1f} % longer than the fastest, and the best configs of one lose "
            f"{100 * math.expm1(self.loss):.1f} % on another: no table for all of them can promise less"
        )


class SharedSample:
    """The problems that every device times, chosen from what the sweep measured."""

    def __init__(self) -> None:
        self._medians: dict[Problem, dict[Candidate, float]] = {}
        self._shared: dict[str, dict[Problem, Mapping[Config, Outcome]]] = {}
        self._pending: dict[str, list[Task]] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called."""
        return self._pending is not None

    def begin(self, names: Sequence[str], tasks: Sequence[Task]) -> None:
        """Let each of these devices measure the tasks."""
        self._pending = {name: [*tasks] for name in names}

    def next(self, name: str) -> Task | None:
        """The next task of a device; None without one."""
        tasks = (self._pending or {}).get(name)
        return tasks.pop(0) if tasks else None

    def add_measured(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Note the outcomes of a task of the sweep."""
        for candidate in task.candidates:
            if len(times := outcomes[candidate.config].nanoseconds):
                self._medians.setdefault(task.problem, {})[candidate] = float(np.median(times))

    def tasks(self) -> list[Task]:
        """The problems, spread over the shapes of each operator and dtype in turn, with their best configs."""
        orders = []
        for key in sorted({problem.key for problem in self._medians}, key=str):
            problems = [problem for problem in self._medians if problem.key == key]
            orders.append([problems[index] for index in covering([problem.shape for problem in problems])])
        turns = [problem for turn in zip(*(order * PROBLEMS for order in orders), strict=False) for problem in turn]
        chosen = [*dict.fromkeys(turns)][:PROBLEMS]
        return [Task(problem, tuple(sorted(self._best(problem)))) for problem in chosen]

    def add_shared(self, name: str, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Receive the outcomes of one of these tasks on a device."""
        self._shared.setdefault(name, {})[task.problem] = outcomes

    def spread(self) -> Spread | None:
        """How much the devices differ; None with fewer than two, or without a config that all of them timed.

        The best config of a device is chosen on one half of the blocks and compared on the other, as in a fit.
        """
        logs = [self._logs(problem) for problem in self._problems()]
        logs = [times for times in logs if times.shape[2]]
        if not logs:
            return None
        means = np.mean([times.mean(axis=(1, 2)) for times in logs], axis=0)
        ratios = dict(sorted(zip(self._shared, np.exp(means - means.min()).tolist(), strict=True)))
        pairs = [*permutations(range(len(ratios)), 2)]
        losses = [_loss(times[one], times[other]) for times in logs for one, other in pairs]
        return Spread(len(logs), ratios, max(0.0, fmean(losses)))

    def _problems(self) -> list[Problem]:
        """The problems that all of two or more devices timed."""
        return sorted(set.intersection(*map(set, self._shared.values()))) if len(self._shared) > 1 else []

    def _logs(self, problem: Problem) -> NDArray[np.float64]:
        """Log median times, (devices, halves of the blocks, configs that all of them timed)."""
        outcomes = [self._shared[name][problem] for name in self._shared]
        configs = set.intersection(*({c for c, one in each.items() if len(one.nanoseconds)} for each in outcomes))
        return np.array(
            [
                [[_log_median(each[config], half) for config in sorted(configs - {COPY})] for half in (True, False)]
                for each in outcomes
            ]
        )

    def _best(self, problem: Problem) -> Sequence[Candidate]:
        medians = self._medians[problem]
        return sorted(medians, key=lambda candidate: (medians[candidate], candidate))[:CONFIGS]


def _log_median(outcome: Outcome, half: bool) -> float:
    times = np.asarray(outcome.nanoseconds)
    return math.log(np.median(times[halves(np.asarray(outcome.rounds, np.int32)) == half]))


def _loss(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Mean log ratio that the best config of one device loses on another; both (halves, configs)."""
    chosen = int(one.mean(axis=0).argmin())
    return fmean(
        scored[chosen] - scored[half.argmin()] for half, scored in ((other[0], other[1]), (other[1], other[0]))
    )
