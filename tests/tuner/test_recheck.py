"""The measurements of a check: wanted probes, within the budget, stored only if a store is given."""

import math
from functools import partial

import pytest

from normtune.errors import NormtuneError
from normtune.kernels.config import COPY, Config
from normtune.results.database.store import Store
from normtune.tests.tuner.benches import DEVICE, TARGET, MadeUp
from normtune.tuner.checking import recheck
from normtune.tuner.checking.session import ProbeRequest
from normtune.tuner.device.engine import SkippedError
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.sweep import loop

SHAPES = [(rows, hidden) for hidden in (64, 4096) for rows in (1, 64, 4096)]
TASKS = plan(problems(["rms_norm_forward"], ["bfloat16"], SHAPES), "portfolio", TARGET).tasks


class Clock:
    """Seconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench(MadeUp):
    """A bench on which a problem takes 10 s; more warps, slower."""

    def __init__(self, free_bytes=None, late=(), ready_at=math.inf, skipped=(), lost=()):
        super().__init__()
        self.clock, self.free_bytes = Clock(), free_bytes
        self.late, self.skipped, self.lost = set(late), set(skipped), set(lost)
        self.ready_at, self.prepared, self.closed = ready_at, [], 0

    def prepare(self, tasks, on_progress=None):
        self.prepared.append([task.problem for task in tasks])

    def compiled(self, task, seconds=None):
        if task.problem not in self.late:
            return True
        self.clock.now += seconds
        return self.clock.now >= self.ready_at

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


class Session:
    """Wants so many results, of a probe for each task."""

    def __init__(self, most=100):
        self.most, self.heard = most, []
        self.probes = tuple(
            ProbeRequest(0, task.problem, task.configs[0], tuple(task.configs[1:]), 0, False) for task in TASKS
        )

    def wants(self, probe):
        return len(self.heard) < self.most

    def learn(self, probe, config, outcomes):
        self.heard.append((probe.problem, outcomes))


@pytest.fixture
def measure(monkeypatch):
    """Measures with the clock of the bench."""

    def measured(bench, session, seconds=None, store=None):
        monkeypatch.setattr(recheck, "measure_work", partial(loop.measure, clock=bench.clock))
        return recheck.measure(session, bench, seconds, store).summary

    return measured


def test_probes_are_measured_in_order_and_what_came_of_them_is_heard(measure):
    bench, session = Bench(), Session()
    told = measure(bench, session)
    wanted = [probe.problem for probe in session.probes]
    assert [task.problem for task in bench.measured] == [problem for problem, _ in session.heard] == wanted
    assert bench.prepared == [wanted[begun:] for begun in range(7)]
    assert (len(told.measured), told.left, told.skipped) == (6, 0, {})
    assert told.timings == sum(len(o.nanoseconds) for _, found in session.heard for o in found.values()) > 6 * 6
    assert set(session.heard[0][1]) == {COPY, *TASKS[0].configs}
    assert bench.closed == 1


def test_what_is_no_longer_wanted_is_not_measured(measure):
    bench = Bench()
    told = measure(bench, Session(2))
    assert (len(told.measured), told.left, len(bench.measured)) == (2, 0, 2)


def test_what_is_wanted_later_is_measured_later(measure):
    class Second(Session):
        """Wants its first probe only after all others."""

        def wants(self, probe):
            return probe is not self.probes[0] or len(self.heard) == 5

    bench, session = Bench(), Second()
    told = measure(bench, session)
    assert bench.measured[-1].problem == session.probes[0].problem and (len(told.measured), told.left) == (6, 0)


def test_nothing_is_begun_that_would_end_too_late(measure):
    told = measure(Bench(), Session(), 35.0)
    # 10 s each, with a fifth for caution: after 20 s another would end at 32, after 30 at 42.
    assert (len(told.measured), told.left, told.seconds) == (3, 3, 30.0)


def test_a_budget_of_nothing_measures_nothing(measure):
    bench = Bench()
    assert measure(bench, Session(), 0.1).left == 6
    assert (bench.measured, bench.closed) == ([], 1)


def test_what_is_compiled_already_comes_first_and_the_last_is_waited_for(measure):
    first = TASKS[0].problem
    bench = Bench(late=[first])
    told = measure(bench, Session(), 100.0)
    assert first not in [task.problem for task in bench.measured] and len(bench.measured) == 5
    # A second is for closing the device.
    assert bench.clock.now == pytest.approx(100 - 1 - 12, abs=0.02)
    assert told.left == 1
    bench = Bench(late=[first], ready_at=70)
    measure(bench, Session())
    assert bench.measured[-1].problem == first


def test_what_cannot_be_measured_is_told(measure):
    session = Session()
    told = measure(Bench(skipped=[TASKS[1].problem]), session)
    assert told.skipped == {"it does not fit": 1} and (len(told.measured), told.left) == (5, 0)
    assert TASKS[1].problem not in [problem for problem, _ in session.heard]
    work = recheck.measure(Session(), Bench(free_bytes=2 << 30), None)
    oversized = work.backlog.plan.oversized
    assert 0 < len(oversized) < 6 and len(work.summary.measured) == 6 - len(oversized)


def test_a_lost_device_ends_it_and_what_was_measured_is_kept(measure, tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/kept.db") as store:
        bench = Bench(lost=[TASKS[2].problem])
        with pytest.raises(NormtuneError, match="lost"):
            measure(bench, Session(), store=store)
        assert bench.closed == 1
        assert len(store.load().frame[["rows", "hidden"]].drop_duplicates()) == 2


def test_only_a_store_that_is_given_keeps_the_measurements(measure, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("here", "temporary")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    monkeypatch.setattr("tempfile.tempdir", str(folders[1]))
    measure(Bench(), Session())
    assert [[*folder.iterdir()] for folder in folders] == [[], []]
    with Store.open(f"sqlite:///{tmp_path}/kept.db") as store:
        session = Session()
        measure(Bench(), session, store=store)
        kept = store.load()
        (run,) = store.runs()
    assert {(one.problem, one.config) for one in kept.measurements()} == {
        (problem, config) for problem, outcomes in session.heard for config in outcomes
    }
    assert (run.device, run.protocol["strategy"], run.protocol["regime"]) == (DEVICE, "adaptive", "cold")
    assert isinstance(kept.measurements()[0].config, Config)
