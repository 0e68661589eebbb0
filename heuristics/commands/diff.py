"""`normtune diff`: differences and losses of two tables, or of a table and the rule of another library.

In: two names and options. Out: for each device, operator and dtype a map and figures. `difference` finds the
differences, `comparing.report` prints them; both are imported when the command runs.
"""

from typing import Annotated

import typer

from normtune.results.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(diff)


def diff(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="File of a table, shipped table (nvidia-h200), or rule (liger)."),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Store: an SQLite file or a URL. Default: NORMTUNE_STORE, else ./normtune.db."
        ),
    ] = None,
    recording: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Score on a recording that ships with normtune, in place of a store."),
    ] = None,
    regime: Annotated[str, typer.Option(metavar="NAME", help="Only times measured cold, warm or eager.")] = "cold",
    weights: Annotated[
        str,
        typer.Option(metavar="CHOICE", help="Weight of a shape in means, as for `fit`: decades, equal or a CSV file."),
    ] = "decades",
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this dtype. Repeatable.")] = None,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", help="Print Markdown for a pull request: a summary, then each operator to unfold."),
    ] = False,
) -> None:
    """Compare two tables, or a table and the launch rule of another library, on the same measurements.

    A config has a time only where it, or one with the same launch, was measured.
    """
    from normtune.heuristics.comparing.difference import difference
    from normtune.heuristics.comparing.report import GAINS, against_liger, difference_lines, summary_lines
    from normtune.heuristics.comparing.sides import contender
    from normtune.heuristics.regret.best_times import best_times
    from normtune.heuristics.regret.build import matrices_of, outdated
    from normtune.heuristics.regret.weights import Weighting
    from normtune.kernels.operator import operator as registered
    from normtune.kernels.target import target_for
    from normtune.results.source import measured, narrowed
    from normtune.results.terminal import console, map_columns, printable

    sides = contender(first), contender(second)
    weighting = Weighting(weights)
    evidence = narrowed(measured(store, recording, regime), operator or [], dtype or [])
    if evidence.frame.empty:
        say("there are no measurements yet: run `normtune sweep`")
        return
    columns = map_columns(console())
    for number, device in enumerate(evidence.devices()):
        if number:
            say()
        names = [f"`{side.name}`" if markdown else side.name for side in sides]
        label = printable(f"{device.label}, {device.target}, {device.sms} SMs: A is {names[0]}, B is {names[1]}")
        say(f"## {label}\n" if markdown else label)
        say(GAINS)
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        target = target_for(device.target, device.sms)._replace(l2_bytes=device.l2_bytes)
        differences = []
        for plain in matrices:
            matrix = weighting.weighted(registered(plain.operator), plain)
            differences.append(difference(matrix, target, *sides, best_times(current, matrix).best))
        for note in (*outdated(part, current), *notes):
            say(f"\n{note}")
        for lines in (
            summary_lines(differences, markdown),
            *(difference_lines(comparison, columns, device.l2_bytes, markdown) for comparison in differences),
        ):
            say()
            for line in lines:
                say(line)
        for line in against_liger(differences):
            say(line)
    for note in weighting.notes():
        say(f"\n{note}")
