"""`normtune check`: prints the verdicts of `api`, imported when the command runs, and sets the exit code."""

import os
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import NormtuneError, Terminated, UsageError
from normtune.results.terminal import note, say, say_json, tell
from normtune.tuner.checking.formats import FAILED, FORMATS, GITHUB, JSON, JUNIT, TEXT, UNUSABLE, TableResult, junit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from normtune.results.records import Device
    from normtune.tuner.checking.api import DeviceCheck

AMBIGUOUS_EXIT = 3
_UNDECIDED = "AMBIGUOUS"
_BUDGET = "60s"


def check(
    tables: Annotated[
        list[Path], typer.Argument(help="Files of tables, or shipped tables (nvidia-h200).", show_default=False)
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail also if kernels changed since the table was fitted.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the fit: check only edits, legality and kernels.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Measure whether the tables still fit this GPU, cuda:N, or replay:NAME."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"With --device: time per table, 30s or 2m. Default: {_BUDGET}."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="text; github: also annotations for GitHub Actions; junit: JUnit XML; json.",
        ),
    ] = TEXT,
) -> None:
    """Check that tables match their data and kernels, or still fit a GPU.

    Without --device no GPU is needed: a fit of the same data must give the same table. With --device, configs are
    measured, plain functions first, variants in the remaining time; the exit code is 1 if any function is STALE, else 0
    if all plain functions are OK, else 3.
    """
    from normtune.results.parallel.maps import in_order

    if format_ not in FORMATS:
        raise UsageError(f"--format is {format_!r}: expected one of {', '.join(FORMATS)}")
    if device is None:
        if budget is not None:
            raise UsageError("--budget is given without --device: only a check on a device measures")
        each = map if quick else partial(in_order, seconds=inf)
        results = each(_against_data(strict, quick), tables)
    elif quick:
        raise UsageError("--quick and --device are both given: a check on a device never fits, leave --quick out")
    else:
        begin = note if format_ in (JUNIT, JSON) else tell
        results = _against_device(
            tables,
            strict,
            device,
            budget or _BUDGET,
            begin,
        )
    done: list[TableResult] = []
    for result in results:
        done.append(result)
        if format_ in (TEXT, GITHUB) and result.verdict != UNUSABLE:
            say(result.text())
        if format_ == GITHUB and (line := result.annotation()):
            say(line)
    if format_ == JSON:
        say_json({"tables": [result.to_plain() for result in done]})
    if format_ == JUNIT:
        say(junit(done))
    _end(done)


def _end(done: "Sequence[TableResult]") -> None:
    """End with an error line for each unusable table, else with the exit code."""
    unusable = [result.error for result in done if result.error]
    for other in unusable[1:]:
        say(f"normtune: error: {other}", error=True)
    if unusable:
        raise unusable[0]
    if any(result.is_failure for result in done):
        raise typer.Exit(1)
    if any(result.verdict == _UNDECIDED for result in done):
        raise typer.Exit(AMBIGUOUS_EXIT)


def _file_of(table: Path) -> Path:
    """A table's file, or the file of the shipped table with this name."""
    from normtune.kernels.tablefile.locate import by_name

    return table if os.path.lexists(table) else Path(by_name().get(str(table), table))


def _unusable(path: Path, error: NormtuneError) -> TableResult:
    return TableResult(str(path), UNUSABLE, False, str(error), facts={"error": str(error)}, error=error)


def _against_data(strict: bool, quick: bool) -> "Callable[[Path], TableResult]":
    from normtune.tuner.checking import api

    def checked(table: Path) -> TableResult:
        path = _file_of(table)
        try:
            report = api.check(path, quick=quick, begin=note)
        except NormtuneError as error:  # the other tables are still checked
            return _unusable(path, error)
        bad = bool(report.failures) or (strict and bool(report.stale))
        verdict = FAILED if bad else "STALE" if report.stale else "OK"
        return TableResult(
            *(str(path), verdict, bad, f"{path}: {verdict}"),
            reasons=(report.failures, report.stale),
            notes=(report.notes,),
            facts={name: list(lines) for name, lines in report._asdict().items()},
        )

    return checked


def _against_device(
    tables: list[Path],
    strict: bool,
    device: str,
    budget: str,
    begin: "Callable[[str], None]",
) -> "Iterator[TableResult]":
    from normtune.tuner.device.open import split
    from normtune.tuner.sweep.options import parse_budget

    seconds = parse_budget(budget)
    split(device)  # before slower imports
    from normtune.kernels.tablefile.locate import quoted
    from normtune.results.parallel.interrupts import terminable
    from normtune.tuner.checking import api

    with terminable():
        for path in map(_file_of, tables):
            name = quoted(path)

            def announce(opened_device: "Device", name: str = name) -> None:
                begin(f"measuring {name} on {opened_device.label}, {seconds:g} s at most")

            try:
                result = api.check_on_device(path, device, budget_seconds=seconds, begin=announce)
            except UsageError as error:
                yield _unusable(path, error)
                continue
            except (KeyboardInterrupt, Terminated) as end:
                say(f"\nnormtune: ended: no verdict on {path}", error=True)
                raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 143) from None
            yield _measured(path, result, strict)


def _measured(path: Path, result: "DeviceCheck", strict: bool) -> TableResult:
    from normtune.kernels.tablefile.locate import quoted
    from normtune.tuner.checking.report import counts_line, function_lines, headline, next_lines, plain_functions
    from normtune.tuner.checking.verdict import STALE

    counted = f"{result.shapes} shapes, {result.timings} timings, {result.seconds:.0f} s"
    facts = {name: getattr(result, name) for name in ("kernels_changed", "notes", "shapes", "timings", "seconds")}
    facts |= {"device": result.device.label, "functions": plain_functions(result.functions)}
    return TableResult(
        *(str(path), result.verdict, result.verdict == STALE or (strict and result.kernels_changed)),
        f"{quoted(path)} on {result.device.label}: {headline(result.functions)}",
        reasons=([f"{counts_line(result.functions)}; {counted}"], *function_lines(result.functions)),
        notes=(result.notes, next_lines(result.verdict, result.kernels_changed)),
        facts=facts,
    )
