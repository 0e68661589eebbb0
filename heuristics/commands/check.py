"""The command `check`: a table against its data and kernels, or, with a device, against that.

In: options. Out: verdicts on the terminal, an exit code. Only this module joins the checks (`session`, `verdict`) with
the measurements (`normtune.tuner`); all of it is imported when the command runs.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import NormtuneError, Terminated, UsageError
from normtune.results.terminal import say

if TYPE_CHECKING:
    from normtune.heuristics.checking.session import Course, Question
    from normtune.heuristics.checking.subject import Checked
    from normtune.kernels.config import Config
    from normtune.kernels.problem import Problem
    from normtune.results.database.store import Store
    from normtune.results.records import Device
    from normtune.tuner.device.open import Bench, Outcome
    from normtune.tuner.plan.plan import Task
    from normtune.tuner.recheck import Recheck

AMBIGUOUS_EXIT = 3
_BUDGET = "60s"
# Limits of the output, because somebody else may have written the table.
_MOST_LINES = 20
_MOST_CHARACTERS = 1000


def check(
    tables: Annotated[list[Path], typer.Argument(help="Files that `normtune fit` wrote.", show_default=False)],
    strict: Annotated[bool, typer.Option("--strict", help="Fail also if the kernels changed since.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fit nothing: check only edits, legality and kernels.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Measure whether the tables still fit this GPU, cuda:N, or replay:NAME."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"With --device: time per table, 30s or 2m. Default: {_BUDGET}."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="With --device: another number draws other shapes. Default: 0."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="With --device: keep the measurements in this store. Default: they are not kept."
        ),
    ] = None,
) -> None:
    """Check on a CPU that tables belong to their data and kernels; with --device, that they still fit the GPU.

    With --device the exit code is 0 if all plain functions are OK and none is STALE, 1 if any function is STALE, 3 if a
    plain function is AMBIGUOUS. Plain functions are measured first, variants in the time that is left.
    """
    if device is None:
        given = {"--budget": budget, "--seed": seed, "--store": store}
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} goes with --device: without one nothing is measured")
        _against_data(tables, strict, quick)
    elif quick:
        raise UsageError("--quick and --device are both given: a check on a device fits nothing again anyway")
    else:
        _against_device(tables, strict, device, budget or _BUDGET, seed or 0, store)


def _against_data(tables: list[Path], strict: bool, quick: bool) -> None:
    from normtune.heuristics.checking.offline import check as check_table
    from normtune.tuner.device.recorded import difference

    failed = False
    unusable: list[NormtuneError] = []
    for path in tables:
        try:
            report = check_table(path, quick, lambda line: say(f"normtune: {line}", error=True), difference)
        except NormtuneError as error:  # the other tables are still checked
            unusable.append(error)
            continue
        bad = bool(report.failures) or (strict and bool(report.stale))
        failed = failed or bad
        say(f"{path}: {'FAILED' if bad else 'STALE' if report.stale else 'OK'}")
        for lines in (report.failures, report.stale, report.notes):
            for line in lines[:_MOST_LINES]:
                say("\n".join(f"  {part[:_MOST_CHARACTERS]}" for part in line.split("\n")))
            if len(lines) > _MOST_LINES:
                say(f"  and {len(lines) - _MOST_LINES} more of this kind")
    _end(unusable, 1 if failed else 0)


def _against_device(tables: list[Path], strict: bool, device: str, budget: str, seed: int, store: str | None) -> None:
    from contextlib import nullcontext

    from normtune.heuristics.checking.verdict import AMBIGUOUS, STALE
    from normtune.results.database.store import Store, resolve_url
    from normtune.tuner.commands import parse_budget
    from normtune.tuner.interrupts import terminable

    seconds = parse_budget(budget) or 0.0
    url = resolve_url(store) if store is not None else None
    verdicts: list[str] = []
    unusable: list[NormtuneError] = []
    with terminable(), Store.open(url) if url else nullcontext() as opened:
        for path in tables:
            begun = time.monotonic()
            try:
                verdict, kernels_changed = _measured(path, device, seconds, begun, seed, opened)
            except UsageError as error:
                unusable.append(error)
                continue
            except (KeyboardInterrupt, Terminated) as end:
                kept = "is kept in the store" if url else "was not kept"
                say(f"\nnormtune: ended: no verdict on {path}; what was measured {kept}", error=True)
                raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 143) from None
            verdicts.append(STALE if strict and kernels_changed else verdict)
    _end(unusable, 1 if STALE in verdicts else AMBIGUOUS_EXIT if AMBIGUOUS in verdicts else 0)


def _end(unusable: list[NormtuneError], code: int) -> None:
    """End with a line for each table that could not be read, else with the code."""
    for other in unusable[1:]:
        say(f"normtune: error: {other}", error=True)
    if unusable:
        raise unusable[0]
    if code:
        raise typer.Exit(code)


def _measured(
    path: Path, device: str, seconds: float, begun: float, seed: int, store: "Store | None"
) -> tuple[str, bool]:
    """Check a table on a device and print the result.

    Returns:
        The verdict, and whether its kernels changed.

    Raises:
        UsageError: the table or the device cannot be used.
        NormtuneError: the device fails.
    """
    from normtune.heuristics.checking import subject
    from normtune.heuristics.checking.report import counts_line, note_lines, verdict_lines
    from normtune.heuristics.checking.session import Course
    from normtune.heuristics.checking.verdict import of_table
    from normtune.heuristics.tablefile import locate
    from normtune.tuner.device.open import open_device
    from normtune.tuner.plan.grids import MAX_ELEMENTS

    table = subject.read(path)
    bench = open_device(device, table.regime)
    try:
        table = table.on(bench.target.sms)
        known = recorded(bench.device, table.regime)
        course = Course(table.functions, table.box, bench.target, seed, MAX_ELEMENTS, known)
        say(f"measuring {locate.told(path)} on {bench.device.label}, {seconds:g} s at most")
        left = seconds - (time.monotonic() - begun)
        done = measure(course, bench, left, store)
    finally:
        bench.close()
    judged = course.judged()
    for line in verdict_lines(locate.told(path), bench.device.label, judged):
        say(line)
    for line in note_lines(table, bench.device, done.skipped, done.oversized, done.unfinished):
        say(f"  {line}")
    say(f"  {done.measured} shapes and {done.timings} timings in {time.monotonic() - begun:.0f} s")
    say(f"  {counts_line(judged)}")
    return of_table(judged)[0], bool(table.changed)


def recorded(device: "Device", regime: str) -> "Callable[[Checked], Collection[tuple[int, int]] | None]":
    """A function to the measurable shapes: on a replay the recorded ones; None for all."""
    from normtune.results.records import REPLAY_PREFIX

    if not device.uuid.startswith(REPLAY_PREFIX):
        return lambda function: None
    from normtune.results.recording import load_recording

    frame = load_recording(device.uuid.removeprefix(REPLAY_PREFIX), regime).frame
    columns = ["operator", "variant", "dtype", "rows", "hidden"]
    shapes: dict[tuple[str, str, str], set[tuple[int, int]]] = defaultdict(set)
    for operator, variant, dtype, rows, hidden in frame[columns].drop_duplicates().itertuples(index=False):
        shapes[operator, variant, dtype].add((int(rows), int(hidden)))
    return lambda function: shapes[function.operator, function.variant, function.dtype]


def measure(course: "Course", bench: "Bench", seconds: float | None, store: "Store | None" = None) -> "Recheck":
    """Run a course's races on a device until it needs no more answers or time is up; then the device is closed.

    Args:
        course: of a table's check.
        bench: the device.
        seconds: time limit; None for no limit.
        store: for the measurements; None for none.

    Raises:
        NormtuneError: the device fails.
    """
    from normtune.kernels.operator import operator
    from normtune.tuner.plan.plan import Task, candidates
    from normtune.tuner.recheck import recheck

    of_problem: dict[Problem, list[Question]] = {}
    for question in course.questions:
        of_problem.setdefault(question.problem, []).append(question)
    asked: dict[Task, list[tuple[Question, Config]]] = {}
    # One race for all functions with questions on a problem: a store holds a config's times of a run once.
    for problem, questions in of_problem.items():
        spec = operator(problem.operator)
        configs = {config for question in questions for config in (question.config, *question.rivals)}
        kept, _ = candidates(spec, configs, problem, bench.target)
        of_launch = {candidate.launch: candidate.config for candidate in kept}
        asked[Task(problem, tuple(kept))] = [
            (question, of_launch[spec.launch(question.config, problem, bench.target)]) for question in questions
        ]
    return recheck(bench, list(asked), _Asker(course, asked), seconds, store)


class _Asker:
    """A course in the form for the tuner; a `recheck.Asker`."""

    def __init__(self, course: "Course", asked: "Mapping[Task, Sequence[tuple[Question, Config]]]") -> None:
        self._course = course
        self._asked = asked

    def wants(self, task: "Task") -> bool:
        """Whether one of its questions is open."""
        return any(self._course.wants(question) for question, _ in self._asked[task])

    def learn(self, task: "Task", outcomes: "Mapping[Config, Outcome]") -> None:
        """Answer its questions."""
        for question, own in self._asked[task]:
            self._course.learn(question, own, outcomes)
