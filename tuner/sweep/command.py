"""`normtune sweep`: runs the sweep of `api`, imported when the command runs, with a display on the terminal."""

import json
import time
from typing import Annotated, Any

import typer

from normtune.errors import NormtuneError
from normtune.results.commands import StoreOption, with_options
from normtune.results.parallel.interrupts import terminable
from normtune.results.source import warn_of_damage
from normtune.results.terminal import say
from normtune.tuner.sweep.options import SweepOptions


@with_options(SweepOptions, before="details")
def sweep(
    details: Annotated[bool, typer.Option("--details", help="Also print the time of each phase.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one JSON object at the end.")] = False,
    store: StoreOption = None,
    **chosen: Any,
) -> None:
    """Measure configs over shapes and store every sample.

    Each problem is stored as soon as it is measured: after Ctrl-C, a kill or the end of the budget, the same command
    continues.
    """
    begun = time.monotonic()
    from normtune.tuner.sweep.request import Request

    request = Request(store=store, **chosen)  # wrong values are refused before slower imports
    from normtune.tuner.sweep.api import run
    from normtune.tuner.sweep.progress import choose_display
    from normtune.tuner.sweep.report import fruitless_line

    with terminable():
        result = run(request, choose_display(quiet or as_json, details), begun)
    warn_of_damage(result.damage)
    if as_json and (result.outlook or result.summary.known or result.compiled):
        say(json.dumps(result.to_plain(), indent=1))
    if reason := fruitless_line(result.summary, result.compiled, result.outlook):
        raise NormtuneError(reason)
