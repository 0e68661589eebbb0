"""Recheck: wanted tasks, within the budget, stored only if a store is given."""

import pytest

from normtune.errors import NormtuneError
from normtune.kernels.config import COPY, Config
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.tuner.benches import DEVICE, MadeUp
from normtune.tuner.checking.recheck import recheck
from normtune.tuner.device.engine import SkippedError
from normtune.tuner.plan.plan import plan, problems

SHAPES = [(rows, hidden) for hidden in (64, 4096) for rows in (1, 64, 4096)]


class Clock:
    """Seconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench(MadeUp):
    """A bench on which a problem takes 10 s; more warps, slower."""

    def __init__(self, clock=None, free_bytes=None, late=(), skipped=(), lost=()):
        super().__init__()
        self.clock, self.free_bytes = clock or Clock(), free_bytes
        self.late, self.skipped, self.lost = set(late), set(skipped), set(lost)
        self.patience, self.prepared, self.closed = [], [], 0

    def prepare(self, tasks, on_progress=None):
        self.prepared.append([task.problem for task in tasks])

    def compiled(self, task, seconds=None):
        if task.problem not in self.late:
            return True
        if seconds == 0.0:
            return False
        self.patience.append(seconds)
        return seconds is None

    def measure(self, task, race):
        self.clock.now += 10
        if task.problem in self.skipped:
            raise SkippedError("it does not fit")
        if task.problem in self.lost:
            raise NormtuneError("the device is lost")
        return super().measure(task, race)

    def close(self):
        self.closed += 1
        return {}


class Answers:
    """Wants so many tasks."""

    def __init__(self, most=100):
        self.most, self.heard = most, []

    def wants(self, task):
        return len(self.heard) < self.most

    def learn(self, task, outcomes):
        self.heard.append((task.problem, outcomes))


@pytest.fixture
def tasks():
    return plan(problems(["rms_norm_forward"], ["bfloat16"], SHAPES), "portfolio", TARGETS["sm_90"]).tasks


def test_tasks_are_measured_in_order_and_what_came_of_them_is_heard(tasks):
    bench, asker = Bench(), Answers()
    told = recheck(bench, tasks, asker)
    wanted = [task.problem for task in tasks]
    assert [task.problem for task in bench.measured] == [problem for problem, _ in asker.heard] == wanted
    assert bench.prepared == [wanted[begun:] for begun in range(6)]
    assert (told.measured, told.unfinished, told.skipped, told.oversized) == (6, 0, {}, 0)
    assert told.timings == sum(len(o.nanoseconds) for _, found in asker.heard for o in found.values()) > 6 * 6
    assert set(asker.heard[0][1]) == {COPY, *(candidate.config for candidate in tasks[0].candidates)}
    assert bench.closed == 1


def test_what_is_no_longer_wanted_is_not_measured(tasks):
    bench = Bench()
    told = recheck(bench, tasks, Answers(2))
    assert (told.measured, told.unfinished, len(bench.measured)) == (2, 0, 2)


def test_nothing_is_begun_that_would_end_too_late(tasks):
    bench = Bench()
    told = recheck(bench, tasks, Answers(), 35.0, clock=bench.clock)
    # 10 s each, with a fifth for caution: after 20 s another would end at 32, after 30 at 42.
    assert (told.measured, told.unfinished, told.seconds) == (3, 3, 30.0)


def test_a_budget_of_nothing_measures_nothing(tasks):
    bench = Bench()
    assert recheck(bench, tasks, Answers(), 0.1, clock=bench.clock).unfinished == 6
    assert (bench.measured, bench.closed) == ([], 1)


def test_what_is_compiled_already_comes_first_and_the_last_is_waited_for(tasks):
    first = tasks[0].problem
    bench = Bench(late=[first])
    told = recheck(bench, tasks, Answers(), 100.0, clock=bench.clock)
    assert first not in [task.problem for task in bench.measured] and len(bench.measured) == 5
    assert bench.patience == [pytest.approx(100 - 50 - 12)]
    assert told.unfinished == 1
    bench = Bench(late=[first])
    recheck(bench, tasks, Answers())
    assert bench.measured[-1].problem == first


def test_what_cannot_be_measured_is_told(tasks):
    asker = Answers()
    told = recheck(Bench(skipped=[tasks[1].problem]), tasks, asker)
    assert told.skipped == {"it does not fit": 1}
    assert tasks[1].problem not in [problem for problem, _ in asker.heard]
    told = recheck(Bench(free_bytes=2 << 30), tasks, Answers())
    assert 0 < told.oversized < 6 and told.measured == 6 - told.oversized


def test_a_lost_device_ends_it_and_what_was_measured_is_kept(tasks, tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/kept.db") as store:
        bench = Bench(lost=[tasks[2].problem])
        with pytest.raises(NormtuneError, match="lost"):
            recheck(bench, tasks, Answers(), store=store)
        assert bench.closed == 1
        assert len(store.load().frame[["rows", "hidden"]].drop_duplicates()) == 2


def test_only_a_store_that_is_given_keeps_the_measurements(tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recheck(Bench(), tasks, Answers())
    assert list(tmp_path.iterdir()) == []
    with Store.open(f"sqlite:///{tmp_path}/kept.db") as store:
        asker = Answers()
        recheck(Bench(), tasks, asker, store=store)
        kept = store.load()
        (run,) = store.runs()
    assert {(one.problem, one.config) for one in kept.measurements()} == {
        (problem, config) for problem, outcomes in asker.heard for config in outcomes
    }
    assert (run.device, run.protocol["strategy"], run.protocol["regime"]) == (DEVICE, "adaptive", "cold")
    assert isinstance(kept.measurements()[0].config, Config)
