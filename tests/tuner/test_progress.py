"""Progress of a sweep: live in a terminal, as lines in a log, as JSON, or none."""

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from normtune.kernels.call import ImplementationLaunch
from normtune.kernels.config import COPY
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.records import Outcome
from normtune.tuner.compiling.ahead import Ahead
from normtune.tuner.device.engine import Phases
from normtune.tuner.plan.plan import Plan, Task, fitting, plan, problems
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.sweep import progress
from normtune.tuner.sweep.report import SweepResult, end_lines, fruitless_line, plan_lines
from normtune.tuner.sweep.summary import Best, Summary, best_of
from normtune.tuner.sweep.work import Backlog

TARGET = TARGETS["sm_90"]
FAST, SLOW, BROKEN = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))
LARGE, SMALL = (
    Problem.of("rms_norm_forward", 65536, 1024, "bfloat16"),
    Problem.of("rms_norm_forward", 1, 64, "bfloat16"),
)


def ok(*nanoseconds):
    return Outcome("ok", "", range(len(nanoseconds)), nanoseconds)


def backlog_of(chosen, known=0):
    return Backlog(chosen, chosen.tasks, known, len(chosen.jobs()))


def measured(shown, summary, problem, outcomes, left, seconds=1.0):
    """Tell of a problem that was measured; `left` others remain, of one config each."""
    best = summary.add(problem, outcomes)
    summary.total = summary.total or 1 + left
    one = Candidate(FAST, ImplementationLaunch(""))
    summary.expect([Task(problem._replace(rows=10_000 + other), (one,)) for other in range(left)])
    summary.left_seconds = seconds
    shown.measured("cuda:0", problem, best, [summary])


@pytest.fixture
def summary():
    found = Summary(known=3)
    found.add(
        LARGE, {FAST: ok(200, 220, 210), SLOW: ok(400), BROKEN: Outcome("wrong_result", "y is off"), COPY: ok(190)}
    )
    found.add(SMALL, {FAST: ok(20), SLOW: ok(10), BROKEN: Outcome("wrong_result", "y is off"), COPY: ok(5)})
    found.phases = Phases(1.0, 2.0, 3.0, {"void_rounds": 4, "worker_restarts": 5})
    found.seconds, found.starting_seconds = 6.5, 1.5
    return found


def test_a_summary_counts_and_compares_with_the_copy(summary):
    assert (summary.problems, summary.configs, summary.timings) == (2, 4, 8)
    assert summary.failures == {("wrong_result", "y is off"): 2}
    assert summary.near("rms_norm_forward", 16_000_000) == pytest.approx((190 / 210, 1))
    assert summary.near("rms_norm_forward") == pytest.approx(((190 / 210 * 5 / 10) ** 0.5, 2))
    assert summary.near("rms_norm_backward") is None


def test_the_best_of_a_problem_needs_a_time():
    assert best_of({FAST: ok(30), SLOW: ok(20, 50)}, None) == Best(FAST, 30, None)
    assert best_of({BROKEN: Outcome("crashed", "gone"), COPY: ok(5)}, 5) is None


def test_a_later_task_is_compared_with_the_copy_of_the_first():
    summary = Summary()
    assert summary.add(SMALL, {SLOW: ok(20), COPY: ok(9)}) == Best(SLOW, 20, 9 / 20)
    assert summary.add(SMALL, {SLOW: ok(20), FAST: ok(10)}) == Best(FAST, 10, 9 / 10)
    assert summary.measured == {SMALL: 9 / 10}


def test_the_end_tells_counts_seconds_failures_and_the_copy(summary):
    told = end_lines(summary, None)
    assert told == [
        "2 problems measured in 8.0 s, 3 were stored before: 4 configs timed; failures: 2",
        "  2 wrong_result: y is off",
        "5 times the process that uses the GPU was lost and started again",
        "best configs, of the speed of a copy of as many bytes: rms_norm_forward 90 % from 16 MB on, "
        "67 % over all sizes",
        "complete: `normtune fit` fits a table to these times",
    ]


@pytest.mark.parametrize(
    ("binaries", "told"), [(0, "nothing could be compiled for sm_90: all 3 binaries failed"), (1, "")]
)
def test_binaries_of_which_none_compiles_are_an_error(binaries, told):
    ahead = Ahead(Path("out"), "sm_90", binaries, 0, "", "", Counter({("compile_error", "no such thing"): 3}))
    assert fruitless_line(Summary(), ahead) == told


def test_the_end_and_json_tell_what_disturbed_the_gpu_and_what_to_do(summary):
    found = {
        "ecc_errors": "1 corrected and 0 uncorrected ECC errors",
        "other_processes": "2 other processes on the GPU",
    }
    summary.phases = summary.phases._replace(protocol={"warnings": found})
    lines = [line for line in end_lines(summary, None) if line.startswith("warning: ")]
    assert [line.split(": ")[1] for line in lines] == [found["other_processes"], found["ecc_errors"]]
    assert all(line.split(": ", 2)[2] for line in lines)
    told = summary.to_plain()["warnings"]
    assert [(one["name"], one["found"]) for one in told] == [
        (name, found[name]) for name in sorted(found, reverse=True)
    ]
    assert [f"warning: {one['found']}: {one['advice']}" for one in told] == lines


def test_of_many_reasons_the_most_frequent_are_told_and_the_rest_is_counted(summary):
    summary.failures = Counter({("crashed", f"reason {number}\x1b[2J"): 20 - number for number in range(8)})
    lines = [line for line in end_lines(summary, None) if line.startswith("  ")]
    assert len(lines) == 6 and lines[0] == "  20 crashed: reason 0\N{REPLACEMENT CHARACTER}[2J"
    assert lines[-1] == f"  {15 + 14 + 13} for 3 other reasons"


def test_a_spent_budget_says_what_the_rest_takes(summary):
    summary.left, summary.left_seconds = 120, 40.2
    assert end_lines(summary, 60.0)[-1] == (
        "the budget ended with 120 problems left: about 40 s more; the same command continues. `normtune fit` makes a "
        "table of the measured ones"
    )
    summary.left, summary.left_seconds = 1, 400.0
    assert "with 1 problem left: about 6.7 minutes more" in end_lines(summary, 60.0)[-1]
    summary.left_seconds = None
    assert "with 1 problem left; the same command continues" in end_lines(summary, 60.0)[-1]


def test_the_plan_says_what_it_leaves_out():
    wanted = problems(["rms_norm_forward"], ["bfloat16"], [(1, 64), (4096, 1024), (65536, 4096)])
    chosen = fitting(plan(wanted, "portfolio", TARGET), 4 << 30)
    count, left_out = plan_lines(backlog_of(chosen, known=5))
    assert count.startswith(f"2 problems, {chosen.cells()} configs to time (")
    assert count.endswith("; 5 more problems are stored already")
    assert left_out == (
        f"left out: {chosen.pruned['only in the default space']} configs that only the effort default "
        "has; 1 problems that do not fit into the free memory (the largest that does: rms_norm_forward bfloat16 "
        "4096 x 1024)"
    )


def test_a_log_gets_a_line_for_each_tenth(capsys):
    shown, summary = progress.Lines(), Summary()
    shown.planned(backlog_of(Plan((), {})))
    capsys.readouterr()
    for number in range(40):
        problem = SMALL._replace(rows=1 + number)
        measured(shown, summary, problem, {FAST: ok(2000), COPY: ok(1500)}, left=39 - number)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [f"{10 * tenth}" for tenth in range(1, 11)]
    assert "4 of 40 problems begun" in lines[0] and "about 1.0 s left" in lines[0]
    assert lines[0].endswith("rms_norm_forward bfloat16 4 x 64: row warps=1 in 2.0 us, 75 % of the copy's speed")
    assert "left" not in lines[-1]


def test_a_search_that_finds_more_to_do_does_not_go_back():
    summary = Summary(total=2)
    one, other = Candidate(FAST, ImplementationLaunch("")), Candidate(SLOW, ImplementationLaunch(""))
    shares = []
    for problem, pending in [
        (SMALL, [Task(LARGE, (one, other)), Task(SMALL, (one,))]),
        (LARGE, [Task(SMALL, (one, other))]),
        (SMALL, [Task(SMALL, (one, other)), Task(LARGE, (one, other))]),
        (SMALL, []),
    ]:
        summary.add(problem, {FAST: ok(20), BROKEN: Outcome("crashed", "gone"), COPY: ok(5)})
        summary.expect(pending)
        shares.append((summary.share, summary.left, summary.done))
    assert shares == [
        (2 / 5, 2, 1),
        (4 / 6, 1, 2),
        (4 / 6, 2, 2),
        (1.0, 0, 2),
    ]


def test_a_log_hears_of_slow_compiles_and_slow_problems(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown, summary = progress.Lines(), Summary()
    shown.planned(backlog_of(Plan((), {})))
    capsys.readouterr()
    for second in range(100):
        now[0] = float(second)
        shown.compiling(second, 100)
    assert capsys.readouterr().out.splitlines() == [f"compiled {second} of 100 binaries" for second in (31, 62, 93)]
    for second in range(100, 200):
        now[0] = float(second)
        shown.compiling(100, 100)
        measured(shown, summary, SMALL, {FAST: ok(2000)}, left=300)
    assert 3 <= len(capsys.readouterr().out.splitlines()) <= 4


def test_a_reader_who_left_does_not_disturb_the_compilers_thread(monkeypatch):
    def gone(*_, **__):
        raise BrokenPipeError

    shown = progress.Lines()
    monkeypatch.setattr("builtins.print", gone)
    monkeypatch.setattr(progress.time, "monotonic", lambda: 1e9)
    shown.compiling(1, 2)
    with pytest.raises(BrokenPipeError):
        shown.say("this one is heard of")


@pytest.mark.parametrize("columns", [72, 80, 120])
def test_the_screen_names_the_gpu_and_fits_its_width(columns):
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, height=20)
    summary = Summary()
    with progress.Screen(console) as shown:
        shown.title = "NVIDIA GeForce RTX 5060 Ti Laptop GPU"
        shown.planned(backlog_of(plan(problems([], ["bfloat16"], [(1, 64)]), "portfolio", TARGET)))
        shown.compiling(30, 200)
        measured(shown, summary, SMALL, {FAST: ok(2000), COPY: ok(1500)}, left=375, seconds=100.0)
    plain = Console(file=io.StringIO(), width=columns)
    plain.print(shown._renderable())
    lines = plain.file.getvalue().splitlines()
    assert len(lines) == 3 and "NVIDIA" in lines[0] and "1 of 376" in lines[0] and lines[0].rstrip().endswith("left")
    assert "30 of 200 binaries" in lines[1] and "1 x 64" in lines[2]


@pytest.mark.parametrize(
    ("terminal", "kind", "quiet", "expected"),
    [
        (True, "xterm-256color", False, progress.Screen),
        (True, "dumb", False, progress.Lines),
        (True, "", False, progress.Lines),
        (False, "xterm-256color", False, progress.Lines),
        (True, "xterm-256color", True, progress.Silent),
    ],
)
def test_who_can_redraw_gets_the_screen(monkeypatch, terminal, kind, quiet, expected):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("TERM", kind)
    assert type(progress.choose_display(quiet)) is expected


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress.Screen(console) as shown:
        shown.title = "NVIDIA H200"
        shown.planned(backlog_of(Plan((), {})))
        measured(shown, Summary(), SMALL, {FAST: ok(2000)}, left=3)
    assert "1 of 4" in console.file.getvalue() and "\x1b[3" not in console.file.getvalue()


def test_what_is_silent_says_nothing(capsys):
    shown = progress.Silent()
    with shown:
        shown.say("a line")
        shown.planned(backlog_of(Plan((), {})))
        shown.compiling(1, 2)
        measured(shown, Summary(), SMALL, {FAST: ok(2000)}, left=3)
    assert capsys.readouterr().out == ""


def test_json_holds_what_the_lines_tell(summary):
    from normtune.tuner.device.unopened import absent_gpu

    backlog = backlog_of(plan(problems([], ["bfloat16"], [(1, 64)]), "portfolio", TARGET))
    told = SweepResult(absent_gpu("cold").device, summary, backlog).to_plain()
    assert told["plan"]["problems"] == 2
    assert told["sweep"]["left_seconds"] is None
    assert told["sweep"]["failures"] == [{"status": "wrong_result", "reason": "y is off", "configs": 2}]
    assert told["sweep"]["seconds"] == {"wall": 8.0, "starting": 1.5, "compile": 1.0, "gate": 2.0, "timing": 3.0}
    assert told["sweep"]["of_copy"] == {"rms_norm_forward": {"all": 0.6726, "large": 0.9048}}
