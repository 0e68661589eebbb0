"""The search in which Optuna proposes the next configs of a problem, by the tree-structured Parzen estimator.

In: see `protocol`. Out: tasks of a few proposed configs beside the best so far, raced (`race`) in up to 16 rounds; at
the end a full race of the best.

- Each problem has a study. Its objective is the log of the time in ns, from log ratios to the best config of each task,
  so that only times of the same rounds are compared.
- A proposal that is no candidate of the plan is illegal: the study learns it as a violated constraint, and the nearest
  legal config that was not measured is used instead. No config is proposed twice.
- Problems take turns, so that a sweep may stop at any time. The best configs of the nearest measured shapes are
  proposed first.
- Studies are in memory, or in an SQLite file for `optuna-dashboard`, which must not contain anything else. Each search
  creates new studies: earlier measurements come from the store.
"""

import math
import sqlite3
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from random import Random

import optuna
from optuna.trial import TrialState

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.config_space import Drawn, spread
from normtune.kernels.problem import Problem
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.plan import ByProblem, Task
from normtune.tuner.plan.pool import Pool
from normtune.tuner.plan.task_queue import TaskQueue
from normtune.tuner.search.paired import chained
from normtune.tuner.search.plane.group import distance
from normtune.tuner.search.protocol import Known, Race, Search
from normtune.tuner.search.race import LOOKS, race
from normtune.tuner.search.sampling.knob_space import DrawnKnobs, KnobSpace

# Proposed configs of a task. With fewer, most of the time would go to the best config, which is in every task.
PROPOSALS = 4
# Looks of a race of proposals: rounds 6 to 16. Ties are settled in the last race, of this many configs.
PROPOSAL_LOOKS = LOOKS[:4]
FINALISTS = 6
# Proposals that a study makes for one config before the nearest legal config is taken.
_TRIES = 4
# Problems in progress at a time: while the binaries of one are compiled, others are measured.
_OPEN = 4
# Number of nearest shapes whose best configs are proposed first.
_NEIGHBOURS = 3
# A problem is done after this share of its candidates, and at least so many configs.
SHARE = 0.1
LEAST = 24


class TPE(Search):
    """A `protocol.Search`; a subclass may take another sampler of Optuna.

    Args:
        tasks, known: see `protocol.Search`.
        seed: of sampler and ties.
        studies: SQLite file for the studies; None keeps them in memory.
        most: number of configs after which a problem is done; None for `SHARE` of its candidates.
        advice: the first configs to propose at a problem.

    Raises:
        UsageError: the file is not a database of studies, or cannot be written.
    """

    name = "tpe"
    expected_blocks = 4.0
    makes_studies = True
    leaves_out = True

    def __init__(
        self,
        tasks: Sequence[Task],
        known: Known,
        seed: int = 0,
        studies: Path | None = None,
        most: int | None = None,
        advice: ByProblem | None = None,
    ) -> None:
        self._advice = advice or {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._storage = None if studies is None else storage(studies)
        self._suffix = uuid.uuid4().hex[:8]
        self._spaces: dict[Problem, _Space] = {}
        for whole in TaskQueue(tasks).left():
            advised, before = self._advice.get(whole.problem, ()), known.get(whole.problem, {})
            task = whole.drawn([*advised, *before], seed, most or 0)
            if task.candidates:
                seeded = zlib.crc32(str(task.problem).encode(), seed)
                pool = whole.candidates if isinstance(whole.candidates, Pool) else None
                self._spaces[task.problem] = _Space(task, before, seeded, most, advised, pool)

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The sampler of a problem's study."""
        return optuna.samplers.TPESampler(seed=seed)

    def left(self) -> Sequence[Task]:
        """The problems that are not done, each with about as many configs as will be timed."""
        return [space.untried for space in self._spaces.values() if not space.done]

    def ask(self, seconds: float) -> Iterator[Task]:
        """The next task of a few problems; the same ones until one of them is measured."""
        waiting = [space for space in self._spaces.values() if not space.done]
        for space in sorted(waiting, key=lambda space: (not space.is_pending, space.tried // PROPOSALS))[:_OPEN]:
            if space.study is None:
                space.begin(self._study(space))
            yield space.next_task(() if space.is_pending else self._winners(space))

    def race(self, task: Task) -> Race:
        """A short race of proposals, a full one of the finalists."""
        looks = LOOKS if self._spaces[task.problem].is_final else PROPOSAL_LOOKS
        return race(task.configs, looks)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes to the problem's study."""
        self._spaces[task.problem].tell(outcomes)

    def _study(self, space: "_Space") -> optuna.Study:
        name = f"{self.name} {space.task.problem} {self._suffix}"
        return optuna.create_study(storage=self._storage, sampler=self.sampler(space.seed), study_name=name)

    def _winners(self, space: "_Space") -> list[Config]:
        """The advised configs, then the best ones of the nearest measured shapes, the nearest first."""
        centre = space.task.problem
        others = [problem for problem in self._spaces if problem.key == centre.key and problem != centre]
        bests = (self._spaces[p].best for p in sorted(others, key=lambda other: (distance(centre, other), other)))
        near = islice((best for best in bests if best is not None), _NEIGHBOURS)
        return list(dict.fromkeys([*self._advice.get(centre, ()), *near]))


class _Space:
    """The configs of one problem, and its study.

    Of a large space, `pool`, a task has some of the candidates; others come in when a sampler proposes them.

    Attributes:
        study: None until the first task of the problem.
        is_final: whether only the race of the best is left.
        best: the best measured config.
    """

    def __init__(
        self,
        task: Task,
        known: Mapping[Config, Coverage],
        seed: int,
        most: int | None,
        advised: Sequence[Config],
        pool: Pool | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self.study: optuna.Study | None = None
        self.is_final = False
        self._pool = pool
        self._random = Random(seed)
        self._candidates = {candidate.config: candidate for candidate in task.candidates}
        self._knobs = KnobSpace(task.configs)
        if pool is not None and isinstance(pool.space, Drawn):
            self._knobs = DrawnKnobs(task.configs, pool.space, pool.params)
        self._values: dict[Config, float] = {}
        self._failed: list[Config] = []
        self._pending: Task | None = None
        self._trials: dict[Config, optuna.Trial | None] = {}
        others = [config for config in task.configs if isinstance(config, Implementation)]
        self._advised = [*others, *(config for config in advised if config in self._knobs)]
        self._most = min(most or max(LEAST, math.ceil(SHARE * len(task.candidates))), len(task.candidates))
        for config, coverage in known.items():
            if config in self._knobs:
                self._knobs.take(config)
                if coverage.median_ns is None:
                    self._failed.append(config)
                else:
                    self._values[config] = math.log(coverage.median_ns)
        self.best = next(iter(self._fastest(1)), None)
        self.done = self._left() <= 0

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    @property
    def tried(self) -> int:
        return len(self._values) + len(self._failed)

    @cached_property
    def untried(self) -> Task:
        """About as many of the candidates not yet taken as will be."""
        free = [self._candidates[config] for config in self._knobs.free()]
        return Task(self.task.problem, tuple(spread(free, max(2, self._left()))))

    def begin(self, study: optuna.Study) -> None:
        """Set the study, and add the stored measurements to it."""
        self.study = study
        for config in [*self._values, *self._failed]:
            self._learn(self._knobs.trial_of(study, config), config)

    def next_task(self, winners: Sequence[Config]) -> Task:
        """The proposals and the best so far, or the finalists; `winners` are proposed first."""
        if self._pending is None:
            chosen = self._fastest(FINALISTS) if self.is_final else [*self._fastest(1), *self._proposals(winners)]
            self._pending = Task(self.task.problem, tuple(sorted(self._candidates[config] for config in chosen)))
        return self._pending

    def tell(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Learn the outcomes of the pending task; empty outcomes end the problem."""
        assert self._pending is not None
        self._pending = None
        self.__dict__.pop("untried", None)
        times = chained(self._values, {config: outcome for config, outcome in outcomes.items() if config != COPY})
        self._values |= times
        self.best = next(iter(self._fastest(1)), None)
        self._failed += [config for config in outcomes if config in self._trials and config not in times]
        for config, trial in self._trials.items():
            self._learn(trial, config)
        self._trials = {}
        was_final, self.is_final = self.is_final, self._left() <= 0
        self.done = not outcomes or was_final or (self.is_final and len(self._values) < 2)

    def _fastest(self, count: int) -> list[Config]:
        return nsmallest(count, self._values, key=lambda config: (self._values[config], config))

    def _left(self) -> int:
        """Number of configs still to be measured, at least the advised ones."""
        return max(self._most - self.tried, sum(map(self._knobs.is_free, self._advised)))

    def _proposals(self, winners: Sequence[Config]) -> list[Config]:
        """New configs, each with a trial without a value."""
        assert self.study is not None
        known = dict.fromkeys(map(self._admitted, [*self._advised, *winners]))
        starts = [config for config in known if config in self._knobs and self._knobs.is_free(config)]
        self.__dict__.pop("untried", None)
        for turn in range(min(PROPOSALS, self._left())):
            if turn < len(starts):
                config, trial = starts[turn], self._knobs.trial_of(self.study, starts[turn])
            else:
                config, trial = self._proposal(self.study)
            self._knobs.take(config)
            self._trials[config] = trial
        return list(self._trials)

    def _proposal(self, study: optuna.Study) -> tuple[Config, optuna.Trial | None]:
        """A free config that the sampler proposes, or the nearest one, and its trial."""
        proposed = None
        for _ in range(_TRIES):
            trial, drawn = self._knobs.ask(study)
            proposed = None if drawn is None else self._admitted(drawn)
            is_legal = proposed is not None and proposed in self._knobs
            if proposed is not None and is_legal and self._knobs.is_free(proposed):
                return proposed, trial
            if is_legal or not self._values:
                study.tell(trial, state=TrialState.FAIL)
                break
            trial.set_constraint("legal", 1.0)
            study.tell(trial, max(self._values.values()))
        free = self._knobs.free()
        config = self._random.choice(free) if proposed is None else self._knobs.nearest(proposed, self._random)
        return config, self._knobs.trial_of(study, config)

    def _admitted(self, config: Config) -> Config:
        """The config, or of a large space the one that is timed for its launch, which becomes a candidate."""
        candidate = None if self._pool is None else self._pool.of(config)
        if candidate is None:
            return config
        self._candidates.setdefault(candidate.config, candidate)
        self._knobs.add(candidate.config)
        return candidate.config

    def _learn(self, trial: optuna.Trial | None, config: Config) -> None:
        """End a trial with the value of its config, or as a violation if it failed."""
        assert self.study is not None
        if trial is None:
            return
        trial.set_user_attr("config", str(config))
        if config in self._values:
            trial.set_constraint("legal", 0.0)
            self.study.tell(trial, self._values[config])
        elif config in self._failed and self._values:
            trial.set_constraint("legal", 1.0)
            self.study.tell(trial, max(self._values.values()))
        else:
            self.study.tell(trial, state=TrialState.FAIL)


def storage(path: Path) -> optuna.storages.RDBStorage:
    """The storage of studies in an SQLite file, which is created if it does not exist.

    Raises:
        UsageError: the file contains anything else, or cannot be written.
    """
    where = f"--studies is {str(path)!r}"
    if not path.parent.is_dir():
        raise UsageError(f"{where}: the folder {path.parent} does not exist, create it or name another")
    try:
        if path.exists() and path.stat().st_size:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"studies", "trials", "version_info"} <= tables:
                raise UsageError(f"{where}: not a database of Optuna, expected one or a new file")
        return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"creator": partial(_connected, path)})
    except (sqlite3.Error, OSError) as error:
        raise UsageError(f"{where}: not a usable SQLite file ({error}), expected a new file") from None
    except Exception as error:  # errors of SQLAlchemy and of Optuna, which have no common class
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{where}: Optuna cannot keep studies there ({reason}), name another file") from None


def _connected(path: Path) -> sqlite3.Connection:
    """A connection with which a trial takes 0.02 s, not 0.2 s as with Optuna's default."""
    connection = sqlite3.connect(path, timeout=60.0, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection
