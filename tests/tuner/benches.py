"""A bench of made-up times, what it is asked to measure, and who hears what a sweep says."""

import time
from collections import Counter

from normtune.kernels.config import COPY
from normtune.kernels.target import TARGETS
from normtune.results.records import ROUNDS_PER_BLOCK, Device, Outcome
from normtune.tuner.device.engine import Phases
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.plan.resume import previous_of
from normtune.tuner.search.rounds import timed
from normtune.tuner.sweep import loop
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.summary import nothing_timed
from normtune.tuner.sweep.work import Work

TARGET = TARGETS["sm_90"]
DEVICE = Device("Made Up", "sm_90", 132, 60 << 20, 1 << 37, "GPU-0", "1.0")


def small_plan():
    """Eight problems of the default space."""
    return plan(problems([], ["bfloat16"], shapes("default", [1, 64], [64, 128])), "default", TARGET)


def search_of(plan, strategy, stored, retry_failed=False):
    """The search over what is not stored."""
    return strategy(plan.tasks, previous_of(stored, {task.problem.operator for task in plan.tasks}, retry_failed))


def work_on(bench, store, plan, strategy, *, stored=None, key=None, retry_failed=False):
    """The work of a search on devices such as this one."""
    stored = store.coverage(bench.device, bench.regime) if stored is None else stored
    return Work.of(plan, search_of(plan, strategy, stored, retry_failed), stored, store.option, key)


def sweep_on(
    benches, store, plan, strategy, budget_seconds=None, *, display=None, joining=None, clock=time.monotonic, **more
):
    """The summary of a sweep of like devices."""
    work = work_on(benches[0], store, plan, strategy, **more)
    if work.backlog.tasks:
        loop.measure([(work, benches)], store, budget_seconds, display, joining, clock=clock)
    else:
        work.summary.phases = nothing_timed(benches[0].regime)
    return work.summary


def sweep(bench, store, *requested, **more):
    """The summary of a sweep of one device."""
    return sweep_on([bench], store, *requested, **more)


class Heard(Silent):
    """Keeps the lines."""

    def __init__(self):
        self.lines = []

    def say(self, *lines):
        self.lines += lines


class MadeUp:
    """A bench whose times follow from the config: more warps, slower."""

    name, target, device, software, regime, free_bytes = "cuda:0", TARGET, DEVICE, {"triton": "0.0"}, "cold", None

    def __init__(self, broken=(), delay=0.0):
        self.broken = dict(broken)
        self.delay = delay
        self.measured = []
        self.rounds = Counter()

    def prepare(self, tasks, on_progress=None):
        if on_progress:
            on_progress(1)

    def compiled(self, task, seconds=None):
        return True

    def examine(self, tasks):
        pass

    def measure(self, task, race):
        time.sleep(self.delay)
        self.measured.append(task)
        outcomes = {c.config: self.broken[c.config] for c in task.candidates if c.config in self.broken}
        session = type("Session", (), {"block": staticmethod(self.block)})()
        configs = [c.config for c in task.candidates if c.config not in outcomes]
        samples = timed(session, configs, race, self.rounds[task.problem] // ROUNDS_PER_BLOCK)
        self.rounds[task.problem] = max((1 + found.rounds[-1] for found in samples.values()), default=0)
        for config, found in samples.items():
            outcomes[config] = Outcome("ok", "", found.rounds, found.nanoseconds)
        return outcomes

    @staticmethod
    def block(configs):
        return {config: [500 if config == COPY else 1000 * config.num_warps] * 2 for config in configs}

    def stop(self):
        pass

    def phases(self):
        return Phases(0.0, 0.0, 1.0, {"regime": self.regime})

    def close(self):
        return {"sm_clock_mhz": [1, 2, 3]}
