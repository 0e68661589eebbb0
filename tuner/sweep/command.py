"""`normtune sweep`.

In: options. Out: measurements in a store, and on the terminal what is planned, what is going on and what came of it.
The sweep itself is that of `api`, imported when the command runs.
"""

import json
import time
from typing import Annotated, Any

import typer

from normtune.errors import NormtuneError
from normtune.results.commands import StoreOption, with_options
from normtune.results.source import warn_of_damage
from normtune.results.terminal import say
from normtune.tuner.machine.interrupts import terminable
from normtune.tuner.sweep.options import SweepOptions


@with_options(SweepOptions, before="quiet")
def sweep(
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
    store: StoreOption = None,
    **chosen: Any,
) -> None:
    """Measure configs over shapes and store every sample.

    Each problem is committed when it is done: after Ctrl-C, a kill or the end of its budget, the same command resumes.
    """
    begun = time.monotonic()
    from normtune.tuner.sweep.api import run
    from normtune.tuner.sweep.progress import face_of
    from normtune.tuner.sweep.report import fruitless_line
    from normtune.tuner.sweep.request import Request

    request = Request(store=store, **chosen)
    with terminable():
        found = run(request, lambda title: face_of(title, quiet or as_json), begun)
    warn_of_damage(found.damage)
    if as_json and (found.outlook or found.summary.known or found.compiled):
        say(json.dumps(found.to_plain(), indent=1))
    if reason := fruitless_line(found.summary, found.compiled):
        raise NormtuneError(reason)
