"""`normtune sweep`.

In: options. Out: measurements in a store, and on the terminal what is planned, what is going on and what came of it.
The sweep itself is that of `api`, imported when the command runs.
"""

import json
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from normtune.errors import NormtuneError, UsageError
from normtune.results.commands import StoreOption
from normtune.results.regimes import COLD
from normtune.results.source import warn_of_damage
from normtune.results.terminal import say
from normtune.tuner.machine.interrupts import terminable

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def sweep(
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU to measure, cuda:N, or recording to replay, replay:NAME. Default: cuda:0 if present.",
        ),
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="bfloat16, float16 or float32. Default: bfloat16. Repeatable."),
    ] = None,
    effort: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="default, or quick: a third of the shapes, at most 12 configs each, stops after 60 s."
        ),
    ] = "default",
    grid: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Shapes: default; quick, a third of these; recording, for a table that ships; probe, corners, edges "
            "and middle. Default: that of --effort.",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="LIST", help="Numbers of rows in place of the grid's: 1,64,4096.")
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(metavar="LIST", help="Hidden sizes in place of the grid's: 768,4096.")
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Shapes from a CSV file (columns rows,hidden) in place of a grid."),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Configs: full, all; default, those that won somewhere on an H200; quick, at most 12, that of "
            "Liger-Kernel's rule included. Default: full with plane, quick with --effort quick, else default.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="plane: the configs that times at nearby shapes make likely to be the best; adaptive: 6 rounds for "
            "all, 16 for those within 10 % of the best; exhaustive: 16 for all; race: 6 to 64, until the best is known "
            "to 0.5 %; tpe, gp, random: some of the configs of each shape by itself. Default: plane; adaptive for a "
            "replay and with --effort quick, --stale, --refine, --compile-only and --cache.",
        ),
    ] = None,
    studies: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the studies of tpe, gp or random in this SQLite file of Optuna."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Draws of plane, tpe, gp or random: with another number the search is repeated by other draws. "
            "Default: 0.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Time what this table answers, too, at each shape, for `normtune fit --baseline`. What the GPU's "
            "tables answer today, and each operator's default config, are always timed.",
        ),
    ] = None,
    regime: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="cold: nothing in the cache; warm: the same buffers every time, so the L2 holds what fits; eager: "
            "cold, launched from Python without a CUDA graph, so host time shows.",
        ),
    ] = COLD,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop within this time, with everything stored: 90s, 8m, 1h.")
    ] = None,
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help="Measure again only what is stored under kernels that changed since, or that this Triton compiles to "
            "other instructions, and a control sample of the rest.",
        ),
    ] = False,
    refine: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Measure only where the thresholds of this table are least certain, new numbers of rows and hidden "
            "sizes included.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="LOSS",
            help="End --refine when all thresholds of a function together can lose no more than this. Default: 0.2%.",
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Measure again configs that are stored as crashed or timed out.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Use binaries that --compile-only made on another machine; DIR stays as it is."
        ),
    ] = None,
    compile_only: Annotated[
        bool,
        typer.Option(
            "--compile-only",
            help="Compile the binaries of this sweep for --target into --out and stop. Needs no GPU.",
        ),
    ] = False,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Architecture for --compile-only, as sm_90 for H100 and H200.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the binaries of --compile-only.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan (problems, configs, what is left out, binaries, time) and stop."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
    store: StoreOption = None,
) -> None:
    """Measure configs over shapes and store every sample.

    Each problem is committed when it is done: after Ctrl-C, a kill or the end of its budget, the same command resumes.
    """
    begun = time.monotonic()
    from normtune.tuner.sweep.api import run
    from normtune.tuner.sweep.progress import face_of
    from normtune.tuner.sweep.report import fruitless_line
    from normtune.tuner.sweep.request import Request

    request = Request(
        device=device,
        operators=operator or (),
        dtypes=dtype or ("bfloat16",),
        effort=effort,
        grid=grid,
        rows=parse_sizes("rows", rows),
        hidden=parse_sizes("hidden", hidden),
        shapes=shapes,
        space=space,
        strategy=strategy,
        studies=studies,
        seed=seed,
        baseline=baseline,
        regime=regime,
        budget_seconds=parse_budget(budget),
        stale=stale,
        refine=refine,
        until_percent=parse_percent("until", until),
        retry_failed=retry_failed,
        store=store,
        cache=cache,
        compile_only=compile_only,
        target=target,
        out=out,
        dry_run=dry_run,
    )
    with terminable():
        found = run(request, lambda title: face_of(title, quiet or as_json), begun)
    warn_of_damage(found.damage)
    if as_json and (found.outlook or found.summary.known or found.compiled):
        say(json.dumps(found.to_plain(), indent=1))
    if reason := fruitless_line(found.summary, found.compiled):
        raise NormtuneError(reason)


def parse_budget(text: str | None) -> float | None:
    """Seconds of `90s`, `8m`, `1.5h` or a plain number of seconds.

    Raises:
        UsageError: another form, or not positive.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget is {text!r}: expected a positive time such as 90s, 8m or 1h")
    return seconds


def parse_percent(name: str, text: str | None) -> float | None:
    """The number of `0.2%` or `0.2`.

    Raises:
        UsageError: it is no number.
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?%?", text.strip(), re.ASCII):
        raise UsageError(f"--{name} is {text!r}: expected a loss in percent, as 0.2%")
    return float(text.strip().rstrip("%"))


def parse_sizes(name: str, text: str | None) -> list[int] | None:
    """The positive integers of `1,64,4096`.

    Raises:
        UsageError: the list is empty, or holds anything else.
    """
    if text is None:
        return None
    sizes = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise UsageError(f"--{name} is {text!r}: expected positive integers, as 1,64,4096")
        sizes.append(int(part))
    return sizes
