"""`normtune report` and `normtune plot`: a page, and single charts as pictures.

In: tables, options, the name of a file. Out: that file. `api.report` does the work; it is imported when a command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normtune.results.commands import ReadOption, with_options
from normtune.results.source import Selection
from normtune.results.terminal import note, tell

if TYPE_CHECKING:
    from normtune.heuristics.api.report import Report

TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE]...",
        help="File of a table, shipped table (nvidia-h200), or rule (liger) to compare the first with. Default: fit a "
        "table to the measurements. Without --store the measurements are those that its command names.",
    ),
]


@with_options(Selection, before="force")
def report(
    tables: TablesArgument = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the page to this file.")] = Path("report.html"),
    store: ReadOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that normtune did not write.")] = False,
    **chosen: Any,
) -> None:
    """Write a page about a table and its measurements, for a browser.

    It is one HTML file that needs no network. It has the verdict, and for each operator and dtype maps of configs,
    speed-up over rules and other tables, time over a copy, losses, samples, and how many configs were timed. Needs
    `pip install 'normtune[report]'`.
    """
    from normtune.heuristics.api.report import check_page
    from normtune.heuristics.report.images import check_extra

    check_extra()
    check_page(out, force)
    page = _reported(tables, store, chosen)
    page.save(out, force)
    tell(f"wrote {out}: {page.title}, {out.stat().st_size / 1e6:.1f} MB, opens in any browser")


@with_options(Selection, before="what")
def plot(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the picture to FILE.png, FILE.svg or FILE.pdf.")],
    tables: TablesArgument = None,
    store: ReadOption = None,
    what: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="map; faster, speed-up; copy, time over a copy's; loss; fastest, the fastest configs; ties, configs "
            "that may be the fastest; measured, the share of configs with times.",
        ),
    ] = "map",
    **chosen: Any,
) -> None:
    """Draw one chart of an operator and dtype as a picture.

    Needs `pip install 'normtune[report]'`.
    """
    from normtune.heuristics.report.images import check_extra, check_format
    from normtune.heuristics.report.pictures import check_kind

    check_extra()
    check_format(out)
    check_kind(what)
    _reported(tables, store, chosen).plot(out, what)
    tell(f"wrote {out}")


def _reported(tables: list[str] | None, store: str | None, chosen: dict[str, Any]) -> "Report":
    from normtune.heuristics.api.report import ReportRequest, reported

    return reported(ReportRequest(tuple(tables or ()), store, **chosen), note)
