"""`normtune data`: list, export, import and set aside measurements; and how a command gets the options of a dataclass.

In: options. Out: a table on the terminal, files, or more measurements in a store. The work is done by `api` and
`exchange`, which are imported when a command runs.
"""

import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.results.options import Option, flag_of, parameter_of
from normtune.results.regimes import COLD
from normtune.results.terminal import say

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from normtune.results.evidence import Evidence

app = typer.Typer(help="List, export, import and set aside measurements.", no_args_is_help=True)

# The value of `--regime` that stands for every one.
_ALL = "all"

StoreOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Store: an SQLite file or a URL. Default: NORMTUNE_STORE, else ./normtune.db."),
]


def with_options(options: type[Any], before: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options, the fields of a dataclass that it does not declare itself, before one of its own."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command).parameters.values()
        names = [parameter.name for parameter in own]
        declared = [field for field in fields(options) if parameter_of(field) not in names]
        # Options with a place of their own come last: it may be before another option.
        for field in sorted(declared, key=lambda field: field.metadata["option"].before != ""):
            place = names.index(field.metadata["option"].before or before)
            own.insert(place, _parameter(field))
            names.insert(place, parameter_of(field))

        @wraps(command)
        def called(**given: Any) -> None:
            for field in declared:
                value, read = given.pop(parameter_of(field)), field.metadata["option"].read
                if value is None or value == []:
                    value = field.default
                elif read or isinstance(value, list):
                    value = (read or tuple)(value)
                given[field.name] = value
            command(**given)

        called.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        return called

    return decorated


def _parameter(field: "Field[Any]") -> inspect.Parameter:
    about: Option = field.metadata["option"]
    kind, default = field.type, field.default
    if isinstance(default, tuple):
        kind, default = list[str] | None, None
    elif about.read:
        kind = (about.read if isinstance(about.read, type) else str) | None
    declared = typer.Option(flag_of(field), help=about.help, metavar=about.metavar, min=about.least)
    by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(parameter_of(field), by_name, default=default, annotation=Annotated[kind, declared])


@app.command("list")
def list_(
    runs: Annotated[bool, typer.Option("--runs", help="List each run by its id instead, those set aside too.")] = False,
    store: StoreOption = None,
) -> None:
    """Print what a store holds, by device, operator and dtype."""
    from normtune.results.api import overview
    from normtune.results.database.store import Store, resolve_url
    from normtune.results.source import measured, warn_of_runs
    from normtune.results.terminal import console

    if runs:
        with Store.open(resolve_url(store), create=False) as opened:
            warn_of_runs(opened)
            for run in opened.runs(dropped=True):
                aside = f", set aside on {run.protocol['dropped']}" if run.is_dropped else ""
                strategy = run.protocol.get("strategy", "unknown strategy")
                say(f"{run.id}  {run.started}  {run.device.label}, {run.regime}, {strategy}{aside}")
        return
    counts = overview(measured(store, regime=None))
    if counts.empty:
        say("the store holds no measurements yet: run `normtune sweep`")
        return
    console().print(_table(counts))


@app.command("export")
def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="FILE.parquet or FILE.csv; with --recording, a folder.")],
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this dtype. Repeatable.")] = None,
    recording: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Write a recording of this name (nvidia-h200), one Parquet file per operator."
        ),
    ] = None,
    regime: Annotated[
        str, typer.Option(metavar="NAME", help="Only times measured cold, warm or eager; all: everything.")
    ] = COLD,
    store: StoreOption = None,
) -> None:
    """Write measurements as Parquet (to import or to fit elsewhere), as CSV (a line per sample), or as a recording."""
    from normtune.results.exchange.transfer import export_file, export_recording
    from normtune.results.filters import narrowed
    from normtune.results.source import measured

    def load() -> "Evidence":
        return narrowed(measured(store, regime=None), operator or [], dtype or [])

    wanted = None if regime == _ALL else regime
    if recording is None:
        found = export_file(load, out, wanted)
        runs = f"{len(found.evidence.runs)} run{'s' * (len(found.evidence.runs) != 1)}"
        lines = [f"{out}: {len(found.evidence.frame)} measurements of {runs}, {found.evidence.digest()}"]
    else:
        found = export_recording(load, recording, out, wanted)
        lines = [f"{path}: {path.stat().st_size} bytes" for path in found.paths]
    if found.left_out:
        others = ", ".join(found.regimes)
        say(f"left out {found.left_out} measurements of other regimes ({others}): --regime {_ALL} takes them along")
    say("\n".join(lines))


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Parquet files that `normtune data export` wrote.")],
    store: StoreOption = None,
) -> None:
    """Add the measurements of Parquet files to a store. What the store has already stays as it is."""
    from normtune.results.api import imported

    for path, measurements, added in imported(files, store):
        say(f"{path}: {measurements} measurements, {added} new")


@app.command("drop")
def drop(
    run: Annotated[str, typer.Argument(help="Its id, or the first characters, as `data list --runs` has it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Take the run back.")] = False,
    store: StoreOption = None,
) -> None:
    """Set a run aside: its measurements are kept, and nothing uses them until --undo."""
    from normtune.results.database.store import Store, resolve_url

    Store.open(resolve_url(store), create=False).close()
    with Store.open(resolve_url(store)) as opened:
        found = opened.drop(run, undo=undo)
    if undo:
        say(f"run {found.id} of {found.started} is used again")
    else:
        say(f"run {found.id} of {found.started} is set aside; `normtune data drop --undo {found.id}` takes it back")


def _table(counts: "pd.DataFrame") -> "Table":
    """The counts of `overview`, a row for each device, operator, variant, dtype and regime."""
    from rich.table import Table

    from normtune.results.terminal import printable

    table = Table("device", "operator", "dtype", "regime")
    for name in ("problems", "measurements", "runs"):
        table.add_column(name, justify="right")
    table.add_column("by status")
    for row in counts.to_dict("records"):
        table.add_row(
            printable(f"{row['device']}, {row['sms']} SMs"),
            printable(row["operator"]),
            row["dtype"],
            printable(row["regime"]),
            *(str(row[name]) for name in ("problems", "measurements", "runs")),
            ", ".join(f"{count} {status}" for status, count in row["statuses"].items()),
        )
    return table
