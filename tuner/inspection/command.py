"""`normtune inspect`: prints the findings of `inspect`, imported when the command runs, and sets the exit code."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from normtune.results.commands import JsonOption
from normtune.results.terminal import say, say_json


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python file that registers operators.")],
    operator: Annotated[str, typer.Option(metavar="NAME", help="Only this operator. Default: all of the file.")] = "",
    target: Annotated[
        str, typer.Option(metavar="ARCH", help="Architecture to compile for, sm_90 or gfx942.")
    ] = "sm_90",
    as_json: JsonOption = False,
) -> None:
    """Inspect your own operator without a GPU: its launches, and its faults.

    The gate runs in Triton's interpreter at two odd shapes, and every memory access is checked. The exit code is 2 if a
    function of the operator raises or returns a wrong value, 1 if a result is wrong or a config does not compile.
    """
    from normtune.tuner.inspection.inspect import inspect_operator

    with redirect_stdout(sys.stderr):  # on which libraries may print
        found = inspect_operator(file, operator=operator, target=target)
    if as_json:
        say_json({"operators": [one.to_plain() for one in found]})
    for one in [] if as_json else found:
        say(f"{one.operator} for {one.target}")
        for title, text in one.seen:
            say(f"  {title:<10}{text}")
        for text in one.warnings:
            say(f"  warning   {text}")
        for text in one.faults:
            say(f"  fault     {text}")
        count = len(one.faults)
        say(f"{one.operator}: {count or 'no'} fault{'s' * (count != 1)}")
    if code := max(one.exit_code for one in found):
        raise typer.Exit(code)
