"""Searches by a sampler of Optuna, with a study for each problem: `--strategy optuna:TPESampler`.

In: see `protocol`; a sampler. Out: tasks of a few new configs beside the best so far, raced in up to 16 rounds. The
value of a trial is the log time of its config, or the greatest one of its problem where it failed or is illegal. A
config that has a time, even a stored one, is not measured again when it is proposed: its trial gets this time.
"""

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import optuna

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.config_space import Drawn
from normtune.kernels.problem import Problem
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.plan import ByProblem, Task
from normtune.tuner.plan.pool import Candidate, Pool
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.paired import chained
from normtune.tuner.search.plane.group import distance
from normtune.tuner.search.protocol import Known, Race, Search, medians_of
from normtune.tuner.search.race import LOOKS, race
from normtune.tuner.search.studies import sampler_of, storage

# New configs of a task. With fewer, most of the time would go to the best config, which is in every task.
PROPOSALS = 4
# Proposals before a random config is taken; problems in progress; nearest shapes whose best configs come first.
_TRIES, _OPEN, _NEIGHBOURS = 16, 4, 3
# A problem is done after this share of its candidates, and at least so many configs.
SHARE, LEAST = 0.1, 24


class SamplerSearch(Search):
    """A `protocol.Search`. A subclass has the sampler; `studies` is a file, `most` bounds the configs of a problem."""

    leaves_out = True
    sampler: Callable[..., optuna.samplers.BaseSampler]

    def __init__(
        self,
        tasks: Sequence[Task],
        known: Known,
        seed: int = 0,
        studies: Path | None = None,
        most: int | None = None,
        advice: ByProblem | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._problems: dict[Problem, _ProblemSearch] = {}
        create = partial(optuna.create_study, storage=None if studies is None else storage(studies))
        suffix = uuid.uuid4().hex[:8]
        for task in TaskQueue(tasks).pending():
            advised, own = (advice or {}).get(task.problem, ()), known.get(task.problem, {})
            named = partial(create, study_name=f"{self.name} {task.problem} {suffix}", sampler=self.sampler(seed=seed))
            self._problems[task.problem] = _ProblemSearch(task, own, advised, seed, most, named)

    def pending(self) -> Sequence[Task]:
        """The problems that are not done, each with about as many configs as will be timed."""
        undone = {problem: one for problem, one in self._problems.items() if one.room}
        return [Task(problem, tuple(islice(one.untimed(), max(2, one.room)))) for problem, one in undone.items()]

    def ask(self) -> Iterator[Task]:
        """The next task of a few problems; the same ones until one of them is measured."""
        undone = [(problem, one) for problem, one in self._problems.items() if one.room]
        undone.sort(key=lambda pair: (not pair[1].trials, len(pair[1].logs) // PROPOSALS))
        for problem, one in undone[:_OPEN]:
            others = [other for other in self._problems if other.key == problem.key and self._problems[other].best]
            others.sort(key=lambda other: (distance(problem, other), other))
            bests = [best for other in others[: 1 + _NEIGHBOURS] for best in self._problems[other].best]
            try:
                yield Task(problem, tuple(one.next(bests)))
            except ImportError as error:
                raise UsageError(f"strategy {self.name} needs a package that is not installed: {error}") from None

    def race(self, task: Task) -> Race:
        """A short race."""
        return race(task.configs, LOOKS[:4])

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes to the problem's study."""
        self._problems[task.problem].tell(outcomes)


def search_of_sampler(name: str, sampler: str) -> type[SamplerSearch]:
    """The search of this name with a sampler of Optuna.

    Raises:
        UsageError: Optuna has no such sampler, or it needs more than a seed.
    """
    made = staticmethod(sampler_of(sampler))
    return type("NamedSamplerSearch", (SamplerSearch,), {"name": name, "sampler": made})


class _ProblemSearch:
    """One problem: log times of its configs, infinite for failures, and the trials of those to be measured next."""

    def __init__(
        self,
        task: Task,
        known: Mapping[Config, Coverage],
        advised: Sequence[Config],
        seed: int,
        most: int | None,
        create: Callable[[], optuna.Study],
    ) -> None:
        self._pool = task.candidates if isinstance(task.candidates, Pool) else None
        listed = task.drawn([*advised, *known], seed, most or 0).candidates
        self._candidates = {candidate.config: candidate for candidate in listed}
        kernels = [config for config in self._candidates if not isinstance(config, Implementation)]
        self._like = next(iter([*kernels, *self._candidates]), COPY)
        self._values = {knob: sorted({getattr(one, knob) for one in kernels}) for knob in self._like._fields if kernels}
        self._first = [*(config for config in self._candidates if isinstance(config, Implementation)), *advised]
        self._most = min(most or max(LEAST, math.ceil(SHARE * len(listed))), len(listed))
        self._random, self._create = Random(seed), create
        self._study: optuna.Study | None = None
        times = medians_of(known)
        self.logs = {c: math.log(times[c]) if c in times else math.inf for c in known if c in self._candidates}
        self.trials: dict[Config, optuna.Trial | None] = {}

    @property
    def room(self) -> int:
        """Number of configs still to be measured, at least the first ones."""
        return max(self._most - len(self.logs), sum(config not in self.logs for config in self._first))

    @property
    def best(self) -> list[Config]:
        """The best config, if one was timed."""
        timed = [config for config, log in self.logs.items() if log < math.inf]
        return [min(timed, key=lambda config: (self.logs[config], config))] if timed else []

    def untimed(self) -> Iterator[Candidate]:
        """The candidates that were not measured."""
        return (candidate for config, candidate in self._candidates.items() if config not in self.logs)

    def next(self, near: Sequence[Config]) -> list[Candidate]:
        """New configs, first ones and the best nearby before proposals, and the best so far; the same until `tell`."""
        if not self.trials:
            self._study = self._study or self._create()
            admitted = dict.fromkeys(filter(None, map(self._admitted, [*self._first, *near])))
            first = [config for config in admitted if config not in self.logs]
            for turn in range(min(PROPOSALS, self.room)):
                config, trial = (first[turn], None) if turn < len(first) else self._proposal(self._study)
                self.trials[config] = trial
        return sorted(self._candidates[config] for config in {*self.trials, *self.best})

    def tell(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes; empty ones end the problem."""
        timed = {config: log for config, log in self.logs.items() if log < math.inf}
        times = chained(timed, {config: one for config, one in outcomes.items() if config != COPY})
        self.logs |= dict.fromkeys(self.trials, math.inf) | times
        for config, trial in self.trials.items():
            self._end(trial, config)
        self.trials = {}
        if not outcomes:
            self._most, self._first = 0, []

    def _proposal(self, study: optuna.Study) -> tuple[Config, optuna.Trial | None]:
        """A new config and its trial; a random config after too many proposals of others."""
        for _ in range(_TRIES):
            trial = study.ask()
            proposed = self._proposed(trial)
            config = None if proposed is None else self._admitted(proposed)
            if config is not None and config not in self.logs and config not in self.trials:
                return config, trial
            self._end(trial, config)
        return self._random.choice([one.config for one in self.untimed() if one.config not in self.trials]), None

    def _proposed(self, trial: optuna.Trial) -> Config | None:
        """The config that a trial draws, legal or not, where no function does of any values of the knobs."""
        if self._pool and isinstance(self._pool.space, Drawn):
            return self._pool.space.of_trial(trial)
        values: dict[str, Any] = {
            knob: trial.suggest_categorical(knob, own)
            if isinstance(own[0], str)
            else own[trial.suggest_int(knob, 0, len(own) - 1)]
            for knob, own in self._values.items()
        }
        return self._like._replace(**values)

    def _admitted(self, config: Config) -> Config | None:
        """The candidate with the launch of a config, which joins the others; None if it is illegal."""
        found = self._candidates.get(config) or (self._pool and self._pool.of(config))
        return self._candidates.setdefault(found.config, found).config if found else None

    def _end(self, trial: optuna.Trial | None, config: Config | None) -> None:
        """Tell a trial the log time of its config, or the greatest one if it failed or there is no such config."""
        logs = [log for log in self.logs.values() if log < math.inf]
        if self._study is None or trial is None:
            return
        if not logs or (config in self.trials and config not in self.logs):
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        self._study.tell(trial, max(logs) if config is None else min(max(logs), self.logs[config]))
