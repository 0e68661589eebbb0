"""One sweep on several devices: each problem on one of them, everything once, and a lost device costs nothing."""

import json
import math

import pytest

from normtune.errors import NormtuneError
from normtune.results.database.store import Store
from normtune.results.records import Outcome
from normtune.tests.commands import succeed
from normtune.tests.tuner.benches import DEVICE, MadeUp, sweep, sweep_on, work_on
from normtune.tests.tuner.made_up_recording import recorded_plan
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.device import limits
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import DeviceGoneError, SkippedError
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import Exhaustive, all_rounds
from normtune.tuner.search.plane.plane import Plane
from normtune.tuner.sweep import devices, loop
from normtune.tuner.sweep.report import end_lines
from normtune.tuner.sweep.spread import CONFIGS, SharedSample


class Numbered(MadeUp):
    """A made-up GPU with a number. It is slower by a factor, prefers some warps, and is lost after so many tasks."""

    def __init__(self, number, factor=1.0, warps=1, tasks=math.inf, delay=0.01):
        super().__init__(delay=delay)
        self.name, self.device = f"cuda:{number}", DEVICE._replace(uuid=f"GPU-{number}")
        self.factor, self.warps, self.tasks = factor, warps, tasks
        self.closed, self.is_lost = 0, False

    def measure(self, task, race):
        if len(self.measured) >= self.tasks:
            self.is_lost = True
            raise DeviceGoneError("lost 3 times in a row")
        return super().measure(task, race)

    def block(self, configs):
        return {c: [round(self.factor * (1000 if c.num_warps == self.warps else 1100))] * 2 for c in configs}

    def close(self):
        self.closed += 1
        return super().close()


def rows(store, *, but=()):
    """Problem, config, number of samples and device of each measurement, without those of some problems."""
    frame, uuids = store.load().frame, {run.id: run.device.uuid for run in store.runs()}
    columns = ["operator", "rows", "hidden", "config", "samples", "run"]
    found = frame[columns].itertuples(index=False)
    return sorted((o, r, h, c, len(s), uuids[run]) for o, r, h, c, s, run in found if (o, r, h) not in but)


def shapes(tasks):
    return sorted((task.problem.operator, *task.problem.shape) for task in tasks)


@pytest.mark.parametrize("strategy", [Adaptive, Exhaustive, Plane])
def test_devices_share_the_problems_and_none_is_measured_twice(store, small_plan, strategy):
    benches = [Numbered(number) for number in range(3)]
    summary = sweep_on(benches, store, small_plan, strategy)
    assert (summary.problems, summary.left, summary.lost) == (8, 0, {})
    shared = benches[0].measured[-summary.spread.problems :]
    assert len(shared) == 8 and all(bench.measured[-8:] == shared for bench in benches)
    owners = [{task.problem for task in bench.measured[:-8]} for bench in benches]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 8 and all(owners)
    assert sorted(run.device.uuid for run in store.runs()) == ["GPU-0", "GPU-1", "GPU-2"]
    # Of the shared problems, a device measured its own twice, in other rounds.
    assert all(len(set(one.tolist())) == len(one) for one in store.load().frame["rounds"])
    again = Numbered(7)
    assert sweep(again, store, small_plan, strategy).known == 8 and not again.measured


def test_the_times_are_those_of_one_device(tmp_path, store, small_plan):
    sweep(Numbered(0), store, small_plan, Exhaustive)
    with Store.open(f"sqlite:///{tmp_path}/two.db") as both:
        # Without the shared sample, whose budget is over: what is left is the same, in any order.
        sweep_on([Numbered(0), Numbered(1)], both, small_plan, Exhaustive, 1e6)
        one = {row[:4] for row in rows(store)}
        assert {row[:4] for row in rows(both)} == one


def test_the_spread_of_gpus_is_told(store, small_plan):
    benches = [Numbered(0), Numbered(1, factor=1.05, warps=2)]
    summary = sweep_on(benches, store, small_plan, Exhaustive)
    assert summary.spread.line() in end_lines(summary, None)
    assert (summary.spread.problems, [*summary.spread.ratios]) == (8, ["cuda:0", "cuda:1"])
    assert summary.spread.ratios["cuda:0"] == 1.0 < summary.spread.ratios["cuda:1"] and summary.spread.loss > 0
    assert summary.to_plain()["spread"]["problems"] == 8
    assert sweep(Numbered(2), store, small_plan, Exhaustive).spread is None


def test_the_spread_is_the_ratio_of_times_and_what_the_best_config_of_one_loses(small_plan):
    sample = SharedSample()
    task = max(small_plan.tasks, key=lambda task: len(task.candidates))
    configs = [candidate.config for candidate in task.candidates][:CONFIGS]
    task = task._replace(candidates=task.candidates[: len(configs)])

    def outcomes(times):
        return {c: Outcome("ok", "", range(4), [t] * 4) for c, t in zip(configs, times, strict=True)}

    most = [2000] * (len(configs) - 2)
    sample.add_measured(task, outcomes([1000, 1100, *most]))
    assert sample.tasks() == [task] and sample.spread() is None
    sample.add_shared("cuda:0", task, outcomes([1000, 1100, *most]))
    assert sample.spread() is None
    sample.add_shared("cuda:1", task, outcomes([1122, 1020, *(2040 for _ in most)]))
    spread = sample.spread()
    assert (spread.problems, spread.ratios) == (1, {"cuda:0": 1.0, "cuda:1": pytest.approx(1.02)})
    assert spread.loss == pytest.approx(math.log(1.1))
    assert spread.line() == (
        "2 GPUs of one model at 1 problems: the slowest, cuda:1, takes 2.0 % longer than the fastest, and the best "
        "configs of one lose 10.0 % on another: no table for all of them can promise less"
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("strategy", [Adaptive, Plane])
@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_the_work_of_a_lost_device_goes_to_the_others(store, small_plan, strategy, tasks):
    benches = [Numbered(0), Numbered(1, tasks=tasks)]
    summary = sweep_on(benches, store, small_plan, strategy)
    assert (summary.problems, summary.left) == (8, 0)
    assert summary.lost == {"cuda:1": "lost 3 times in a row"} and summary.to_plain()["devices_lost"] == summary.lost
    assert "left out: cuda:1, lost 3 times in a row" in end_lines(summary, None)
    assert {problem for problem, _ in store.coverage(DEVICE)} == {task.problem for task in small_plan.tasks}
    assert [bench.closed for bench in benches] == [1, 1]


def test_without_any_device_left_the_sweep_fails_and_what_was_measured_is_stored(store, small_plan):
    benches = [Numbered(0, tasks=2), Numbered(1, tasks=1)]
    with pytest.raises(DeviceGoneError, match="lost 3 times"):
        sweep_on(benches, store, small_plan, Adaptive)
    assert len({problem for problem, _ in store.coverage(DEVICE)}) == 3
    assert [bench.closed for bench in benches] == [1, 1]
    assert sweep(Numbered(2), store, small_plan, Adaptive).known == 3


def test_a_problem_that_one_device_skips_is_left(store, small_plan):
    class Full(Numbered):
        def measure(self, task, race):
            if task.problem == small_plan.tasks[0].problem:
                raise SkippedError("out of memory")
            return super().measure(task, race)

    summary = sweep_on([Full(0), Full(1)], store, small_plan, Adaptive)
    assert (summary.problems, dict(summary.skipped)) == (7, {"out of memory": 1})


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_ends_all_devices_and_keeps_what_was_measured(store, small_plan, error):
    class Interrupted(Numbered):
        def measure(self, task, race):
            if len(self.measured) == 1:
                raise error
            return super().measure(task, race)

    benches = [Numbered(0), Interrupted(1)]
    with pytest.raises(error):
        sweep_on(benches, store, small_plan, Adaptive)
    stored = {problem for problem, _ in store.coverage(DEVICE)}
    assert stored and stored <= {task.problem for bench in benches for task in bench.measured}
    assert [bench.closed for bench in benches] == [1, 1]


def test_unlike_gpus_have_data_and_searches_of_their_own(store, small_plan):
    other = Numbered(1)
    other.device = DEVICE._replace(name="Other", uuid="GPU-1")
    benches, strategies = (Numbered(0), other), (Adaptive, Exhaustive)
    works = [work_on(bench, store, small_plan, one) for bench, one in zip(benches, strategies, strict=True)]
    loop.measure([(work, [bench]) for work, bench in zip(works, benches, strict=True)], store)
    first, second = (work.summary for work in works)
    assert (first.problems, second.problems, first.spread, second.spread) == (8, 8, None, None)
    assert {run.device.label: run.protocol["strategy"] for run in store.runs()} == {
        "Made Up": "adaptive",
        "Other": "exhaustive",
    }
    for device in (DEVICE, other.device):
        assert {problem for problem, _ in store.coverage(device)} == {task.problem for task in small_plan.tasks}


class Arriving:
    """Devices that join once so many problems were measured by those that are there; it hears how many are wanted."""

    def __init__(self, *arrivals, there=()):
        self.arrivals, self.there, self.wanted = list(arrivals), there, []

    def new_devices(self):
        done = sum(len(bench.measured) for bench in self.there)
        arrived = [bench for problems, bench in self.arrivals if problems <= done]
        self.arrivals = [each for each in self.arrivals if each[1] not in arrived]
        return arrived

    def request(self, devices):
        self.wanted.append(devices)


@pytest.fixture
def at_once(monkeypatch):
    """Devices that join are looked for at every turn."""
    monkeypatch.setattr(loop, "JOINING_SECONDS", 0.01)


def test_a_device_that_joins_takes_problems_that_nobody_began(store, small_plan, at_once):
    first, second = Numbered(0), Numbered(1)
    arriving = Arriving((1, second), there=[first])
    summary = sweep_on([first], store, small_plan, Exhaustive, joining=arriving)
    assert (summary.problems, summary.left) == (8, 0)
    assert first.measured and second.measured and second.closed == 1
    assert arriving.wanted[0] == 8 and sorted(arriving.wanted, reverse=True) == arriving.wanted


def test_a_device_of_another_kind_that_joins_has_a_search_of_its_own(store, small_plan, at_once):
    first, other = Numbered(0), Numbered(1)
    other.device = DEVICE._replace(name="Other", uuid="GPU-1")
    arriving = Arriving((1, other), there=[first])
    works = []

    def work_of(bench):
        works.append(work_on(bench, store, small_plan, Exhaustive))
        return works[-1]

    work = work_on(first, store, small_plan, Adaptive)
    loop.measure([(work, [first])], store, 1000.0, joining=arriving, work_of=work_of)
    assert [one.summary.problems for one in (work, *works)] == [8, 8]
    assert {problem for problem, _ in store.coverage(other.device)} == {task.problem for task in small_plan.tasks}


def test_a_search_without_any_device_goes_on_with_the_next_one(store, small_plan, at_once):
    lost, back = Numbered(0, tasks=3), Numbered(0)

    class Back(Arriving):
        def new_devices(self):
            return super().new_devices() if lost.is_lost else []

    arriving = Back((3, back), there=[lost])
    summary = sweep_on([lost], store, small_plan, Adaptive, joining=arriving)
    assert (summary.problems, summary.left, summary.lost) == (8, 0, {})
    assert [bench.closed for bench in (lost, back)] == [1, 1]
    assert not {task.problem for task in lost.measured} & {task.problem for task in back.measured[:5]}


def test_a_search_whose_devices_do_not_come_back_fails_and_what_was_measured_is_stored(
    store, small_plan, at_once, monkeypatch
):
    monkeypatch.setattr(loop, "REJOIN_SECONDS", 0.05)
    lost = Numbered(0, tasks=3)
    with pytest.raises(DeviceGoneError, match="lost 3 times"):
        sweep_on([lost], store, small_plan, Adaptive, joining=Arriving())
    assert len({problem for problem, _ in store.coverage(DEVICE)}) == 3


def test_a_device_that_is_lost_before_the_first_task_is_left_out(store, small_plan):
    class Gone(Numbered):
        def examine(self, tasks):
            raise DeviceGoneError("its actor is lost")

    summary = sweep_on([Gone(0), Numbered(1)], store, small_plan, Adaptive)
    assert (summary.problems, summary.lost) == (8, {"cuda:0": "its actor is lost"})


def test_gpus_of_one_name_with_other_limits_are_refused(monkeypatch):
    gpus = [
        {"uuid": f"GPU-{index}", "power_watts": watts, "most_mhz": 1980} for index, watts in enumerate((700, 700, 500))
    ]
    monkeypatch.setattr(limits, "facts_in_child", lambda facts_of, seconds: {"gpus": gpus})
    devices.check_limits([Numbered(0), Numbered(1)])
    with pytest.raises(NormtuneError, match=r"cuda:1 128 GiB, 700 W, 1980 MHz; cuda:2 128 GiB, 500 W, 1980 MHz"):
        devices.check_limits([Numbered(0), Numbered(1), Numbered(2)])
    monkeypatch.setattr(limits, "facts_in_child", lambda facts_of, seconds: {"missing": "no NVML"})
    devices.check_limits([Numbered(0), Numbered(2)])


@pytest.mark.slow
def test_two_recordings_are_replayed_at_once(tmp_path):
    chosen = ("--shapes", "1,512x256,4096", "--store", tmp_path / "two.db")
    told = succeed("sweep", "--device", "replay:nvidia-h200,replay:nvidia-h200", *chosen)
    assert told.startswith("2 x replay of the recorded sweep of NVIDIA H200")
    assert "8 problems measured" in told and "2 GPUs of one model at 8 problems" in told
    plain = json.loads(succeed("sweep", "--device", "replay:nvidia-h200", "--json", *chosen))
    assert plain["sweep"]["problems_known"] == 8


@pytest.mark.slow
def test_devices_in_processes_are_busy_at_the_same_time(store):
    opener = "normtune.tests.tuner.made_up_recording", "slow_engine", ()
    whole = recorded_plan()
    benches = [Bench(opener, name=f"made-up:{number}") for number in range(2)]
    for bench in benches:
        bench.open()
    summary = sweep_on(benches, store, whole._replace(tasks=whole.tasks[:12]), Adaptive)
    assert (summary.problems, summary.left, summary.spread.problems) == (12, 0, 8)
    assert summary.spread.loss == summary.spread.ratios["made-up:1"] - 1 == 0


@pytest.mark.long
def test_a_binary_passes_the_gate_once_for_like_devices():
    gates = []

    class Counting(Bench):
        def ask_twice(self, step, *arguments, seconds=None):
            if step == "gate":
                gates.append(arguments[1].launch)
            return super().ask_twice(step, *arguments, seconds=seconds)

    compilers, (task, *_) = Compilers(), recorded_plan().tasks
    benches = [Counting(("normtune.tests.tuner.made_up_recording", "engine", ()), compilers) for _ in range(2)]
    outcomes = [bench.measure(task, all_rounds(task)) for bench in benches]
    assert outcomes[0].keys() == outcomes[1].keys() and len(gates) == len(task.candidates) > 2
    for bench in benches:
        bench.close()
