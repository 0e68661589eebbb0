"""`normtune sweep` and `normtune compile`: run the sweep of `api` with a display on the terminal."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.errors import NormtuneError
from normtune.results.commands import JsonOption, StoreOption, with_options
from normtune.results.parallel.interrupts import terminable
from normtune.results.source import warn_of_damage
from normtune.results.terminal import is_quiet, say
from normtune.tuner.sweep.options import ScopeOptions, SweepOptions

if TYPE_CHECKING:
    from normtune.tuner.sweep.request import Request


@with_options(SweepOptions, before="as_json")
def sweep(as_json: JsonOption = False, store: StoreOption = None, **chosen: Any) -> None:
    """Measure configs over shapes and store every sample.

    Each problem is stored as soon as it is measured: after Ctrl-C, a kill or the end of the budget, the same command
    continues.
    """
    start = time.monotonic()
    from normtune.tuner.sweep.request import Request

    _run(Request(store=store, **chosen), as_json, start)  # wrong values are refused before slower imports


@with_options(ScopeOptions)
def compile_(
    target: Annotated[
        str, typer.Argument(help="Architecture: sm_90 for H100 and H200, gfx942 for MI300X, gfx950 for MI355X.")
    ],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the binaries.")],
    **chosen: Any,
) -> None:
    """Compile the binaries of a sweep for another machine.

    It needs no GPU. A sweep there uses them with `--cache DIR`.
    """
    from normtune.tuner.sweep.request import Request

    _run(Request(target=target, out=out, **chosen), False, time.monotonic())


def _run(request: "Request", as_json: bool, start: float) -> None:
    """Run the sweep, print its result, and end with an error if it was fruitless."""
    from normtune.tuner.sweep.api import run
    from normtune.tuner.sweep.progress import choose_display
    from normtune.tuner.sweep.report import fruitless_line

    with terminable():
        result = run(request, choose_display(is_quiet() or as_json), start)
    warn_of_damage(result.damage)
    if as_json and (result.backlog or result.summary.known):
        say(json.dumps(result.to_plain(), indent=1))
    if reason := fruitless_line(result.summary, result.compiled, result.backlog):
        raise NormtuneError(reason)
