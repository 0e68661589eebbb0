"""`normtune check`: checks of `api`, imported when the command runs, with verdicts on the terminal and an exit code."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import NormtuneError, Terminated, UsageError
from normtune.results.terminal import say

if TYPE_CHECKING:
    from normtune.results.records import Device
    from normtune.tuner.checking.api import DeviceCheck

AMBIGUOUS_EXIT = 3
_BUDGET = "60s"
# Limits of the output, because tables may come from anybody.
_MOST_LINES = 20
_MOST_CHARACTERS = 1000


def check(
    tables: Annotated[list[Path], typer.Argument(help="Files that `normtune fit` wrote.", show_default=False)],
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail also if kernels changed since the table was fitted.")
    ] = False,
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
        typer.Option(metavar="N", min=0, help="With --device: seed of the draw of shapes. Default: 0."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="With --device: keep the measurements in this store. Default: they are not kept."
        ),
    ] = None,
) -> None:
    """Check without a GPU that tables match their data and kernels; with --device, that they still fit the GPU.

    With --device the exit code is 1 if any function is STALE, else 0 if all plain functions are OK, else 3. Plain
    functions are measured first, variants in the time that is left.
    """
    if device is None:
        for name, value in {"--budget": budget, "--seed": seed, "--store": store}.items():
            if value is not None:
                raise UsageError(f"{name} is given without --device: without one nothing is measured")
        _against_data(tables, strict, quick)
    elif quick:
        raise UsageError("--quick and --device are both given: a check on a device fits nothing anyway")
    else:
        _against_device(tables, strict, device, budget or _BUDGET, seed or 0, store)


def _against_data(tables: list[Path], strict: bool, quick: bool) -> None:
    from normtune.tuner.checking import api

    failed = False
    unusable: list[NormtuneError] = []
    for path in tables:
        try:
            report = api.check(path, quick=quick, begin=lambda line: say(f"normtune: {line}", error=True))
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

    from normtune.kernels.tablefile.locate import told
    from normtune.results.database.store import Store, resolve_url
    from normtune.tuner.checking import api
    from normtune.tuner.checking.verdict import AMBIGUOUS, STALE
    from normtune.tuner.machine.interrupts import terminable
    from normtune.tuner.sweep.options import parse_budget

    seconds = parse_budget(budget)
    url = resolve_url(store) if store is not None else None
    verdicts: list[str] = []
    unusable: list[NormtuneError] = []
    with terminable(), Store.open(url) if url else nullcontext() as opened:
        for path in tables:
            name = told(path)

            def begin(opened_device: "Device", name: str = name) -> None:
                say(f"measuring {name} on {opened_device.label}, {seconds:g} s at most")

            try:
                result = api.check_on_device(path, device, budget_seconds=seconds, seed=seed, store=opened, begin=begin)
            except UsageError as error:
                unusable.append(error)
                continue
            except (KeyboardInterrupt, Terminated) as end:
                kept = "are kept in the store" if url else "were not kept"
                say(f"\nnormtune: ended: no verdict on {path}; the measurements {kept}", error=True)
                raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 143) from None
            _report(path, result)
            verdicts.append(STALE if strict and result.kernels_changed else result.verdict)
    _end(unusable, 1 if STALE in verdicts else AMBIGUOUS_EXIT if AMBIGUOUS in verdicts else 0)


def _end(unusable: list[NormtuneError], code: int) -> None:
    """End with an error line for each unusable table, or else with the exit code."""
    for other in unusable[1:]:
        say(f"normtune: error: {other}", error=True)
    if unusable:
        raise unusable[0]
    if code:
        raise typer.Exit(code)


def _report(path: Path, result: "DeviceCheck") -> None:
    from normtune.kernels.tablefile.locate import told
    from normtune.tuner.checking.report import counts_line, verdict_lines

    for line in verdict_lines(told(path), result.device.label, result.functions):
        say(line)
    for line in result.notes:
        say(f"  {line}")
    say(f"  {result.shapes} shapes and {result.timings} timings in {result.seconds:.0f} s")
    say(f"  {counts_line(result.functions)}")
