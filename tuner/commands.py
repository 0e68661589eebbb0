"""`normtune sweep`.

In: options. Out: measurements in a store, and text on the terminal: plan, progress, outcome. Heavy modules are imported
after the options are checked.
"""

import json
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from normtune.errors import UsageError
from normtune.results.regimes import COLD, check_regime
from normtune.results.terminal import say
from normtune.tuner.interrupts import terminable

if TYPE_CHECKING:
    from normtune.kernels.problem import Problem
    from normtune.kernels.target import Target
    from normtune.tuner.plan.plan import Plan

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Effort(NamedTuple):
    """Defaults of options under one `--effort`."""

    grid: str
    space: str
    strategy: str
    budget_seconds: float | None


EFFORTS = {
    "default": Effort("default", "default", "adaptive", None),
    "quick": Effort("quick", "quick", "adaptive", 60.0),
}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(sweep)


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
            help="Configs: default, those that win somewhere; full, all; quick, at most 12, that of Liger-Kernel's "
            "rule included. Default: that of --effort.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="adaptive: 6 rounds, 16 for configs within 10 % of the best; exhaustive: 16 for all. Default: "
            "adaptive.",
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
        bool, typer.Option("--stale", help="Measure again only what is stored under kernels that changed since.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Measure again configs that are stored as crashed or timed out.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan (problems, configs, what is left out, binaries, time) and stop."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Store: an SQLite file or a URL. Default: NORMTUNE_STORE, else ./normtune.db."
        ),
    ] = None,
) -> None:
    """Measure configs over shapes and store every sample.

    Each problem is committed when it is done: after Ctrl-C, a kill or the end of its budget, the same command resumes.
    """
    from normtune.tuner.plan.plan import SPACES
    from normtune.tuner.search.registry import search

    begun = time.monotonic()
    chosen = chosen_effort(effort, grid, space, strategy, budget)
    search(chosen.strategy)
    if chosen.space not in SPACES:
        raise UsageError(f"unknown space {chosen.space!r}: expected one of {', '.join(SPACES)}")
    check_regime(regime)
    asked = parse_sizes("rows", rows), parse_sizes("hidden", hidden)
    if shapes is not None:
        given = {"--grid": grid, "--rows": rows, "--hidden": hidden}
        for name in [name for name, value in given.items() if value is not None]:
            raise UsageError(f"--shapes and {name} are both given: the shapes come from one of them")
    wanted = _wanted(operator or [], dtype or ["bfloat16"], chosen.grid, asked, shapes)
    with terminable():
        if dry_run:
            _dry_run(device, regime, store, wanted, chosen, retry_failed, quiet, as_json)
        else:
            _sweep(device, regime, store, wanted, chosen, stale, retry_failed, begun, quiet, as_json)


class _Wanted(NamedTuple):
    """The requested problems, and the numbers of those left out: see `plan.Plan`."""

    problems: "list[Problem]"
    reduced: int = 0
    beyond: int = 0

    def plan(self, space: str, target: "Target") -> "Plan":
        from normtune.tuner.plan.plan import plan

        return plan(self.problems, space, target)._replace(reduced=self.reduced, beyond=self.beyond)


def _wanted(
    keys: list[str],
    dtypes: list[str],
    grid: str,
    sizes: tuple[list[int] | None, list[int] | None],
    file: Path | None,
) -> _Wanted:
    """The problems of a grid, of the user's sizes or of the user's file."""
    from normtune.tuner.plan.grids import shapes, shapes_of
    from normtune.tuner.plan.plan import problems

    if file is not None:
        pairs, larger = shapes_of(file)
        wanted = problems(keys, dtypes, pairs)
        return _Wanted(wanted, beyond=len(larger) * (len(wanted) // len(pairs)))
    wanted = problems(keys, dtypes, shapes(grid, *sizes))
    if grid != "quick":
        return _Wanted(wanted)
    return _Wanted(wanted, len(problems(keys, dtypes, shapes("default", *sizes))) - len(wanted))


def chosen_effort(effort: str, grid: str | None, space: str | None, strategy: str | None, budget: str | None) -> Effort:
    """The defaults of an effort, overridden by the given options.

    Raises:
        UsageError: the effort is unknown, or the budget is not a time.
    """
    if effort not in EFFORTS:
        raise UsageError(f"unknown effort {effort!r}: expected one of {', '.join(EFFORTS)}")
    implied = EFFORTS[effort]
    given = parse_budget(budget)
    return Effort(
        grid or implied.grid,
        space or implied.space,
        strategy or implied.strategy,
        implied.budget_seconds if given is None else given,
    )


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


def _sweep(
    device: str | None,
    regime: str,
    store: str | None,
    wanted: _Wanted,
    effort: Effort,
    stale: bool,
    retry_failed: bool,
    begun: float,
    quiet: bool,
    as_json: bool,
) -> None:
    from normtune.results.database.store import Store, resolve_url
    from normtune.results.source import warn_of_damage
    from normtune.tuner.device.identity import renew
    from normtune.tuner.device.open import open_device
    from normtune.tuner.plan.plan import fitting
    from normtune.tuner.plan.resume import stale_plan
    from normtune.tuner.progress import face_of
    from normtune.tuner.report import device_line, end_lines, plain_sweep
    from normtune.tuner.search.registry import search
    from normtune.tuner.sweep import sweep as run_sweep

    url = resolve_url(store)
    bench = open_device(device, regime)
    try:
        with Store.open(url) as opened, face_of(bench.device.label, quiet or as_json) as face:
            face.say(device_line(bench), *renew(opened, bench.device, bench.target, regime).lines())
            if stale:
                whole = stale_plan(opened.coverage(bench.device, regime), bench.target)
                if not whole.tasks:
                    face.say("nothing is stale: all that is stored was measured with the present kernels")
                    return
            else:
                whole = wanted.plan(effort.space, bench.target)
            chosen = fitting(whole, bench.free_bytes)
            starting = time.monotonic() - begun
            left = None if effort.budget_seconds is None else effort.budget_seconds - starting
            summary = run_sweep(bench, opened, chosen, search(effort.strategy), left, face, retry_failed=retry_failed)
            summary.starting_seconds += starting
        warn_of_damage(opened)
        face.say(*end_lines(summary, effort.budget_seconds))
        if as_json:
            say(json.dumps(plain_sweep(bench, face.outlook, summary), indent=1))
    finally:
        bench.close()


def _dry_run(
    device: str | None,
    regime: str,
    store: str | None,
    wanted: _Wanted,
    effort: Effort,
    retry_failed: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    from normtune.results.database.connect import parse, resolve_url, sqlite_path
    from normtune.results.database.store import Store
    from normtune.tuner.device.identity import compare
    from normtune.tuner.device.open import open_device_to_plan
    from normtune.tuner.plan.plan import fitting
    from normtune.tuner.progress import face_of
    from normtune.tuner.report import device_line, plain_sweep, plan_lines, pruned_lines
    from normtune.tuner.search.registry import search
    from normtune.tuner.sweep import look_ahead

    url = resolve_url(store)
    path = sqlite_path(parse(url))
    bench = open_device_to_plan(device, regime)
    try:
        chosen = fitting(wanted.plan(effort.space, bench.target), bench.free_bytes)
        with ExitStack() as stack:
            exists = path is None or path.exists()
            opened = stack.enter_context(Store.open(url, create=False)) if exists else None
            held = opened.coverage(bench.device, regime) if opened else {}
            kernels = compare(held, bench.target)
            outlook = look_ahead(
                *(bench, opened, chosen, search(effort.strategy), effort.budget_seconds, retry_failed),
                stored=kernels.applied(held),
            )
        face = face_of(bench.device.label, quiet or as_json)
        face.say(
            device_line(bench),
            *kernels.lines(),
            *plan_lines(outlook),
            *pruned_lines(chosen),
            "a dry run: nothing is measured",
        )
        if as_json:
            say(json.dumps(plain_sweep(bench, outlook, None), indent=1))
    finally:
        bench.close()
