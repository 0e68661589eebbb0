"""Sweeps on a made-up GPU: stored, resumed, remaining and repeated measurements."""

import re
import signal
import subprocess
import sys

import pytest

from normtune.kernels.config import COPY
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.results.database.store import Store
from normtune.results.records import Outcome
from normtune.tests.commands import PATIENCE, wait_until
from normtune.tests.tuner.benches import DEVICE, TARGET, MadeUp, search_of, sweep
from normtune.tuner.device.engine import SkippedError
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.plan.resume import stale_plan
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import Exhaustive
from normtune.tuner.sweep.pace import Pace
from normtune.tuner.sweep.report import end_lines, fruitless_line


@pytest.fixture
def other(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/other.db") as opened:
        yield opened


def test_everything_planned_is_stored_with_its_copy(store, small_plan):
    summary = sweep(MadeUp(), store, small_plan, Adaptive)
    assert (summary.problems, summary.known, summary.left) == (8, 0, 0)
    frame = store.load().frame
    assert len(frame) == small_plan.cells() + 8
    assert set(frame["status"]) == {"ok"}
    assert (frame["config"] == COPY.to_json()).sum() == 8
    (run,) = store.runs()
    told = {"strategy": "adaptive", "regime": "cold", "sm_clock_mhz": [1, 2, 3]}
    told["seconds"] = {"compile": 0.0, "gate": 0.0, "timing": 1.0}
    assert told.items() <= run.protocol.items()


@pytest.mark.long
def test_the_same_sweep_again_has_nothing_to_do(store, small_plan):
    sweep(MadeUp(), store, small_plan, Adaptive)
    bench = MadeUp()
    summary = sweep(bench, store, small_plan, Adaptive)
    assert (summary.problems, summary.known, bench.measured) == (0, 8, [])
    assert len(store.runs()) == 1


@pytest.mark.long
def test_a_wider_sweep_measures_what_is_new_beside_the_incumbent(store, small_plan):
    narrow = plan([task.problem for task in small_plan.tasks], "default", TARGET)
    narrow = narrow._replace(tasks=tuple(t._replace(candidates=t.candidates[1:]) for t in narrow.tasks))
    sweep(MadeUp(), store, narrow, Adaptive)
    bench = MadeUp()
    sweep(bench, store, small_plan, Adaptive)
    assert len(bench.measured) == 8
    for task in bench.measured:
        whole = next(t for t in small_plan.tasks if t.problem == task.problem)
        anchor = min(whole.candidates[1:], key=lambda c: (c.config.num_warps, c))
        assert set(task.candidates) == {whole.candidates[0], anchor}


@pytest.mark.long
def test_exhaustive_goes_on_where_adaptive_stopped(store, small_plan):
    sweep(MadeUp(), store, small_plan, Adaptive)
    bench = MadeUp()
    sweep(bench, store, small_plan, Exhaustive)
    assert bench.measured
    coverage = store.coverage(DEVICE)
    cells = [(task.problem, c.config) for task in small_plan.tasks for c in task.candidates]
    assert min(coverage[cell].samples for cell in cells) >= 16
    assert sweep(MadeUp(), store, small_plan, Exhaustive).problems == 0


def test_a_failure_is_stored_with_its_reason_and_not_tried_again(store, small_plan):
    bad = small_plan.tasks[0].candidates[0].config
    sweep(MadeUp({bad: Outcome("compile_error", "no such thing")}), store, small_plan, Adaptive)
    frame = store.load().frame
    failed = frame[frame["status"] != "ok"]
    assert set(failed["status"]) == {"compile_error"} and set(failed["reason"]) == {"no such thing"}
    assert all(len(samples) == 0 for samples in failed["samples"])
    assert sweep(MadeUp(), store, small_plan, Adaptive).problems == 0


class Clocked(MadeUp):
    """A bench on which a config takes `each` seconds, on a clock of its own."""

    def __init__(self, each=1.0, compiling=0.0):
        super().__init__()
        self.now = 0.0
        self.each = each
        self.compiling = compiling
        self.closed = 0

    def clock(self):
        return self.now

    def compiled(self, task, seconds=None):
        if seconds is None or seconds >= self.compiling:
            self.now += self.compiling
            self.compiling = 0.0
            return True
        self.now += seconds
        self.compiling -= seconds
        return False

    def measure(self, task, race):
        self.now += self.each * len(task.candidates)
        return super().measure(task, race)

    def close(self):
        self.closed += 1
        return super().close()


def swept(bench, store, chosen, budget=None):
    return sweep(bench, store, chosen, Adaptive, budget, clock=bench.clock)


@pytest.mark.long
@pytest.mark.parametrize("each", [0.5, 1.0, 3.0])
def test_the_budget_is_used_and_kept_and_the_end_says_what_is_left(store, other, small_plan, each):
    undisturbed = Clocked(each)
    assert swept(undisturbed, other, small_plan).left == 0
    whole = undisturbed.now
    bench = Clocked(each)
    summary = swept(bench, store, small_plan, budget=0.6 * whole)
    assert 0 < summary.problems < 8 and summary.problems + summary.left == 8
    assert 0.3 * whole < bench.now < 0.6 * whole
    assert summary.left_seconds == pytest.approx(whole - bench.now, rel=0.2)
    frame = store.load().frame
    assert len(frame[["operator", "rows", "hidden"]].drop_duplicates()) == summary.problems
    rest = swept(Clocked(each), store, small_plan)
    assert (rest.problems, rest.known, rest.left) == (summary.left, summary.problems, 0)


def test_nothing_is_said_of_the_time_left_before_the_third_problem(small_plan):
    pace, tasks = Pace(), small_plan.tasks
    for task in (tasks[0], tasks[0], tasks[1]):
        pace.measured(task, 10.0)
        assert pace.left_seconds(tasks) is None
    pace.measured(tasks[2], 10.0)
    assert pace.left_seconds(tasks) > 0


def test_what_is_left_follows_what_the_other_problems_took_in_all(small_plan):
    """A search may ask for a problem more often than it expected."""
    tasks = small_plan.tasks
    pace = Pace()
    for task in tasks[:4]:
        for _ in range(3):
            pace.measured(task, 1.0 * len(task.candidates))
    assert pace.left_seconds(tasks[4:]) == pytest.approx(3.0 * sum(len(task.candidates) for task in tasks[4:]))


def test_what_is_left_of_an_operator_follows_its_own_times():
    """One that takes 40 times as long says nothing of another, but of one without any."""
    names = ["rms_norm_forward", "rms_norm_backward"]
    shapes = [(1, 64), (64, 64), (64, 128), (512, 128)]
    chosen = plan(problems(names, ["bfloat16"], shapes), "default", TARGET)
    pace = Pace()
    slow, fast = ([task for task in chosen.tasks if name == task.problem.operator] for name in names)
    for task in fast[:3]:
        pace.measured(task, len(task.candidates))
    assert pace.left_seconds(slow) == pytest.approx(sum(len(task.candidates) for task in slow))
    pace.measured(slow[0], 40 * len(slow[0].candidates))
    assert pace.left_seconds(slow[1:]) == pytest.approx(40 * sum(len(task.candidates) for task in slow[1:]))
    assert pace.left_seconds(fast[3:]) == pytest.approx(len(fast[3].candidates))


@pytest.mark.long
def test_a_task_begins_only_if_the_longest_so_far_would_end_in_time(store, small_plan):
    class Uneven(Clocked):
        """The first task loads kernels, and the third is a long one."""

        def measure(self, task, race):
            self.now += {0: 50.0, 2: 30.0}.get(len(self.measured), 1.0)
            return MadeUp.measure(self, task, race)

    bench = Uneven()
    summary = swept(bench, store, small_plan, budget=81.0 + 1.0 + 1.2 * 30.0 + 1.5)
    # 50 + 1 + 30 seconds, then one more second twice, until less than 1.2 times the longest is left.
    assert (summary.problems, bench.now) == (5, 83.0)


def test_a_wait_for_the_compiler_ends_with_the_budget(store, small_plan):
    bench = Clocked(compiling=100.0)
    summary = swept(bench, store, small_plan, budget=10.0)
    assert (summary.problems, summary.left) == (0, 8)
    assert 5 < bench.now <= 10
    assert store.runs() == [] and bench.closed


def test_a_budget_that_is_spent_before_the_start_stores_nothing(store, small_plan):
    bench = Clocked()
    summary = swept(bench, store, small_plan, budget=-3.0)
    assert (summary.problems, summary.left, bench.measured) == (0, 8, [])
    assert store.runs() == [] and bench.closed
    assert "nothing was stored" in end_lines(summary, 2.0)[0]


@pytest.mark.long
def test_binaries_are_compiled_in_the_order_of_coverage_and_nobody_waits_for_later_ones(store, small_plan):
    class Compiling(Clocked):
        order, done = [], 0

        def prepare(self, tasks, on_progress=None):
            self.order += [task.problem for task in tasks if task.problem not in self.order]

        def compiled(self, task, seconds=None):
            place = self.order.index(task.problem)
            if seconds != 0.0:
                self.done = max(self.done, place + 1)
            return place < self.done

    bench = Compiling()
    swept(bench, store, small_plan)
    assert [task.problem for task in bench.measured] == bench.order


@pytest.mark.long
def test_a_problem_that_cannot_be_measured_now_is_told_and_tried_by_the_next_sweep(store, small_plan):
    class Crowded(MadeUp):
        tried = 0

        def measure(self, task, race):
            if task.problem.rows == 64:
                self.tried += 1
                raise SkippedError("out of memory")
            return super().measure(task, race)

    bench = Crowded()
    summary = sweep(bench, store, small_plan, Adaptive)
    assert (summary.problems, summary.left, bench.tried) == (4, 0, 4)
    assert summary.skipped == {"out of memory": 4}
    assert "skipped 4 problems, which the next sweep tries again: out of memory" in end_lines(summary, None)
    assert set(store.load().frame["rows"]) == {1}
    assert sweep(MadeUp(), store, small_plan, Adaptive).problems == 4


def test_a_sweep_that_skips_everything_ends_and_stores_nothing(store, small_plan):
    class Full(MadeUp):
        def measure(self, task, race):
            raise SkippedError("out of memory")

    summary = sweep(Full(), store, small_plan, Adaptive)
    assert (summary.problems, summary.left, summary.skipped) == (0, 0, {"out of memory": 8})
    assert summary.is_fruitless and not [line for line in end_lines(summary, None) if "fit" in line]
    assert store.runs() == []


class Watching:
    """Progress that notes how many problems the store held when it was told of each."""

    def __init__(self, store):
        self.store, self.held = store, []

    def planned(self, backlog):
        pass

    def compiling(self, done, total):
        pass

    def measured(self, device, problem, best, summaries):
        (summary,) = summaries
        stored = {problem for problem, _ in self.store.coverage(DEVICE)}
        self.held.append((problem in stored, summary.done, summary.done + summary.left))


def test_progress_counts_a_problem_once_it_is_stored(store, small_plan):
    class Crowded(MadeUp):
        def measure(self, task, race):
            outcomes = super().measure(task, race)
            if len(self.measured) in (1, 4):
                raise SkippedError("out of memory")
            return outcomes

    watching = Watching(store)
    summary = sweep(Crowded(), store, small_plan, Adaptive, display=watching)
    assert [done for _, done, _ in watching.held] == list(range(1, 9)) and {total for *_, total in watching.held} == {8}
    assert [is_stored for is_stored, *_ in watching.held].count(False) == 2 == sum(summary.skipped.values())


def test_a_sweep_in_which_nothing_could_be_timed_is_no_success(store, small_plan):
    broken = {c.config: Outcome("wrong_result", "y is off") for task in small_plan.tasks for c in task.candidates}
    summary = sweep(MadeUp(broken), store, small_plan, Adaptive)
    assert (summary.problems, summary.failed, summary.left, summary.is_fruitless) == (0, 8, 0, True)
    told = end_lines(summary, None)
    assert re.match(r"0 problems measured in \S+ s, 8 others without a config that could be timed: 0 conf", told[0])
    assert not [line for line in told if "complete" in line or "fit" in line]
    assert fruitless_line(summary).startswith(
        "nothing could be timed at any of 8 problems, so there is no table to fit"
    )
    assert summary.to_plain()["problems_failed"] == 8
    again = sweep(MadeUp(), store, small_plan, Adaptive)
    assert (again.known, again.known_failed, again.is_fruitless, end_lines(again, None)) == (8, 8, True, [])


def test_problems_without_a_time_are_counted_apart(store, small_plan):
    (first, *_) = small_plan.tasks
    broken = {c.config: Outcome("crashed", "gone") for c in first.candidates}

    class Choosy(MadeUp):
        def measure(self, task, race):
            self.broken = broken if task.problem == first.problem else {}
            return super().measure(task, race)

    summary = sweep(Choosy(), store, small_plan, Adaptive)
    assert (summary.problems, summary.failed, summary.done, summary.is_fruitless) == (7, 1, 8, False)
    assert re.match(
        r"7 problems measured in \S+ s, 1 other without a config that could be timed: 90 c", end_lines(summary, None)[0]
    )
    again = sweep(MadeUp(), store, small_plan, Adaptive)
    assert end_lines(again, None) == [
        "nothing to do: all 8 problems are measured; 1 of them without a config that could be timed; "
        f"`normtune fit{store.option}` makes their table"
    ]


@pytest.mark.long
def test_stale_measures_again_what_was_stored_under_other_kernels(store, small_plan, monkeypatch):
    assert stale_plan(store.coverage(DEVICE), TARGET).tasks == ()
    sweep(MadeUp(), store, small_plan, Adaptive)
    assert stale_plan(store.coverage(DEVICE), TARGET).tasks == ()
    forward = operator("rms_norm_forward")
    for module in ("plan.resume", "sweep.run_writer"):
        monkeypatch.setattr(
            f"normtune.tuner.{module}.fingerprint", lambda spec: "sha256:new" if spec is forward else fingerprint(spec)
        )
    bench = MadeUp()
    chosen = stale_plan(store.coverage(bench.device), TARGET)
    assert {task.problem.operator for task in chosen.tasks} == {"rms_norm_forward"}
    assert sum(len(task.candidates) for task in chosen.tasks) == sum(
        len(task.candidates) for task in small_plan.tasks if task.problem.operator == "rms_norm_forward"
    )
    assert sweep(bench, store, chosen, Adaptive).problems == 4
    assert stale_plan(store.coverage(bench.device), TARGET).tasks == ()


@pytest.mark.long
def test_another_gpu_starts_from_nothing(store, small_plan):
    sweep(MadeUp(), store, small_plan, Adaptive)
    other = MadeUp()
    other.device = DEVICE._replace(name="Other")
    assert sweep(other, store, small_plan, Adaptive).problems == 8
    replayed = MadeUp()
    replayed.device = DEVICE._replace(uuid="replay:made-up")
    assert sweep(replayed, store, small_plan, Adaptive).problems == 8


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_sweep_keeps_whole_problems_and_resumes(tmp_path, small_plan, end):
    code = (
        "from normtune.results.database.store import Store\n"
        "from normtune.tests.tuner.benches import MadeUp, small_plan\n"
        "from normtune.tuner.search.adaptive import Adaptive\n"
        "from normtune.tests.tuner.benches import sweep\n"
        f"with Store.open('sqlite:///{tmp_path}/store.db') as opened:\n"
        "    print('ready', flush=True)\n"
        "    sweep(MadeUp(delay=1.0), opened, small_plan(), Adaptive)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout.readline() == b"ready\n"
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        wait_until(lambda: store.coverage(DEVICE))
    child.send_signal(end)
    assert child.wait(PATIENCE) != 0
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        frame = store.load().frame
        sizes = {task.problem.columns[:4]: len(task.candidates) + 1 for task in small_plan.tasks}
        found = frame.groupby(["operator", "rows", "hidden", "dtype"]).size()
        assert 0 < len(found) < 8
        assert all(sizes[name] == size for name, size in found.items())
        rest = sweep(MadeUp(), store, small_plan, Adaptive)
        assert (rest.known, rest.problems) == (len(found), 8 - len(found))


@pytest.mark.long
def test_what_may_have_failed_by_chance_is_measured_again_when_asked(store, small_plan):
    crashed, timeout, wrong = [c.config for c in small_plan.tasks[0].candidates[:3]]
    failures = {
        crashed: Outcome("crashed", "killed"),
        timeout: Outcome("timeout", "slept"),
        wrong: Outcome("wrong_result", "y is wrong"),
    }
    sweep(MadeUp(failures), store, small_plan, Adaptive)
    bench = MadeUp()
    assert sweep(bench, store, small_plan, Adaptive).problems == 0
    assert search_of(small_plan, Adaptive, store.coverage(DEVICE), retry_failed=True).pending()
    summary = sweep(bench, store, small_plan, Adaptive, retry_failed=True)
    asked = {c.config for task in bench.measured for c in task.candidates}
    assert summary.problems == 4 and {crashed, timeout} <= asked and wrong not in asked
    assert sweep(MadeUp(), store, small_plan, Adaptive, retry_failed=True).problems == 0
    newest = {config: known.status for (_, config), known in store.coverage(DEVICE).items()}
    assert (newest[crashed], newest[timeout], newest[wrong]) == ("ok", "ok", "wrong_result")
