"""`normtune sweep`.

In: options. Out: measurements in a store, and on the terminal what is planned, what is going on and what came of it.
Everything heavy is imported once the options are known to make sense.
"""

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import UsageError

if TYPE_CHECKING:
    from normtune.kernels.problem import Problem
    from normtune.tuner.device import Bench
    from normtune.tuner.planning import Plan
    from normtune.tuner.sweep import Summary

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(sweep)


def sweep(
    device: Annotated[str | None, typer.Option(help="cuda:N or replay:NAME; cuda:0 if there is one.")] = None,
    operator: Annotated[list[str] | None, typer.Option(help="Operator, as rms_norm_forward:no_rstd; repeat.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Dtype; repeat. Default bfloat16.")] = None,
    grid: Annotated[str, typer.Option(help="default, recording or probe.")] = "default",
    rows: Annotated[str | None, typer.Option(help="Row counts instead of the grid's, as 1,64,4096.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Hidden sizes instead of the grid's, as 768,4096.")] = None,
    space: Annotated[str, typer.Option(help="default or full: how many configs are tried.")] = "default",
    strategy: Annotated[str, typer.Option(help="adaptive (6 rounds, 16 for the best) or exhaustive.")] = "adaptive",
    budget: Annotated[str | None, typer.Option(help="Stop in time, everything stored, as 90s, 8m, 1h.")] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only what is stored under kernels changed since.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    store: Annotated[str | None, typer.Option(help="Store: URL or file; else NORMTUNE_STORE, normtune.db.")] = None,
) -> None:
    """Measure configs over shapes and store every timing.

    Started again, it goes on where it was stopped.
    """
    from normtune.tuner.grids import shapes
    from normtune.tuner.planning import plan, problems
    from normtune.tuner.racing import STRATEGIES

    begun = time.monotonic()
    budget_seconds = parse_budget(budget)
    if strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    wanted = problems(
        operator or [],
        dtype or ["bfloat16"],
        shapes(grid, parse_sizes("rows", rows), parse_sizes("hidden", hidden)),
    )
    if dry_run:
        _dry_run(device, wanted, space, strategy)
        return

    from normtune.results.store import Store, resolve_url
    from normtune.tuner.device import open_device
    from normtune.tuner.sweep import stale_plan
    from normtune.tuner.sweep import sweep as run_sweep

    bench = open_device(device)
    _say_device(bench)
    with Store.open(resolve_url(store)) as opened:
        chosen = stale_plan(opened.coverage(bench.device), bench) if stale else plan(wanted, space, bench.target)
        if stale and not chosen.tasks:
            typer.echo("nothing is stale: all that is stored was measured with the present kernels")
            return
        _say_plan(chosen, strategy)
        if budget_seconds is not None:
            budget_seconds -= time.monotonic() - begun
        with _Reporter() as reporter:
            summary = run_sweep(bench, opened, chosen, strategy, budget_seconds, reporter)
    _say_summary(summary)


def parse_budget(text: str | None) -> float | None:
    """Seconds of `90s`, `8m`, `1.5h` or a plain number of seconds.

    Raises:
        UsageError: it is none of these, or not positive.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget is {text!r}: expected a positive time such as 90s, 8m or 1h")
    return seconds


def parse_sizes(name: str, text: str | None) -> list[int] | None:
    """The positive integers of `1,64,4096`.

    Raises:
        UsageError: there is none, or something else is among them.
    """
    if text is None:
        return None
    sizes = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise UsageError(f"--{name} is {text!r}: expected positive integers, as 1,64,4096")
        sizes.append(int(part))
    return sizes


def _dry_run(device: str | None, wanted: "list[Problem]", space: str, strategy: str) -> None:
    from normtune.tuner.device import planning_target
    from normtune.tuner.planning import plan

    target, source = planning_target(device)
    typer.echo(f"plan for {target.name} with {target.sms} SMs ({source}), nothing is measured")
    chosen = plan(wanted, space, target)
    _say_plan(chosen, strategy)
    for reason, count in sorted(chosen.pruned.items()):
        typer.echo(f"  left out {count:6}  {reason}")


def _say_device(bench: "Bench") -> None:
    from normtune.results.records import REPLAY_PREFIX

    device = bench.device
    if device.uuid.startswith(REPLAY_PREFIX):
        typer.echo(f"replay of the recorded sweep of {device.name}: no GPU is measured ({device.uuid})")
    else:
        typer.echo(f"{device.name}, {device.target}, {device.sms} SMs, driver {device.driver}")


def _say_plan(plan: "Plan", strategy: str) -> None:
    from normtune.tuner.estimate import minutes

    count = len(plan.tasks)
    per_problem = plan.cells() / count if count else 0.0
    typer.echo(
        f"{count} problems, {plan.cells()} configs to time ({per_problem:.1f} a problem), "
        f"{len(plan.jobs())} binaries, about {minutes(plan, strategy):.1f} minutes on an H200 if nothing is stored yet"
    )


def _say_summary(summary: "Summary") -> None:
    if not summary.problems and not summary.left:
        typer.echo(f"nothing to do: all {summary.known} problems are measured; `normtune fit` makes the table")
        return
    failures = {status: count for status, count in summary.statuses.items() if status != "ok"}
    told = ", ".join(f"{count} {status}" for status, count in sorted(failures.items())) or "none"
    typer.echo(
        f"{summary.problems} problems measured, {summary.known} were stored before; "
        f"{summary.statuses['ok']} configs timed; failures: {told}"
    )
    if summary.phases:
        phases = summary.phases
        typer.echo(
            f"{summary.seconds:.1f} s in all: compile {phases.compile:.1f}, gate {phases.gate:.1f}, "
            f"timing {phases.timing:.1f}; void rounds {phases.protocol.get('void_rounds', 0)}"
        )
    for reason, count in summary.skipped.most_common():
        typer.echo(f"skipped {count} problems, which the next sweep tries again: {reason}")
    if summary.left:
        typer.echo(f"budget spent with {summary.left} problems left: the same command goes on from here")
    else:
        typer.echo("complete: `normtune fit` makes the table")


class _Reporter:
    """Progress of a sweep as a Rich bar, or silent where there is no terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            transient=True,
            disable=not sys.stdout.isatty(),  # a line for each look at it would fill a log
        )
        self._compile = self._bar.add_task("compile", total=None, visible=False)
        self._measure = self._bar.add_task("measure", total=None, visible=False)

    def __enter__(self) -> "_Reporter":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def compiling(self, done: int, total: int) -> None:
        self._bar.update(self._compile, completed=done, total=total, visible=done < total)

    def measured(self, task: object, outcomes: object, done: int, total: int) -> None:
        self._bar.update(self._measure, completed=done, total=total, visible=True)
