"""`normtune diff`: differences and losses of two tables, or of a table and the rule of another library.

In: two names and options. Out: for each device, operator and dtype a verdict; with --details all figures and a map.
`api.diff` computes the differences, `comparing.report` has their text; both are imported when the command runs.
"""

from typing import Annotated, Any

import typer

from normtune.errors import UsageError
from normtune.heuristics.comparing.options import DiffRequest
from normtune.results.commands import with_options
from normtune.results.source import NOTHING
from normtune.results.terminal import say, tell


@with_options(DiffRequest, before="details")
def diff(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="File of a table, shipped table (nvidia-h200), or rule (liger)."),
    ],
    second: Annotated[
        list[str], typer.Argument(metavar="B...", help="The tables or rules to compare A with.", show_default=False)
    ],
    details: Annotated[
        bool, typer.Option("--details", help="Also print all figures, and maps of the shapes at which they differ.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print Markdown for a pull request: a summary, then each operator to unfold."),
    ] = False,
    **chosen: Any,
) -> None:
    """Compare a table with other tables, or rules of other libraries.

    All are scored on the same measurements: of --store, else those that the first table was fitted to. A config has a
    time only where it, or one with the same launch, was measured.
    """
    if details and markdown:
        raise UsageError("--details and --markdown are forms of the same output: give one of them")
    from normtune.heuristics.api.diff import diff as compared
    from normtune.results.terminal import console, map_columns

    results = [compared(first, other, **chosen) for other in second]
    if not any(result.devices for result in results):
        say(NOTHING)
        return
    for number, result in enumerate(results):
        if number:
            say("")
        lines = result.details(map_columns(console()), markdown) if details or markdown else result.verdict()
        for line in lines:
            say(line)
    if not details and not markdown:
        tell("\nMore: --details, docs/glossary.md")
