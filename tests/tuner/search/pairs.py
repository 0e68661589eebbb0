"""A search over all (problem, config) pairs, one at a time beside the best so far, that comes back to problems."""

from normtune.kernels.config import COPY
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Batch, Search

CONFIGS = 3


class Pairs(Search):
    """Where the best is farthest from the copy comes first; done with a problem after three configs."""

    name = "pairs"

    def __init__(self, tasks, known):
        self.tasks = {task.problem: task for task in tasks}
        self.medians = {problem: {c: one.median_ns for c, one in found.items()} for problem, found in known.items()}

    def pending(self):
        return [task for problem, task in self.tasks.items() if self.open(problem)]

    def ask(self):
        for task in sorted(self.pending(), key=lambda task: -self.worth(task.problem)):
            best = self.best(task.problem)
            new = next(c for c in task.candidates if c.config not in self.medians.get(task.problem, {}))
            yield Task(task.problem, tuple(c for c in task.candidates if c == new or c.config == best))

    def race(self, task):
        samples = yield Batch(task.configs, 1)
        assert COPY in samples
        yield Batch([config for config in task.configs if config in samples], 1)

    def tell(self, task, outcomes):
        if not outcomes:
            del self.tasks[task.problem]
        for config, outcome in outcomes.items():
            times = sorted(outcome.nanoseconds)
            self.medians.setdefault(task.problem, {})[config] = times[len(times) // 2] if times else None

    def open(self, problem):
        tried = len([config for config in self.medians.get(problem, {}) if config != COPY])
        return tried < min(CONFIGS, len(self.tasks[problem].candidates))

    def best(self, problem):
        times = {c: time for c, time in self.medians.get(problem, {}).items() if time and c != COPY}
        return min(times, key=lambda config: (times[config], config), default=None)

    def worth(self, problem):
        best, medians = self.best(problem), self.medians.get(problem, {})
        return medians[best] / medians[COPY] if best else float("inf")
