"""`normtune show`: maps of the best configs, of a table's configs, of flips between regimes; or the measurements.

In: options. Out: for each device, a map of each operator and dtype, or a list. `matrix` finds the best, `config_map`
draws, `listing` lists, `flips` compares regimes; all of that is imported when the command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import UsageError
from normtune.results.commands import StoreOption
from normtune.results.regimes import COLD, WARM, check_regime
from normtune.results.terminal import say

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table as RichTable

    from normtune.heuristics.regret.matrix import TimingMatrix
    from normtune.heuristics.showing.config_map import BestMap
    from normtune.heuristics.tablefile.locate import Table
    from normtune.results.evidence import Evidence

LIMIT = 40
_WORST = 5
_COUNTS = "shown: shapes for which it is within 1 % of the best; best: those it is best for"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(show)


def show(
    store: StoreOption = None,
    recording: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show a recording that ships with normtune, in place of a store.")
    ] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this dtype. Repeatable.")] = None,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Map the configs of this table, and mark where it loses over 3 %."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help='List the measurements that match: "hidden <= 512 and best_ratio < 1.02".'),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="List in the order of this column; -COLUMN: descending. Default: by problem and time.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help=f"List at most so many measurements. Default: {LIMIT}.")
    ] = None,
    regime: Annotated[str, typer.Option(metavar="NAME", help="Only times measured cold, warm or eager.")] = COLD,
    flips: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Map where the best config of --regime is not good in this regime, and vice versa."
        ),
    ] = None,
) -> None:
    """Show which config is best at each shape, the configs of a table, or single measurements.

    Draws a map: hidden sizes down, rows across, a letter per config. --where, --sort and --limit list measurements.
    """
    from normtune.heuristics.regret.build import matrices_of, outdated
    from normtune.results.source import measured, narrowed
    from normtune.results.terminal import console, printable

    listed = where is not None or sort is not None or limit is not None
    if table and listed:
        raise UsageError(
            "--table marks a map, --where, --sort and --limit list measurements: give the one or the other"
        )
    check_regime(regime)
    if flips is not None:
        if table or listed:
            raise UsageError("--flips is a map of its own: give neither --table nor --where, --sort or --limit with it")
        _show_flips(store, recording, operator or [], dtype or [], (regime, flips))
        return
    loaded = _load(table) if table else None
    evidence = narrowed(measured(store, recording, regime), operator or [], dtype or [])
    if listed:
        from normtune.heuristics.showing.listing import check_chosen

        check_chosen(where, sort, evidence)
    if evidence.frame.empty:
        say("there are no measurements yet: run `normtune sweep`")
        return
    screen = console()
    taken = "" if regime == COLD else f", {regime}"
    for number, device in enumerate(evidence.devices()):
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        lists = _list(current, matrices, where, sort, limit or LIMIT) if listed else []
        if number:
            screen.print()
        label = printable(f"{device.label}, {device.target}, {device.sms} SMs")
        screen.print(f"{label}: {len(current.frame)} measurements{taken}", style="bold", soft_wrap=True)
        for line in (*outdated(part, current), *notes, *lists):
            screen.print(line, soft_wrap=isinstance(line, str))
        if not listed:
            for matrix in matrices:
                _print_map(screen, current, matrix, loaded)
            if matrices and not loaded:
                screen.print(f"\n{_COUNTS}", soft_wrap=True)


def _show_flips(
    store: str | None, recording: str | None, operators: list[str], dtypes: list[str], regimes: tuple[str, str]
) -> None:
    """Maps of the shapes at which the best config of one regime loses in the other, device by device."""
    from normtune.heuristics.showing.flips_measured import directions
    from normtune.heuristics.showing.flips_report import flip_lines
    from normtune.results.source import in_regime, measured, narrowed
    from normtune.results.terminal import console, map_columns, printable

    if regimes[0] == regimes[1]:
        raise UsageError(f"--flips is {regimes[1]!r}, and so is --regime: name two regimes, as --flips {WARM}")
    check_regime(regimes[1])
    whole = narrowed(measured(store, recording, None), operators, dtypes)
    if whole.frame.empty:
        say("there are no measurements yet: run `normtune sweep`")
        return
    source = f"recording {recording}" if recording else "the store"
    parts = [in_regime(whole, name, source) for name in regimes]
    screen = console()
    shown = 0
    for device in whole.devices():
        one, other = (part.of(device).current() for part in parts)
        pairs = directions(one, other, device) if one.runs and other.runs else []
        for name, both in pairs:
            if shown:
                screen.print()
            shown += 1
            screen.print(printable(f"{device.label}, {device.target}, {device.sms} SMs"), style="bold", soft_wrap=True)
            for line in flip_lines(name, both, map_columns(screen)):
                screen.print(line, soft_wrap=True)
    if not shown:
        say(f"no shape was measured both {regimes[0]} and {regimes[1]} on one device: sweep the same shapes twice")


def _load(path: Path) -> "Table":
    from normtune.heuristics.tablefile.locate import load

    return load(path)


def _print_map(screen: "Console", current: "Evidence", matrix: "TimingMatrix", table: "Table | None") -> None:
    from normtune.heuristics.regret.fixed_log import percent
    from normtune.heuristics.showing.config_map import best_map, legend_lines, map_lines, table_map
    from normtune.results.terminal import map_columns

    frame = current.select([matrix.key], [matrix.dtype]).frame
    frame = frame[frame["variant"] == matrix.variant]
    shapes = {(int(rows), int(hidden)) for rows, hidden in zip(frame["rows"], frame["hidden"], strict=True)}
    answer = table.answer(matrix.key, matrix.dtype) if table else None
    screen.print()
    name = f"{matrix.key} {matrix.dtype}"
    if table and answer is None:
        screen.print(f"{name}: {table.source} has no function for it", soft_wrap=True)
        return
    content = table_map(matrix, shapes, answer) if answer else best_map(matrix, shapes)
    shown = f"the configs of {table.source.name}" if table else "the best config"
    screen.print(f"{name}: {shown} (1k = 1024)", style="bold", soft_wrap=True)
    for line in (*map_lines(content, map_columns(screen)), *legend_lines(content)):
        screen.print(line, soft_wrap=True)
    loss = content.summary() if answer else None
    if loss:
        losses = f"loses {percent(loss.mean)} on average, {percent(loss.worst, 1)} at worst"
        screen.print(f"The table {losses}, over the best config of each of {loss.problems} shapes.")
        _print_worst(screen, matrix, content)


def _print_worst(screen: "Console", matrix: "TimingMatrix", content: "BestMap") -> None:
    """The worst shapes of a table, each with the best config."""
    from normtune.heuristics.regret.fixed_log import percent

    for (rows, hidden), loss in content.worst(_WORST):
        index = matrix.problems.index((rows, hidden))
        best = min(
            (config for config in matrix.configs if matrix.loss(index, config) is not None),
            key=lambda config: matrix.loss(index, config) or 0,
        )
        letter = content.letters[content.shown[rows, hidden]]
        name = str(best).removesuffix(f" {content.ending}")
        screen.print(f"  {percent(loss, 1):>7} at {rows} rows of {hidden}: {letter}, best is {name}", soft_wrap=True)


def _list(
    current: "Evidence", matrices: "list[TimingMatrix]", query: str | None, sort: str | None, limit: int
) -> "list[RichTable | str]":
    """The measurements that were asked for, and how many are left out."""
    from normtune.heuristics.showing.listing import chosen, listing

    frame = listing(current, matrices)
    found = chosen(frame, query, sort)
    if found.empty:
        return [f"none of the {len(frame)} measurements is so"]
    left = f"{len(found) - limit} more are left out: --limit {len(found)} lists all" if len(found) > limit else ""
    return [_listed(found.head(limit)), f"{len(found)} of {len(frame)} measurements" + (f", {left}" if left else "")]


def _listed(frame: "pd.DataFrame") -> "RichTable":
    """Measurements as a table; operator and dtype are left out if all rows share them, to save columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from normtune.heuristics.showing.listing import config_of_row
    from normtune.results.terminal import printable

    failed = bool((frame["status"] != "ok").any())
    keys = frame["operator"] + (":" + frame["variant"]).where(frame["variant"] != "", "")
    is_uniform = keys.nunique() == 1 and frame["dtype"].nunique() == 1
    title = printable(f"{keys.iloc[0]} {frame['dtype'].iloc[0]}") if is_uniform else None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in () if is_uniform else ("operator", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "hidden"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("config")
    for name in ("us", "x best", "x copy", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    if failed:
        table.add_column("status: reason")
    for key, row in zip(keys, frame.to_dict("records"), strict=True):
        config = config_of_row(row)
        numbers = ((row["median_us"], 2), (row["best_ratio"], 3), (row["copy_ratio"], 2), (row["gbps"], 1))
        cells = [] if is_uniform else [key, row["dtype"]]
        cells += [str(row["rows"]), str(row["hidden"]), str(config)]
        cells += ["-" if number != number else f"{number:.{digits}f}" for number, digits in numbers]
        if failed:
            cells.append("" if row["status"] == "ok" else f"{row['status']}: {row['reason']}")
        table.add_row(*map(printable, cells))
    return table
