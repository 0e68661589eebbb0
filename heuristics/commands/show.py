"""`normtune show`: maps of the best configs or of a table's configs; or the measurements.

In: options. Out: for each device, a map of each operator and dtype, or a list. `api.maps` computes the maps,
`config_map` draws them, `listing` lists; all of them are imported when the command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.errors import UsageError
from normtune.kernels.key import family_of
from normtune.kernels.problem import AXES, axes_of
from normtune.results.commands import JsonOption, ReadOption, with_options
from normtune.results.options import parse_number
from normtune.results.regimes import COLD, check_regime
from normtune.results.source import NOTHING, Selection
from normtune.results.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from rich.console import Console
    from rich.table import Table as RichTable

    from normtune.heuristics.api.maps import ConfigMap, Maps
    from normtune.results.evidence import Evidence
    from normtune.results.records import Device

LIMIT = 40
_WORST = 5
_COUNTS = "shown: shapes where it is within 1 % of the best; best: shapes where it is best"


@with_options(Selection, before="table")
def show(
    store: ReadOption = None,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Map the configs of this table, and mark where it loses over 3 %.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="List in the order of this column; -COLUMN: descending. Default: by problem and time.",
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="N", help=f"List at most so many measurements. Default: {LIMIT}.")
    ] = None,
    as_json: JsonOption = False,
    **chosen: Any,
) -> None:
    """Show the best config of each shape, a table's configs, or measurements.

    Draws a map: hidden sizes down, rows across, a letter per config. --sort and --limit list measurements.
    """
    selection, listed = Selection(**chosen), sort is not None or limit is not None
    most = None if limit is None else int(parse_number(int, "--limit", limit))
    if most is not None and most < 1:
        raise UsageError(f"--limit is {most}: expected a positive integer")
    if table and listed:
        raise UsageError("--table draws a map, --sort and --limit list measurements: give one or the other")
    check_regime(selection.regime)
    from normtune.heuristics.api.maps import maps_of
    from normtune.heuristics.api.show import listed_of
    from normtune.kernels.tablefile.locate import load_table
    from normtune.results.terminal import say_json

    loaded = load_table(table) if table else None
    evidence = selection.load(store)
    if listed and as_json:
        say_json({"measurements": listed_of(evidence, sort, most)})
    elif listed:
        _show_lists(evidence, selection.regime, sort, most or LIMIT)
    elif as_json:
        say_json({"shapes": maps_of(evidence, loaded).frame()})
    elif evidence.frame.empty:
        say(NOTHING)
    else:
        _show_maps(maps_of(evidence, loaded), selection.regime)


def _show_maps(maps: "Maps", regime: str) -> None:
    from normtune.results.terminal import console

    screen = console()
    for number, part in enumerate(maps.devices):
        _print_head(screen, number, part.device, part.measurements, regime, part.notes)
        for config_map in part.maps:
            _print_map(screen, config_map, maps.table)
        if part.maps and not maps.table:
            screen.print(f"\n{_COUNTS}", soft_wrap=True)


def _show_lists(evidence: "Evidence", regime: str, sort: str | None, limit: int) -> None:
    from normtune.heuristics.regret.build import matrices_of, outdated
    from normtune.heuristics.showing.listing import check_order, listing, ordered
    from normtune.results.terminal import console

    check_order(sort, evidence)
    if evidence.frame.empty:
        say(NOTHING)
        return
    screen = console()
    for number, device in enumerate(evidence.devices()):
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        frame = ordered(listing(current, matrices), sort)
        more = f", {len(frame) - limit} more are left out: --limit {len(frame)} lists all" * (len(frame) > limit)
        _print_head(screen, number, device, len(current.frame), regime, (*outdated(part, current), *notes))
        screen.print(_listed(frame.head(limit)))
        screen.print(f"{len(frame)} measurements{more}", soft_wrap=True)


def _print_head(
    screen: "Console", number: int, device: "Device", measurements: int, regime: str, notes: "Sequence[str]"
) -> None:
    from normtune.results.terminal import printable

    if number:
        screen.print()
    suffix = "" if regime == COLD else f", {regime}"
    label = printable(f"{device.label}, {device.target}, {device.sms} SMs")
    screen.print(f"{label}: {measurements} measurements{suffix}", style="bold", soft_wrap=True)
    for line in notes:
        screen.print(line, soft_wrap=True)


def _print_map(screen: "Console", config_map: "ConfigMap", table: Path | None) -> None:
    from normtune.heuristics.regret.fixed_log import percent
    from normtune.heuristics.showing.config_map import legend_lines, map_lines
    from normtune.heuristics.writing.entries import timed_share
    from normtune.results.terminal import map_columns

    screen.print()
    name, content = f"{config_map.operator} {config_map.dtype}", config_map.content
    if content is None:
        screen.print(f"{name}: {table} has no function for it", soft_wrap=True)
        return
    shown = f"the configs of {table.name}" if table else "the best config"
    screen.print(f"{name}: {shown} (1k = 1024)", style="bold", soft_wrap=True)
    axes = axes_of(family_of(config_map.operator.partition(":")[0]))
    for line in (*map_lines(content, map_columns(screen), axes), *legend_lines(content)):
        screen.print(line, soft_wrap=True)
    if loss := content.loss:
        losses = f"loses {percent(loss.plain)} on average, {percent(loss.worst, 1)} at worst"
        screen.print(f"The table {losses}, over the best config of each shape, {timed_share(loss)}.", soft_wrap=True)
        for shape, lost in content.worst(_WORST):
            letter = content.letters[content.shown[shape]]
            best = str(content.best[shape]).removesuffix(f" {content.ending}")
            screen.print(
                f"  {percent(lost, 1):>7} at {shape[0]} rows of {shape[1]}: {letter}, best is {best}", soft_wrap=True
            )


def _listed(frame: "pd.DataFrame") -> "RichTable":
    """A table without operator and dtype if all rows share them, to save columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from normtune.kernels.key import Key
    from normtune.results.terminal import printable

    failed = bool((frame["status"] != "ok").any())
    keys = [
        Key.of(*columns) for columns in zip(*(frame[name] for name in ("operator", "variant", "dtype")), strict=True)
    ]
    is_uniform = len({*keys}) == 1
    title = printable(str(keys[0])) if is_uniform else None
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in () if is_uniform else ("operator", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in AXES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("config")
    for name in ("us", "x best", "x copy", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    if failed:
        table.add_column("status: reason")
    for key, row in zip(keys, frame.to_dict("records"), strict=True):
        numbers = ((row["median_us"], 2), (row["best_ratio"], 3), (row["copy_ratio"], 2), (row["gbps"], 1))
        cells = [] if is_uniform else [key.text, key.dtype]
        cells += [*(str(row[axis]) for axis in AXES), str(row["config"])]
        cells += ["-" if number != number else f"{number:.{digits}f}" for number, digits in numbers]
        if failed:
            cells.append("" if row["status"] == "ok" else f"{row['status']}: {row['reason']}")
        table.add_row(*map(printable, cells))
    return table
