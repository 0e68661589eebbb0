"""Searches by a sampler of Optuna, with a study for each problem: the strategy `optuna:TPESampler`.

In: see `protocol`. Out: tasks of a few new configs beside the best so far. A trial's value is the log time of its
config, or the greatest one of its problem if that failed or is illegal. No config but the best is timed twice.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import optuna

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.config_space import Drawn, Listed
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import ConfigsOf, Task
from normtune.tuner.plan.pool import Candidate, Pool
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.paired import chained
from normtune.tuner.search.protocol import Previous, Race, Search, medians_of
from normtune.tuner.search.race import LOOKS, race

# New configs of a task, beside the best one; most trials for them, before others; problems in progress. A problem
# is done after this share of its candidates, and at least so many.
PROPOSALS, _TRIALS, _OPEN, SHARE, LEAST = 4, 32, 4, 0.1, 24


class SamplerSearch(Search):
    """A `protocol.Search`. A subclass has the sampler; `most` bounds the configs of a problem.

    `devices` share it, each with problems of its own in progress.
    """

    leaves_out = True
    sampler: Callable[..., optuna.samplers.BaseSampler]

    def __init__(
        self,
        tasks: Sequence[Task],
        previous: Previous,
        seed: int = 0,
        most: int | None = None,
        advice: ConfigsOf | None = None,
        devices: int = 1,
    ) -> None:
        self._most_open = _OPEN * devices
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", ".*is experimental|Clip non-finite values")
        self._studies: dict[Problem, _ProblemStudy] = {}
        for task in TaskQueue(tasks).pending():
            stored, advised = previous.get(task.problem, {}), (advice or {}).get(task.problem, ())
            subset, times = task.subset([*advised, *stored], seed, most or 0), medians_of(stored)
            logs = {c: math.log(times[c]) if c in times else math.inf for c in subset.configs if c in stored}
            first = [c for c in subset.configs if c not in logs and (c in advised or isinstance(c, Implementation))]
            usual = min(most or max(LEAST, math.ceil(SHARE * subset.size)), subset.size) - len(logs)
            pool, kernels = task.candidates, Listed(c for c in subset.configs if not isinstance(c, Implementation))
            space = pool.space if isinstance(pool, Pool) and isinstance(pool.space, Drawn) else kernels
            study = cache(partial(optuna.create_study, sampler=self.sampler(seed=seed)))
            self._studies[task.problem] = _ProblemStudy(task, subset, space, study, logs, max(usual, len(first)), first)

    def pending(self) -> Sequence[Task]:
        """The problems that are not done, each with about as many configs as will be timed."""
        return [Task(one.task.problem, tuple(one.untimed()[: max(2, one.room)])) for one in self._undone()]

    def ask(self) -> Iterator[Task]:
        """The next task of a few problems; the same ones until one of them is measured."""
        try:
            yield from map(_ProblemStudy.next, self._undone()[: self._most_open])
        except ImportError as error:
            raise UsageError(f"strategy {self.name} needs a package that is not installed: {error}") from None

    def race(self, task: Task) -> Race:
        """A race of up to 16 rounds."""
        return race(task.configs, LOOKS[:4])

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes to the problem's study."""
        self._studies[task.problem].tell(outcomes)

    def _undone(self) -> list["_ProblemStudy"]:
        return sorted((one for one in self._studies.values() if one.room), key=lambda one: len(one.logs))


@dataclass
class _ProblemStudy:
    """Log times of the configs of a problem, infinite for failures, and the trials of those to be measured next."""

    task: Task
    subset: Task
    space: Drawn | Listed
    study: Callable[[], optuna.Study]
    logs: dict[Config, float]
    room: int
    new: list[Config]
    trials: list[tuple[optuna.Trial, list[Candidate]]] = field(default_factory=list)

    def untimed(self) -> list[Candidate]:
        """The candidates that were not measured."""
        return [candidate for candidate in self.subset.candidates if candidate.config not in self.logs]

    def next(self) -> Task:
        """New configs and the best so far; the same until `tell`."""
        if not self.new:
            count = min(PROPOSALS, self.room)
            while len(self.new) < count and len(self.trials) < _TRIALS:
                trial = self.study().ask()
                candidates = self.task.among(filter(None, [self.space.of_trial(trial)]))
                self.trials.append((trial, candidates))
                self.new += [one.config for one in candidates if one.config not in {*self.logs, *self.new}]
            self.new = [*dict.fromkeys([*self.new, *(one.config for one in self.untimed())])][:count]
        best = sorted(self._timed(), key=lambda config: (self.logs[config], config))[:1]
        return Task(self.task.problem, tuple(self.task.among([*self.new, *best])))

    def tell(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes and end the trials; empty ones end the problem."""
        times = chained(self._timed(), {config: one for config, one in outcomes.items() if config != COPY})
        self.logs |= dict.fromkeys(self.new, math.inf) | times
        most = max(self._timed().values(), default=math.inf)
        for trial, candidates in self.trials:
            self.study().tell(trial, min([most, *(self.logs[one.config] for one in candidates)]))
        self.room, self.new, self.trials = self.room - len(self.new) if outcomes else 0, [], []

    def _timed(self) -> dict[Config, float]:
        return {config: log for config, log in self.logs.items() if log < math.inf}
