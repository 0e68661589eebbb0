"""Searches that let a sampler of Optuna propose the next configs of a problem, for spaces too large to time in whole.

In: see `protocol`; a subclass gives the sampler. Out: tasks of a few proposed configs beside the best so far, which
are raced (`race`) up to 16 rounds; at the end a full race of the best.

- A problem has a study of its own. Its objective is the log of the time in ns, chained through the log ratios to the
  best of each task, so that only times of the same rounds are compared.
- A proposal that no candidate of the plan has is illegal: the study learns it as a violated constraint, and the nearest
  legal config that is not yet measured takes its place. No config is proposed twice.
- Problems take turns, so that a sweep may stop at any time. The best configs of the nearest measured shapes are
  proposed first.
- Studies live in memory, or in an SQLite file, where `optuna-dashboard` shows them. Each search makes studies of its
  own, with names of their own, and reads no others: what was measured before comes from the store.
"""

import math
import sqlite3
import uuid
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import Problem
from normtune.results.database.store import Coverage
from normtune.tuner.plan.agenda import Agenda
from normtune.tuner.plan.outcome import Outcome
from normtune.tuner.plan.plan import Candidate, Task
from normtune.tuner.search.paired import log_ratio
from normtune.tuner.search.protocol import Known, Race, Samples
from normtune.tuner.search.race import LOOKS, race

# Proposed configs of a task. Fewer would time the best more often than anything else.
PROPOSALS = 4
# Looks of a race of proposals: rounds 6 to 16. Ties are settled in the last race, among so many configs.
PROPOSAL_LOOKS = LOOKS[:4]
FINALISTS = 6
# Proposals of a study for one config, before the nearest legal config is taken.
_TRIES = 4
# Problems whose next task is asked for: while the binaries of one are compiled, others are measured.
_OPEN = 4
# Shapes whose best configs are proposed first.
_NEIGHBOURS = 3
# A problem is done after this share of its candidates, and at least so many configs.
SHARE = 0.1
LEAST = 24


class Sampled(ABC):
    """A `protocol.Search`.

    Args:
        tasks, known: see `protocol.Search`.
        seed: of sampler and ties.
        studies: SQLite file for the studies; None keeps them in memory.
        most: number of configs after which a problem is done; None for `SHARE` of its candidates.

    Raises:
        UsageError: the file is no database of studies, or cannot be written.
    """

    name: str
    expected_blocks = 4.0
    makes_studies = True

    def __init__(
        self, tasks: Sequence[Task], known: Known, seed: int = 0, studies: Path | None = None, most: int | None = None
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._storage = None if studies is None else _storage(studies)
        self._seed = seed
        self._suffix = uuid.uuid4().hex[:8]
        self._spaces: dict[Problem, _Space] = {}
        for task in Agenda(tasks).left():
            seeded = zlib.crc32(str(task.problem).encode(), seed)
            space = _Space(task, known.get(task.problem, {}), seeded, most)
            self._spaces[task.problem] = space

    @abstractmethod
    def sampler(self, seed: int) -> optuna.samplers.BaseSampler | None:
        """The sampler of a problem's study; None proposes at random among the configs not yet measured."""

    def left(self) -> Sequence[Task]:
        """The problems that are not done, with the configs not yet measured."""
        return [Task(space.task.problem, space.untried()) for space in self._spaces.values() if not space.done]

    def ask(self, seconds: float) -> Iterator[Task]:
        """The next task of a few problems; the same ones until one of them is measured."""
        waiting = [space for space in self._spaces.values() if not space.done]
        for space in sorted(waiting, key=lambda space: (not space.is_asked, space.tried // PROPOSALS))[:_OPEN]:
            if space.study is None:
                space.begin(self._study(space))
            yield space.next_task(self._winners(space))

    def race(self, task: Task) -> Race:
        """A short race of proposals, a full one of the finalists."""
        looks = LOOKS if self._spaces[task.problem].is_final else PROPOSAL_LOOKS
        return race(task.configs, looks)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes to the problem's study."""
        self._spaces[task.problem].tell(outcomes)

    def _study(self, space: "_Space") -> optuna.Study:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # samplers that Optuna calls experimental
            sampler = self.sampler(space.seed)
        study = optuna.create_study(
            storage=self._storage, sampler=sampler, study_name=f"{self.name} {space.task.problem} {self._suffix}"
        )
        space.samples_itself = sampler is None
        return study

    def _winners(self, space: "_Space") -> list[Config]:
        """The best configs of the nearest measured shapes, the nearest first."""
        own = space.task.problem
        near = sorted(
            (_distance(own, problem), problem, other.best)
            for problem, other in self._spaces.items()
            if problem != own and problem._replace(rows=own.rows, hidden=own.hidden) == own and other.best is not None
        )
        return list(dict.fromkeys(best for _, _, best in near[:_NEIGHBOURS] if best is not None))


class _Space:
    """The configs of one problem, and its study."""

    def __init__(self, task: Task, known: Mapping[Config, Coverage], seed: int, most: int | None) -> None:
        self.task = task
        self.seed = seed
        self.study: optuna.Study | None = None
        self.samples_itself = False
        self.done = not task.candidates
        self.is_final = False
        self._random = Random(seed)
        self._candidates = {candidate.config: candidate for candidate in task.candidates}
        self._values: dict[Config, float] = {}
        self._failed: list[Config] = []
        self._pending: Task | None = None
        self._trials: dict[Config, optuna.Trial] = {}
        self._starts: list[Config] = []
        configs = list(self._candidates)
        self._most = most or max(LEAST, math.ceil(SHARE * len(configs)))
        self._choices = {
            knob: sorted({getattr(config, knob) for config in configs})
            for knob in (configs[0]._fields if configs else ())
            if len({getattr(config, knob) for config in configs}) > 1
        }
        self._row = {config: row for row, config in enumerate(configs)}
        self._points = np.array([self._point(config) for config in configs], np.float64).reshape(len(configs), -1)
        self._free = np.ones(len(configs), np.bool_)
        for config, coverage in known.items():
            if config in self._row:
                self._free[self._row[config]] = False
                if coverage.median_ns is None:
                    self._failed.append(config)
                else:
                    self._values[config] = math.log(coverage.median_ns)
        self.done = self.done or self._enough()

    @property
    def is_asked(self) -> bool:
        """Whether its next task is known."""
        return self._pending is not None

    @property
    def tried(self) -> int:
        """Number of configs that were measured or failed."""
        return len(self._values) + len(self._failed)

    @property
    def best(self) -> Config | None:
        """The best measured config."""
        return min(self._values, key=lambda config: (self._values[config], config), default=None)

    def untried(self) -> tuple[Candidate, ...]:
        """The candidates that were not measured."""
        return tuple(candidate for candidate, row in zip(self.task.candidates, self._free, strict=True) if row)

    def begin(self, study: optuna.Study) -> None:
        """Give the space its study, which learns what is known."""
        self.study = study
        for config in [*self._values, *self._failed]:
            self._learn(self._asked(config), config)

    def next_task(self, winners: Sequence[Config]) -> Task:
        """The proposals and the best so far, or the finalists; `winners` are proposed first."""
        if self._pending is None:
            best = self.best
            if self.is_final:
                chosen = sorted(self._values, key=lambda config: (self._values[config], config))[:FINALISTS]
            else:
                chosen = [*([best] if best is not None else []), *self._proposals(winners)]
            self._pending = Task(self.task.problem, tuple(sorted(self._candidates[config] for config in chosen)))
        return self._pending

    def tell(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes of the pending task; empty outcomes end the problem."""
        assert self._pending is not None and self.study is not None
        configs, self._pending = self._pending.configs, None
        samples = {c: Samples(list(o.rounds), list(o.nanoseconds)) for c, o in outcomes.items() if len(o.nanoseconds)}
        samples.pop(COPY, None)
        anchor = min(
            (config for config in configs if config in samples),
            key=lambda config: (self._values.get(config, math.inf), config),
            default=None,
        )
        if anchor is not None:
            base = self._values.get(anchor, float(np.mean(np.log(samples[anchor].nanoseconds))))
            for config, values in samples.items():
                self._values[config] = base + log_ratio(values, samples[anchor])
        self._failed += [config for config in outcomes if config in self._row and config not in samples]
        for config, trial in self._trials.items():
            self._learn(trial, config)
        self._trials = {}
        self.done = not outcomes or self.is_final or (self._enough() and len(self._values) < 2)
        self.is_final = self._enough()

    def _enough(self) -> bool:
        return self._left() <= 0

    def _left(self) -> int:
        """Number of configs still to be measured."""
        return min(self._most, len(self._row)) - self.tried

    def _proposals(self, winners: Sequence[Config]) -> list[Config]:
        """New configs, each with a trial that is waiting for its value."""
        self._starts = [config for config in winners if config in self._row]
        for _ in range(min(PROPOSALS, self._left())):
            config, trial = self._proposal()
            self._free[self._row[config]] = False
            self._trials[config] = trial
        return list(self._trials)

    def _proposal(self) -> tuple[Config, optuna.Trial]:
        assert self.study is not None
        while self._starts:
            config = self._starts.pop(0)
            if self._free[self._row[config]]:
                return config, self._asked(config)
        if self.samples_itself:
            config = self._nearest(None)
            return config, self._asked(config)
        params: Mapping[str, Any] = {}
        for _ in range(_TRIES):
            trial = self.study.ask(self._distributions())
            params = trial.params
            proposed = self._config_of(params)
            if proposed is not None and self._free[self._row[proposed]]:
                return proposed, trial
            if proposed is not None or not self._values:
                self.study.tell(trial, state=TrialState.FAIL)
                break
            trial.set_constraint("legal", 1.0)
            self.study.tell(trial, max(self._values.values()))
        config = self._nearest(params)
        return config, self._asked(config)

    def _learn(self, trial: optuna.Trial, config: Config) -> None:
        """End a trial with the value of its config, or as a violation if it failed."""
        assert self.study is not None
        trial.set_user_attr("config", str(config))
        if config in self._values:
            trial.set_constraint("legal", 0.0)
            self.study.tell(trial, self._values[config])
        elif config in self._failed and self._values:
            trial.set_constraint("legal", 1.0)
            self.study.tell(trial, max(self._values.values()))
        else:
            self.study.tell(trial, state=TrialState.FAIL)

    def _asked(self, config: Config) -> optuna.Trial:
        """A trial of this config."""
        assert self.study is not None
        self.study.enqueue_trial({knob: self._coordinate(knob, config) for knob in self._choices})
        return self.study.ask(self._distributions())

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        """A knob of integers is the rank of its value, so that neighbours are near; one of texts is a category."""
        result: dict[str, optuna.distributions.BaseDistribution] = {}
        for knob, values in self._choices.items():
            is_text = isinstance(values[0], str)
            result[knob] = (
                optuna.distributions.CategoricalDistribution(values)
                if is_text
                else optuna.distributions.IntDistribution(0, len(values) - 1)
            )
        return result

    def _coordinate(self, knob: str, config: Config) -> int | str:
        value: int | str = getattr(config, knob)
        return value if isinstance(value, str) else self._choices[knob].index(value)

    def _config_of(self, params: Mapping[str, Any]) -> Config | None:
        """The legal config of a proposal, if it is one."""
        first = next(iter(self._row))
        values = {knob: v if isinstance(v, str) else self._choices[knob][v] for knob, v in params.items()}
        config = first._replace(**values)
        return config if config in self._row else None

    def _nearest(self, params: Mapping[str, Any] | None) -> Config:
        """The nearest config not yet proposed; without a proposal any of them."""
        rows = np.flatnonzero(self._free)
        if params:
            first = next(iter(self._row))
            values = {knob: v if isinstance(v, str) else self._choices[knob][v] for knob, v in params.items()}
            distances = np.abs(self._points[rows] - self._point(first._replace(**values))).sum(axis=1)
            rows = rows[distances <= distances.min() + 1e-9]
        return self.task.candidates[int(self._random.choice(rows.tolist()))].config

    def _point(self, config: Config) -> list[float]:
        """Coordinates of a config: ranks of integers in shares of their range, and one axis for each text."""
        point = []
        for knob, values in self._choices.items():
            value = getattr(config, knob)
            if isinstance(value, str):
                point += [0.5 * (value == other) for other in values]
            else:
                point.append(values.index(value) / (len(values) - 1))
        return point


def _distance(one: Problem, other: Problem) -> float:
    return math.hypot(math.log2(one.rows / other.rows), math.log2(one.hidden / other.hidden))


def _storage(path: Path) -> optuna.storages.RDBStorage:
    """The storage of studies in an SQLite file, which is made if it does not exist.

    Raises:
        UsageError: the file is anything else, or cannot be written.
    """
    where = f"--studies is {str(path)!r}"
    if not path.parent.is_dir():
        raise UsageError(f"{where}: the folder {path.parent} does not exist, create it or name another")
    try:
        if path.exists() and path.stat().st_size:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"studies", "trials", "version_info"} <= tables:
                raise UsageError(f"{where}: a database of something else, expected a new file or one of Optuna's")
        return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"creator": partial(_connected, path)})
    except (sqlite3.Error, OSError) as error:
        raise UsageError(f"{where}: no SQLite file that can be used ({error}), expected a new file") from None
    except Exception as error:  # SQLAlchemy's and Optuna's own; they share no class
        why = " ".join(str(error).split())[:200]
        raise UsageError(f"{where}: Optuna cannot keep studies there ({why}), name another file") from None


def _connected(path: Path) -> sqlite3.Connection:
    """A connection that is fast enough: a trial takes 0.02 s with it, and 0.2 s as Optuna connects."""
    connection = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection
