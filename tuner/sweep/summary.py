"""Summary of a sweep: counts, seconds, and the speed of the best configs relative to a copy.

In: outcomes, problem by problem. Out: `Summary`, also as JSON values. `report` has the text.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.tuner.device.engine import Phases
from normtune.tuner.plan.plan import Task
from normtune.tuner.sweep.spread import Spread
from normtune.tuner.timing.disturbance import warned

# From this size on the speed of memory limits a problem, not the time of a launch.
LARGE_BYTES = 16_000_000


class Best(NamedTuple):
    """The fastest config of a problem.

    Attributes:
        config: the config.
        nanoseconds: its median time.
        of_copy: time of a copy of as many bytes, divided by this time; None if the copy has no time.
    """

    config: Config
    nanoseconds: float
    of_copy: float | None


class Near(NamedTuple):
    """Geometric mean of `Best.of_copy` over problems, and their number."""

    fraction: float
    problems: int


@dataclass
class Summary:
    """Counts and times of a sweep.

    Attributes:
        store: words of a printed command that name the store, as ` --store FILE`; empty for the default store.
        measured: problems that were tried, each with the greatest `Best.of_copy` of its tasks, if any.
        timed: those of them with a timed config.
        known: number of problems that were complete before.
        known_failed: number of those of them without a timed config.
        total: number of problems that were not complete when it began.
        left: number of those that are not.
        share: of all configs that will probably be tried those that were; it never becomes less.
        left_seconds: expected time of these; None before a few problems were measured.
        configs: number of (problem, config) pairs timed in this sweep.
        attempts: the same with those that failed.
        timings: number of samples of this sweep, including those of the copy.
        skipped: number of problems that could not be measured, by reason.
        statuses: number of measurements of this sweep, by status.
        failures: number of failed configs, by status and reason.
        phases: seconds in compile, gate and timing, and the run's protocol.
        seconds: wall time, from the plan to the end.
        starting_seconds: wall time before the plan.
        copies: median times of the copy by problem; not all tasks of a problem time it.
        spread: how much GPUs of one model differ; None for one GPU.
        lost: why devices were left out, by their names.
        unguided: operators and dtypes whose knobs did not tell the search which configs are fast.
    """

    store: str = ""
    measured: dict[Problem, float | None] = field(default_factory=dict)
    timed: set[Problem] = field(default_factory=set)
    known: int = 0
    known_failed: int = 0
    total: int = 0
    left: int = 0
    share: float = 0.0
    left_seconds: float | None = None
    configs: int = 0
    attempts: int = 0
    timings: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    phases: Phases | None = None
    seconds: float = 0.0
    starting_seconds: float = 0.0
    copies: dict[Problem, float] = field(default_factory=dict)
    spread: Spread | None = None
    lost: dict[str, str] = field(default_factory=dict)
    unguided: list[str] = field(default_factory=list)

    @property
    def problems(self) -> int:
        """Number of problems with a config timed in this sweep."""
        return len(self.timed)

    @property
    def failed(self) -> int:
        """Number of problems all of whose configs failed in this sweep."""
        return len(self.measured) - len(self.timed)

    @property
    def is_fruitless(self) -> bool:
        """Whether problems were tried, in this sweep or before, but nothing could be timed at any."""
        has_tried = self.measured or self.skipped or (self.known and not self.left)
        return bool(has_tried) and not self.timed and self.known == self.known_failed

    @property
    def done(self) -> int:
        """Number of problems measured, if only in part, or skipped."""
        return len(self.measured) + sum(self.skipped.values())

    def expect(self, tasks: Sequence[Task]) -> None:
        """Note the tasks that a search still has, those of problems that are not done."""
        self.left = len({task.problem for task in tasks})
        rest = sum(len(task.candidates) for task in tasks)
        self.share = max(self.share, self.attempts / (self.attempts + rest) if rest else 1.0)

    def add(self, problem: Problem, outcomes: Mapping[Config, Outcome]) -> Best | None:
        """Count the outcomes of a task of a problem; returns its best config."""
        for config, outcome in outcomes.items():
            self.attempts += config != COPY
            self.statuses[outcome.status] += 1
            self.timings += len(outcome.nanoseconds)
            if outcome.status != "ok":
                self.failures[outcome.status, outcome.reason] += 1
            elif config != COPY:
                self.configs += 1
        if (copy := outcomes.get(COPY)) and copy.nanoseconds:
            self.copies[problem] = median(copy.nanoseconds)
        best = best_of(outcomes, self.copies.get(problem))
        if best:
            self.timed.add(problem)
        fractions = [self.measured.get(problem), best and best.of_copy]
        self.measured[problem] = max((value for value in fractions if value is not None), default=None)
        return best

    def operators(self) -> list[str]:
        """Operator keys with a problem that was compared with a copy."""
        return sorted({problem.key.text for problem, fraction in self.measured.items() if fraction is not None})

    def near(self, name: str, least_bytes: int = 0) -> Near | None:
        """Speed of the best configs relative to a copy, over problems of at least `least_bytes`; None without any."""
        logs = [
            math.log(fraction)
            for problem, fraction in self.measured.items()
            if problem.key.text == name
            and fraction is not None
            and operator(problem.operator).bytes_moved(problem) >= least_bytes
        ]
        return Near(math.exp(sum(logs) / len(logs)), len(logs)) if logs else None

    def to_plain(self) -> dict[str, Any]:
        """The summary as JSON values. The keys are an interface; docs/commands.md describes them."""
        phases = self.phases
        seconds = {"wall": self.starting_seconds + self.seconds, "starting": self.starting_seconds}
        if phases:
            seconds |= {"compile": phases.compile, "gate": phases.gate, "timing": phases.timing}
        return {
            "problems_measured": self.problems,
            "problems_failed": self.failed,
            "problems_known": self.known,
            "problems_left": self.left,
            "problems_skipped": dict(self.skipped),
            "spread": self.spread._asdict() if self.spread else None,
            "devices_lost": self.lost,
            "unguided": self.unguided,
            "left_seconds": None if self.left_seconds is None else round(self.left_seconds, 1),
            "configs_timed": self.configs,
            "timings": self.timings,
            "failures": [
                {"status": status, "reason": reason, "configs": count}
                for (status, reason), count in self.failures.most_common()
            ],
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "protocol": dict(phases.protocol) if phases else {},
            "warnings": [
                {"name": one.disturbance.key, "found": one.found, "advice": one.disturbance.advice}
                for one in warned(phases.protocol if phases else {})
            ],
            "of_copy": {key: self._plain_near(key) for key in self.operators()},
        }

    def _plain_near(self, key: str) -> dict[str, float]:
        by_size = {"all": self.near(key), "large": self.near(key, LARGE_BYTES)}
        return {name: round(near.fraction, 4) for name, near in by_size.items() if near}


def best_of(outcomes: Mapping[Config, Outcome], copy: float | None) -> Best | None:
    """The config with the least median time, compared with the copy's; None if no config was timed."""
    medians = {config: median(outcome.nanoseconds) for config, outcome in outcomes.items() if outcome.status == "ok"}
    medians.pop(COPY, None)
    if not medians:
        return None
    config = min(medians, key=lambda config: (medians[config], config))
    return Best(config, medians[config], copy / medians[config] if copy else None)


def nothing_timed(regime: str) -> Phases:
    """The phases of a sweep that has nothing to measure."""
    return Phases(0.0, 0.0, 0.0, {"regime": regime, "rounds": 0, "void_rounds": 0, "worker_restarts": 0})
