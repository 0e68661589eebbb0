"""A control sample of unchanged code beside another search, after a change of Triton or of the driver.

In: see `protocol`; the stored state of each config. Out: first the tasks of the sample, 16 rounds for each config, then
those of the other search; at the end `Control`, the ratio of present to stored times of unchanged code. Nowhere else
are times of different runs compared.
"""

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import find, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import Task, candidates
from normtune.tuner.plan.resume import Stored
from normtune.tuner.search.exhaustive import First
from normtune.tuner.search.protocol import Known, Strategy

PROBLEMS = 24
# Configs of each problem. A second one distinguishes a change of one config from one of the machine.
CONFIGS = 2
_SEED = 1
_CONFIDENCE = 0.95


class Control(NamedTuple):
    """Time of unchanged code, relative to its stored time: geometric mean over problems, with its 95 % interval."""

    problems: int
    ratio: float
    low: float
    high: float

    def line(self) -> str:
        """The result as text."""
        interval = f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"
        return f"control sample: {self.problems} problems take {interval} times as long"


class ControlSample:
    """Problems whose code did not change, with their stored and their present times.

    Attributes:
        tasks: at most `PROBLEMS` problems, drawn with a fixed seed, with their best configs.
    """

    def __init__(self, stored: Stored, target: Target) -> None:
        specs = {name: find(name) for name in {problem.operator for problem, _ in stored}}
        before: dict[Problem, dict[Config, int]] = {}
        for (problem, config), coverage in stored.items():
            if config == COPY or coverage.status != "ok" or coverage.median_ns is None:
                continue
            if not (spec := specs[problem.operator]):
                continue
            if coverage.fingerprint == fingerprint(spec):
                before.setdefault(problem, {})[config] = coverage.median_ns
        drawn = random.Random(_SEED).sample(sorted(before), min(PROBLEMS, len(before)))
        self._before = {problem: before[problem] for problem in drawn}
        self._logs: dict[Problem, float] = {}
        self.tasks = tuple(self._task(problem, target) for problem in drawn)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Receive the outcomes of a task."""
        before = self._before[task.problem]
        logs = [
            math.log(float(np.median(outcomes[config].nanoseconds)) / before[config])
            for config in task.configs
            if config in outcomes and len(outcomes[config].nanoseconds)
        ]
        if logs:
            self._logs[task.problem] = float(np.mean(logs))

    def result(self) -> Control | None:
        """The ratio; None with fewer than two problems."""
        logs = list(self._logs.values())
        if len(logs) < 2:
            return None
        from scipy.stats import t

        mean = float(np.mean(logs))
        half = float(t.ppf((1 + _CONFIDENCE) / 2, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs)))
        return Control(len(logs), *(math.exp(value) for value in (mean, mean - half, mean + half)))

    def _task(self, problem: Problem, target: Target) -> Task:
        times = self._before[problem]
        best = sorted(times, key=lambda config: (times[config], config))
        kept, _ = candidates(operator(problem.operator), best[:CONFIGS], problem, target)
        return Task(problem, tuple(kept))


def with_control(tasks: Sequence[Task], known: Known, strategy: Strategy, sample: ControlSample) -> First:
    """The tasks of a control sample, then a search over the others."""
    control = set(sample.tasks)
    others = strategy([task for task in tasks if task not in control], known)
    return First([task for task in tasks if task in control], others, sample.tell)
