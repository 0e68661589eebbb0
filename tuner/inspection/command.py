"""`normtune inspect`: prints the findings of `inspect`, imported when the command runs, and sets the exit code."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.results.terminal import note, say

if TYPE_CHECKING:
    from normtune.tuner.inspection.inspect import Inspection


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python file that registers operators.")],
    operator: Annotated[str, typer.Option(metavar="NAME", help="Only this operator. Default: all of the file.")] = "",
    target: Annotated[
        str, typer.Option(metavar="ARCH", help="Architecture to compile for, sm_90 or gfx942.")
    ] = "sm_90",
) -> None:
    """Inspect your own operator without a GPU.

    Its launches and faults are printed. The gate runs in Triton's interpreter at three shapes, and every memory access
    is checked. The exit code is 2 if a function of the operator raises or returns a wrong value, 1 if a result is wrong
    or a config does not compile.
    """
    from normtune.tuner.inspection.inspect import inspections

    results = []
    running = inspections(file, operator, target, lambda text: note(f"{text} ..."))
    while True:
        with redirect_stdout(sys.stderr):  # on which libraries may print
            inspection = next(running, None)
        if inspection is None:
            break
        results.append(inspection)
        _print(inspection)
    if code := max(one.exit_code for one in results):
        raise typer.Exit(code)


def _print(inspection: "Inspection") -> None:
    say(f"{inspection.operator} for {inspection.target}")
    for title, text in inspection.lines:
        say(f"  {title:<10}{text}")
    for text in inspection.warnings:
        say(f"  warning   {text}")
    for text in inspection.faults:
        say(f"  fault     {text}")
    count = len(inspection.faults)
    unchecked = f", {inspection.unchecked} launches not checked" if inspection.unchecked else ""
    say(f"{inspection.operator}: {count or 'no'} fault{'s' * (count != 1)}{unchecked}")
