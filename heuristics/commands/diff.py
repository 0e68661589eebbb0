"""`normtune diff`: differences and losses of two tables, or of a table and the rule of another library.

In: two names and options. Out: for each device, operator and dtype a map and figures. `api.diff` finds
the differences and `comparing.report` writes them; both are imported when the command runs.
"""

from typing import Annotated

import typer

from normtune.results.commands import DtypeOption, OperatorOption, RegimeOption, StoreOption
from normtune.results.regimes import COLD
from normtune.results.terminal import say


def diff(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="File of a table, shipped table (nvidia-h200), or rule (liger)."),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    store: StoreOption = None,
    recording: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Score on a recording that ships with normtune, in place of a store."),
    ] = None,
    regime: RegimeOption = COLD,
    weights: Annotated[
        str,
        typer.Option(metavar="CHOICE", help="Weight of a shape in means, as for `fit`: decades, equal or a CSV file."),
    ] = "decades",
    operator: OperatorOption = None,
    dtype: DtypeOption = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print Markdown for a pull request: a summary, then each operator to unfold."),
    ] = False,
) -> None:
    """Compare two tables, or a table and the launch rule of another library, on the same measurements.

    A config has a time only where it, or one with the same launch, was measured.
    """
    from normtune.heuristics.api.diff import compared
    from normtune.results.filters import narrowed
    from normtune.results.source import measured
    from normtune.results.terminal import console, map_columns

    result = compared(
        first, second, weights, lambda: narrowed(measured(store, recording, regime), operator or [], dtype or [])
    )
    if not result.devices:
        say("there are no measurements yet: run `normtune sweep`")
        return
    for line in result.lines(map_columns(console()), markdown):
        say(line)
