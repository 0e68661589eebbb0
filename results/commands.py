"""`normtune data`, which lists, exports, merges and sets aside measurements; and commands with options of a dataclass.

In: options. Out: a table on the terminal, files, or more measurements in a store. `api` and `exchange` do the work;
they are imported when a command runs.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from functools import partial, wraps
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.kernels.tablefile.header import UNPAIRED
from normtune.results.elsewhere import Elsewhere
from normtune.results.options import LIST, Option, flag_of, parameter_of, parse_number
from normtune.results.regimes import COLD
from normtune.results.source import NOTHING, STORE_HELP
from normtune.results.terminal import say, tell

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="List, export, merge and set aside measurements.", no_args_is_help=True)

# Most devices that are listed with a line for each operator and dtype.
_MOST_DEVICES = 20

StoreOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Store: an SQLite file or a URL. Default: NORMTUNE_STORE, else ./normtune.db."),
]
ReadOption = Annotated[str | None, typer.Option("--store", metavar="URL", help=STORE_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def with_options(options: type[Any], before: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: a command gets the options of a dataclass that it does not declare, before a parameter or as last."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        *parameters, _ = inspect.signature(command).parameters.values()
        names = [parameter.name for parameter in parameters]
        declared = [
            field for field in fields(options) if field.metadata["option"].help and parameter_of(field) not in names
        ]
        # Options with `before` come last, because it may name another option.
        for field in sorted(declared, key=lambda field: field.metadata["option"].before != ""):
            follower = field.metadata["option"].before or before
            place = names.index(follower) if follower else len(names)
            parameters.insert(place, _parameter(field))
            names.insert(place, parameter_of(field))

        @wraps(command)
        def called(**arguments: Any) -> None:
            for field in declared:
                value, read = arguments.pop(parameter_of(field)), _reader(field)
                if value is None or value == []:
                    value = field.default
                elif isinstance(value, list):
                    value = (read or tuple)([part for text in value for part in text.split(",")])
                elif read:
                    value = read(value)
                arguments[field.name] = value
            command(**arguments)

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorated


def _reader(field: "Field[Any]") -> Callable[[Any], Any] | None:
    """How the command line reads the text of an option; None for a text and a flag."""
    kind = next((kind for kind in (int, float) if field.type in (kind, kind | None)), None)
    declared: Callable[[Any], Any] | None = field.metadata["option"].read
    return declared if declared or kind is None else partial(parse_number, kind, flag_of(field))


def _parameter(field: "Field[Any]") -> inspect.Parameter:
    about: Option = field.metadata["option"]
    kind, default = field.type, field.default
    if isinstance(default, tuple) or about.metavar == LIST:
        kind, default = list[str] | None, None
    elif read := _reader(field):
        kind = (read if isinstance(read, type) else str) | None
    declared = typer.Option(flag_of(field), help=about.help, metavar=about.metavar)
    by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(parameter_of(field), by_name, default=default, annotation=Annotated[kind, declared])


@app.command("list", epilog="Example: normtune data list --store normtune.db")
def list_(
    runs: Annotated[
        bool, typer.Option("--runs", help="List the runs with their ids instead, including those set aside.")
    ] = False,
    as_json: JsonOption = False,
    store: ReadOption = None,
) -> None:
    """Print what a store holds, by device, operator and dtype; of over 20 devices, a line each."""
    from normtune.results.overview import overview
    from normtune.results.runs import measurer
    from normtune.results.source import counted, listed_runs
    from normtune.results.terminal import console, printable, say_json

    if runs:
        listed = [
            {
                "id": run.id,
                "started": run.started,
                "device": run.device.label,
                "regime": run.regime,
                "strategy": UNPAIRED if run.is_unpaired else run.protocol.get("strategy", "unknown strategy"),
                "measurer": None if run.is_unpaired else measurer(run.device) or None,
                "set_aside": run.protocol.get("dropped"),
            }
            for run in listed_runs(store)
        ]
        if as_json:
            say_json({"runs": listed})
        for one in [] if as_json else listed:
            who = f", by {one['measurer']}" if one["measurer"] else ""
            aside = f", set aside on {one['set_aside']}" if one["set_aside"] else ""
            text = f"{one['device']}, {one['regime']}, {one['strategy']}{who}{aside}"
            say(f"{one['id']}  {one['started']}  {text}")
        return
    counts = overview(counted(store))
    if as_json:
        say_json({"measurements": counts})
        return
    if not counts:
        say(NOTHING)
        return
    screen = console()
    kinds = {f"{label}, {sms} SMs": [*part] for (label, sms), part in groupby(counts, itemgetter("device", "sms"))}
    if len(kinds) > _MOST_DEVICES:
        for kind, rows in kinds.items():
            functions = len({(row["operator"], row["dtype"]) for row in rows})
            say(f"{kind}: {sum(row['measurements'] for row in rows)} measurements of {functions} operators and dtypes")
        say("All in full: --json")
        return
    for kind, rows in kinds.items():
        screen.print(printable(kind), style="bold", soft_wrap=True)
        screen.print(_table(rows))


@app.command("export", epilog="Example: normtune data export --out h200.parquet")
def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="FILE.parquet or FILE.csv.")],
    store: ReadOption = None,
) -> None:
    """Write measurements of all regimes as Parquet, to merge or to fit elsewhere, or as CSV, a line per sample."""
    from normtune.results.api import export_data

    evidence = export_data(out, store, regime=None).evidence
    runs = f"{len(evidence.runs)} run{'s' * (len(evidence.runs) != 1)}"
    tell(f"{out}: {len(evidence.frame)} measurements of {runs}, {evidence.digest()}")


@app.command("merge", epilog="Example: normtune data merge h200.parquet bench.db --store all.db")
@with_options(Elsewhere, before="store")
def merge(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Parquet files that `normtune data export` wrote; stores, by their SQLite files or URLs; CSV or "
            "Parquet files of another program, with --name and --target. Their columns: operator, dtype, rows, hidden, "
            "a column for each knob or config, and nanoseconds, microseconds, milliseconds or seconds.",
        ),
    ],
    store: StoreOption = None,
    **chosen: Any,
) -> None:
    """Add the measurements of files and other stores to a store.

    The order of sources makes no difference, nor does merging one again. A run that one store sets aside is set aside.
    """
    from normtune.results.merge import merged
    from normtune.results.source import warn_of_damage

    for name, measurements, added, damage in merged(sources, store, Elsewhere(**chosen)):
        tell(f"{name}: {measurements} measurements, {added} new")
        warn_of_damage(damage)


@app.command("drop", epilog="Example: normtune data drop 4f2a")
def drop(
    run: Annotated[str, typer.Argument(help="Its id, or the first characters of it; `data list --runs` prints it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Use the run again.")] = False,
    store: StoreOption = None,
) -> None:
    """Set a run aside: its measurements are kept, but not used until --undo."""
    from normtune.results.database.store import Store
    from normtune.results.database.url import StoreUrl

    url = StoreUrl.of(store)
    Store.at(url, create=False).close()
    with Store.at(url) as opened:
        changed, option = opened.drop(run, undo=undo), opened.option
    if undo:
        tell(f"run {changed.id} of {changed.started} is used again")
    else:
        command = f"`normtune data drop --undo {changed.id}{option}`"
        tell(f"run {changed.id} of {changed.started} is set aside; {command} undoes this")


def _table(rows: Sequence[Mapping[str, Any]]) -> "Table":
    """The counts of one device; regime and statuses only where they are not all the same."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from normtune.results.terminal import printable

    names = ["operator", "dtype", *(["regime"] if {row["regime"] for row in rows} != {COLD} else [])]
    names += ["times"] if any(row["unpaired"] for row in rows) else []
    numbers = ["problems", "measurements", "runs"]
    failed = any({*row["statuses"]} != {"ok"} for row in rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    if failed:
        table.add_column("of these", overflow="fold")
    for row in rows:
        values = {**row, "times": UNPAIRED if row["unpaired"] else ""}
        cells = [printable(str(values[name])) for name in (*names, *numbers)]
        table.add_row(*cells, *([", ".join(f"{n} {status}" for status, n in row["statuses"].items())] * failed))
    return table
