"""Binaries are compiled ahead in the order of `ask`, and only those of tasks that it gives."""

import pytest

from normtune.results.database.store import Store
from normtune.results.records import TimedCode, launch_digest
from normtune.tests.tuner.benches import sweep
from normtune.tests.tuner.made_up_recording import recorded_plan
from normtune.tests.tuner.search import pairs
from normtune.tuner.compiling import binaries
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.device import bench as bench_module
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.binaries import compile_class
from normtune.tuner.plan.plan import Plan
from normtune.tuner.search.exhaustive import Exhaustive


class Pool:
    """A pool that compiles at once and remembers what it was asked for."""

    def __init__(self, jobs, target, **options):
        self.told, self.classes, self.at = options["on_progress"], [], []

    def start(self):
        """Nothing to start."""

    def add(self, jobs):
        new = [found for job in jobs if (found := compile_class(job.problem, job.launch)) not in self.classes]
        self.classes += new
        for _ in new:
            self.told(len(self.classes))

    def code(self, problem, launch):
        return TimedCode(launch_digest(launch))

    def result(self, problem, launch, seconds=None):
        assert compile_class(problem, launch) in self.classes
        return Compiled(None, "ok")

    def kernels(self, problem, launch):
        return ()  # a replay launches nothing

    def close(self):
        pass


class Told:
    """Hears of the binaries that are compiled, by the number of problems that are measured."""

    def __init__(self):
        self.counts, self.total, self.measured_problems = [], 0, 0

    def planned(self, backlog):
        self.binaries = backlog.binaries

    def compiling(self, done, total):
        assert total == self.binaries
        self.counts.append((self.measured_problems, done))

    def measured(self, device, problem, best, summaries):
        self.measured_problems = sum(summary.problems for summary in summaries)


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """Sweeps all problems; the bench and what was heard of the compilers."""
    pools = []
    monkeypatch.setattr(
        binaries, "CompilePool", lambda *given, **options: pools.append(Pool(*given, **options)) or pools[0]
    )
    monkeypatch.setattr(bench_module, "LOOK_AHEAD", 4)

    def run(search):
        bench, told = Bench(("normtune.tests.tuner.made_up_recording", "compiled_engine", ())), Told()
        with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
            sweep(bench, store, recorded_plan(), search, display=told)
        (pool,) = pools
        return pool, told

    return run


@pytest.mark.slow
def test_the_next_tasks_are_compiled_and_in_the_end_all(swept):
    pool, told = swept(Exhaustive)
    order = Exhaustive(recorded_plan().tasks, {}).pending()
    # The first problem is stored, and told of, once the second one is begun: the next four are in the queue then.
    ahead = Plan(tuple(order[:5]), {}).jobs()
    assert pool.classes[: len(ahead)] == [compile_class(job.problem, job.launch) for job in ahead]
    assert max(done for measured, done in told.counts if not measured) == len(ahead) < told.binaries
    assert told.counts[-1][1] == len(pool.classes) == told.binaries


@pytest.mark.slow
def test_what_is_never_asked_for_is_never_compiled(swept):
    pool, told = swept(pairs.Pairs)
    assert 0 < len(pool.classes) < told.binaries
