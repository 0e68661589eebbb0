"""Searches by a sampler of Optuna, with a study for each problem: `--strategy optuna:TPESampler`.

In: see `protocol`. Out: tasks of a few new configs beside the best so far. A trial's value is the log time of its
config, or the greatest one of its problem if that failed or is illegal. No config but the best is timed twice.
"""

import math
import sqlite3
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from inspect import isclass, signature
from pathlib import Path
from random import Random
from typing import Any

import optuna

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.config_space import Drawn
from normtune.kernels.problem import Problem
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.plan import ConfigsOf, Task
from normtune.tuner.plan.pool import Candidate, Pool
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.paired import chained
from normtune.tuner.search.plane.group import distance
from normtune.tuner.search.protocol import Known, Race, Search, medians_of
from normtune.tuner.search.race import LOOKS, race

# New configs of a task, beside the best one. Proposals before a random config is taken; problems in progress; nearest
# problems whose best configs come first. A problem is done after this share of its candidates, and at least so many.
PROPOSALS, _TRIES, _OPEN, _NEIGHBOURS, SHARE, LEAST = 4, 16, 4, 3, 0.1, 24


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
        advice: ConfigsOf | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage, suffix = None if studies is None else _storage(studies), uuid.uuid4().hex[:8]
        self._problems: dict[Problem, _ProblemStudy] = {}
        for task in TaskQueue(tasks).pending():
            name, sampler = f"{self.name} {task.problem} {suffix}", self.sampler(seed=seed)
            create = partial(optuna.create_study, study_name=name, sampler=sampler, storage=storage)
            stored, advised = known.get(task.problem, {}), (advice or {}).get(task.problem, ())
            self._problems[task.problem] = _ProblemStudy(task, stored, advised, seed, most, create)

    def pending(self) -> Sequence[Task]:
        """The problems that are not done, each with about as many configs as will be timed."""
        undone = [(problem, one) for problem, one in self._problems.items() if one.room]
        return [Task(problem, tuple(one.untimed[: max(2, one.room)])) for problem, one in undone]

    def ask(self) -> Iterator[Task]:
        """The next task of a few problems; the same ones until one of them is measured."""
        undone = [(problem, one) for problem, one in self._problems.items() if one.room]
        undone.sort(key=lambda pair: (not pair[1].trials, len(pair[1].logs) // PROPOSALS))
        for problem, one in undone[:_OPEN]:
            best = {other: study.best for other, study in self._problems.items() if other.key == problem.key}
            near = sorted(filter(best.get, best), key=lambda other: (distance(problem, other), other))
            try:
                yield Task(problem, one.next([config for other in near[: 1 + _NEIGHBOURS] for config in best[other]]))
            except ImportError as error:
                raise UsageError(f"strategy {self.name} needs a package that is not installed: {error}") from None

    def race(self, task: Task) -> Race:
        """A race of up to 16 rounds."""
        return race(task.configs, LOOKS[:4])

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes to the problem's study."""
        self._problems[task.problem].tell(outcomes)


class _ProblemStudy:
    """Log times of the configs of a problem, infinite for failures, and the trials of those to be measured next."""

    def __init__(
        self,
        task: Task,
        stored: Mapping[Config, Coverage],
        advised: Sequence[Config],
        seed: int,
        most: int | None,
        create: Callable[[], optuna.Study],
    ) -> None:
        self._pool = task.candidates if isinstance(task.candidates, Pool) else None
        listed = task.drawn([*advised, *stored], seed, most or 0).candidates
        self._candidates = {candidate.config: candidate for candidate in listed}
        self._kernels = [config for config in self._candidates if not isinstance(config, Implementation)]
        self._first = [*(config for config in self._candidates if isinstance(config, Implementation)), *advised]
        self._most = min(most or max(LEAST, math.ceil(SHARE * len(listed))), len(listed))
        self._random, self._create = Random(seed), create
        times = medians_of(stored)
        self.logs = {c: math.log(times[c]) if c in times else math.inf for c in stored if c in self._candidates}
        self.trials: dict[Config, optuna.Trial | None] = {}

    @property
    def room(self) -> int:
        """Number of configs still to be measured, at least the first ones."""
        return max(self._most - len(self.logs), sum(config not in self.logs for config in self._first))

    @property
    def best(self) -> list[Config]:
        """The best config, if one was timed."""
        return sorted(self._timed, key=lambda config: (self.logs[config], config))[:1]

    @property
    def untimed(self) -> list[Candidate]:
        """The candidates that were not measured."""
        return [candidate for config, candidate in self._candidates.items() if config not in self.logs]

    def next(self, near: Sequence[Config]) -> tuple[Candidate, ...]:
        """New configs, first ones and the best nearby before proposals, and the best so far; the same until `tell`."""
        if not self.trials:
            admitted = dict.fromkeys(map(self._admitted, [*self._first, *near]))
            first = [config for config in admitted if config and config not in self.logs]
            for turn in range(min(PROPOSALS, self.room)):
                config, trial = (first[turn], None) if turn < len(first) else self._proposal()
                self.trials[config] = trial
        return tuple(sorted(self._candidates[config] for config in {*self.trials, *self.best}))

    def tell(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes; empty ones end the problem."""
        times = chained(self._timed, {config: one for config, one in outcomes.items() if config != COPY})
        self.logs |= dict.fromkeys(self.trials, math.inf) | times
        for config, trial in self.trials.items():
            if trial:
                self._end(trial, self.logs[config])
        self.trials = {}
        if not outcomes:
            self._most, self._first = 0, []

    @property
    def _timed(self) -> dict[Config, float]:
        return {config: log for config, log in self.logs.items() if log < math.inf}

    @cached_property
    def _study(self) -> optuna.Study:
        return self._create()

    def _proposal(self) -> tuple[Config, optuna.Trial | None]:
        """A new config and its trial; a random config after too many proposals of others."""
        for _ in range(_TRIES):
            trial = self._study.ask()
            config = self._admitted(self._proposed(trial))
            if config and config not in self.logs and config not in self.trials:
                return config, trial
            self._end(trial, self.logs.get(config) if config else math.inf)
        return self._random.choice([one.config for one in self.untimed if one.config not in self.trials]), None

    def _proposed(self, trial: optuna.Trial) -> Config | None:
        """The config that a trial draws, legal or not, where no function does of any values of the knobs."""
        if self._pool and isinstance(self._pool.space, Drawn):
            return self._pool.space.of_trial(trial)
        values: dict[str, Any] = {}
        for knob in self._kernels[0]._fields if self._kernels else ():
            own = sorted({getattr(config, knob) for config in self._kernels})
            is_text = isinstance(own[0], str)
            values[knob] = (
                trial.suggest_categorical(knob, own) if is_text else own[trial.suggest_int(knob, 0, len(own) - 1)]
            )
        return self._kernels[0]._replace(**values) if values else None

    def _admitted(self, config: Config | None) -> Config | None:
        """The candidate with the launch of a config, which joins the others; None if it is illegal."""
        found = config and (self._candidates.get(config) or (self._pool and self._pool.of(config)))
        return self._candidates.setdefault(found.config, found).config if found else None

    def _end(self, trial: optuna.Trial, log: float | None) -> None:
        """Tell a trial its log time, at most the greatest one here; it fails if there is none."""
        most = max(self._timed.values(), default=None)
        if log is None or most is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, min(most, log))


def search_of_sampler(name: str, sampler: str) -> type[SamplerSearch]:
    """The search of this name with a sampler of Optuna.

    Raises:
        UsageError: Optuna has none of this name that needs no other argument than a seed.
    """
    usable: dict[str, Any] = {}
    for one, made in vars(optuna.samplers).items():
        parameters = signature(made).parameters if isclass(made) and one in optuna.samplers.__all__ else {}
        # `BruteForceSampler` stops a study by itself, which only Optuna's own loop may do.
        if "seed" in parameters and one != "BruteForceSampler":
            usable |= {one: made} if all(p.default is not p.empty for p in parameters.values()) else {}
    if sampler not in usable:
        raise UsageError(f"unknown sampler of Optuna {sampler!r}: expected one of {', '.join(sorted(usable))}")
    return type("NamedSamplerSearch", (SamplerSearch,), {"name": name, "sampler": usable[sampler]})


def _storage(path: Path) -> optuna.storages.RDBStorage:
    """The storage of studies in an SQLite file, which is created if it does not exist."""
    where = f"--studies is {str(path)!r}"
    if not path.parent.is_dir():
        raise UsageError(f"{where}: the folder {path.parent} does not exist, create it or name another")
    try:
        tables = set()
        if path.exists() and path.stat().st_size:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables or {"studies", "trials", "version_info"} <= tables:
            return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"creator": partial(_connected, path)})
        reason = "not a database of Optuna"
    except (sqlite3.Error, OSError) as error:
        reason = f"not a usable SQLite file ({error})"
    except Exception as error:  # errors of SQLAlchemy and of Optuna, which have no common class
        reason = f"Optuna cannot keep studies there ({' '.join(str(error).split())[:200]})"
    raise UsageError(f"{where}: {reason}, expected a database of Optuna or a new file")


def _connected(path: Path) -> sqlite3.Connection:
    """A connection with which a trial takes 0.02 s, not 0.2 s as with Optuna's default."""
    connection = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
    return connection
