"""An audit of a search that leaves configs out: one timing in twenty goes to a random config that it left out.

In: a search; see `protocol`. Out: its tasks, and between them those of the audit, each with a config drawn from those
not tried at the shapes finished since the last draw, beside the best config of its shape. `report` lists them for the
protocol of the run, and a fit says how many were faster than the configs of its table.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import Problem
from normtune.results.records import SEARCHED, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate, Pool
from normtune.tuner.search.adaptive import two_batches
from normtune.tuner.search.paired import chained
from normtune.tuner.search.protocol import Known, Race, Strategy, Wrapped, medians_of

# Number of configs that the search times for each config of the audit.
FOR_ONE = 19
# Number of candidates of a large space that are made at each finished problem, to draw some of all.
_OF_POOL = 2
# An audited config is timed in full if it takes at most this many times as long as the best.
CLOSE = 1.03


class Audited(Wrapped):
    """A `protocol.Search`: another one's tasks, and those of the audit."""

    def __init__(self, tasks: Sequence[Task], known: Known, strategy: Strategy, seed: int = 0) -> None:
        super().__init__(strategy(tasks, known))
        self._tasks = {task.problem: task for task in tasks}
        self._tried = {problem: set(known.get(problem, ())) for problem in self._tasks}
        self._logs: dict[Problem, dict[Config, float]] = {}
        for task in tasks:
            medians = medians_of(known.get(task.problem, {}))
            timed = [one.config for one in task.among(medians) if one.config in medians]
            self._logs[task.problem] = {config: math.log(medians[config]) for config in timed}
        self._random = random.Random(seed)
        self._new: Counter[Problem] = Counter()
        self._done: set[Problem] = set()
        self._due = 0
        # Two configs of each measured problem, as many as a task of the audit has.
        self._pairs: dict[Problem, Task] = {}
        self._audited: dict[Problem, list[Config]] = {}

    def coming(self) -> list[Task]:
        """Tasks that `left` does not have yet, for an estimate of time: of the search, and as many as will be drawn."""
        left = self._search.left()
        coming = self._search.coming()
        due = self._due + self._new.total() + sum(len(task.candidates) for task in (*left, *coming))
        return [*coming, *islice(cycle(self._pairs.values()), due // FOR_ONE)]

    def own_race(self, task: Task) -> Race:
        """As in `adaptive`."""
        return two_batches(task.configs, CLOSE, with_copy=False)

    def own_tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes of a task of the audit to the search, which did not ask for it."""
        if outcomes:
            self._audited.setdefault(task.problem, []).extend(self._untried(task))
            self._search.hear(task, outcomes)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass outcomes to the search, and draw the next configs of the audit."""
        problem, was_left = task.problem, len(self._own)
        super().tell(task, outcomes)
        if len(self._own) == was_left:
            self._new[problem] += len(self._untried(task)) if outcomes else 0
        self._pairs[problem] = Task(problem, task.candidates[:2])
        self._tried[problem].update(task.configs)
        self._logs[problem] |= chained(
            self._logs[problem], {config: outcome for config, outcome in outcomes.items() if config != COPY}
        )
        # The search may have timed the drawn configs itself.
        self._own = [one for one in self._own if not self._tried[one.problem].issuperset(one.configs)]
        self._draw()

    def _untried(self, task: Task) -> list[Config]:
        return [config for config in task.configs if config not in self._tried[task.problem]]

    def report(self, is_over: bool = True) -> dict[str, Any]:
        """The audit as entries of a run's protocol, by operator, variant and dtype.

        `pairs` counts the configs of the plan, those of a large space legal or not; `audited` has [*sizes, config] of
        each drawn config, and `missed` is the expected gain of configs that were left out, in millionths of a log; None
        before the search `is_over`.
        """
        gains = self._search.missed() if is_over else {}
        missed = {name: round(1e6 * gain) for name, gain in gains.items()}
        entries: dict[str, dict[str, Any]] = {}
        for problem, task in self._tasks.items():
            name = str(problem.key)
            entry = entries.setdefault(name, {"pairs": 0, "audited": [], "missed": missed.get(name)})
            entry["pairs"] += task.size
            drawn = self._audited.get(problem, [])
            entry["audited"] += [[*problem.shape, config.to_json()] for config in drawn]
        return {SEARCHED: entries}

    def _drawable(self, task: Task) -> Sequence[Candidate]:
        """The candidates of a task; of a large space some of them."""
        pool = task.candidates
        return pool.draw(_OF_POOL, self._random) if isinstance(pool, Pool) else pool

    def _draw(self) -> None:
        """Draw a config for every `FOR_ONE` timed at finished problems, at those finished since the last draw."""
        if self._due + self._new.total() < FOR_ONE:
            return
        undone = {task.problem for task in self._search.left()}
        for problem in self._new.keys() - undone:
            self._due += self._new.pop(problem)
            self._done.add(problem)
        if self._due < FOR_ONE:
            return
        drawn = {(task.problem, config) for task in self._own for config in task.configs}
        free = [
            (problem, candidate.config)
            for problem, task in self._tasks.items()
            if problem in self._done and self._logs[problem]
            for candidate in self._drawable(task)
            if candidate.config not in self._tried[problem] and (problem, candidate.config) not in drawn
        ]
        for problem, config in self._random.sample(free, min(self._due // FOR_ONE, len(free))):
            self._due -= FOR_ONE
            times = self._logs[problem]
            best = min(times, key=lambda other: (times[other], other))
            self._own.append(Task(problem, tuple(self._tasks[problem].among((config, best)))))
        if free:
            self._done.clear()
