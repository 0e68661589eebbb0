"""`normtune show`: maps of the best configs or of a table's configs.

In: options. Out: for each device, a map of each operator and dtype. `api.maps` computes the maps, `config_map` draws
them; both are imported when the command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.kernels.problem import axes_of
from normtune.results.commands import ReadOption, with_options
from normtune.results.source import NOTHING, Selection
from normtune.results.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from normtune.heuristics.api.maps import DeviceMaps
    from normtune.heuristics.showing.config_map import BestMap
    from normtune.kernels.key import Key
    from normtune.results.records import Device

_WORST = 5
_COUNTS = "shown: shapes where it is within 1 % of the best; best: shapes where it is best"


@with_options(Selection)
def show(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="File of a table, or shipped table (nvidia-h200): map its configs, and mark where it loses over 3 %. "
            "Without --store the measurements are those that it was fitted to.",
        ),
    ] = None,
    store: ReadOption = None,
    **chosen: Any,
) -> None:
    """Map the best config of each shape, or the configs of a table.

    Hidden sizes go down, rows across; a letter is a config.
    """
    selection = Selection(**chosen)
    from normtune.heuristics.api.maps import maps_of
    from normtune.heuristics.writing.named_files import selected
    from normtune.kernels.tablefile.locate import load_table

    loaded = load_table(table) if table else None
    evidence = selected(selection, store, loaded)
    if evidence.frame.empty:
        say(NOTHING)
    else:
        _show_maps(maps_of(evidence, loaded), loaded.source if loaded else None)


def _show_maps(parts: "Sequence[DeviceMaps]", table: Path | None) -> None:
    from normtune.results.terminal import console

    screen = console()
    for number, part in enumerate(parts):
        _print_head(screen, number, part.device, part.measurements, part.notes)
        for key, content in part.maps.items():
            _print_map(screen, key, content, table)
        if part.maps and not table:
            screen.print(f"\n{_COUNTS}", soft_wrap=True)


def _print_head(screen: "Console", number: int, device: "Device", measurements: int, notes: "Sequence[str]") -> None:
    from normtune.results.terminal import printable

    if number:
        screen.print()
    label = printable(f"{device.label}, {device.target}, {device.sms} SMs")
    screen.print(f"{label}: {measurements} measurements", style="bold", soft_wrap=True)
    for line in notes:
        screen.print(line, soft_wrap=True)


def _print_map(screen: "Console", key: "Key", content: "BestMap | None", table: Path | None) -> None:
    from normtune.heuristics.regret.fixed_log import percent
    from normtune.heuristics.showing.config_map import legend_lines, map_lines
    from normtune.heuristics.writing.entries import timed_share
    from normtune.results.terminal import map_columns

    screen.print()
    if content is None:
        screen.print(f"{key}: {table} has no function for it", soft_wrap=True)
        return
    subject = f"the configs of {table.name}" if table else "the best config"
    screen.print(f"{key}: {subject} (1k = 1024)", style="bold", soft_wrap=True)
    for line in (*map_lines(content, map_columns(screen), axes_of(key.family)), *legend_lines(content)):
        screen.print(line, soft_wrap=True)
    if loss := content.loss:
        losses = f"loses {percent(loss.plain)} on average, {percent(loss.worst, 1)} at worst"
        screen.print(f"The table {losses}, over the best config of each shape, {timed_share(loss)}.", soft_wrap=True)
        for shape, lost in content.worst(_WORST):
            letter = content.letters[content.config_at[shape]]
            best = str(content.best[shape]).removesuffix(f" {content.ending}")
            screen.print(
                f"  {percent(lost, 1):>7} at {shape[0]} rows of {shape[1]}: {letter}, best is {best}", soft_wrap=True
            )
