"""`normtune diff`: where two tables, or a table and the rule of another library, differ, and what each loses.

In: two names and options. Out: for each device, operator and dtype a map and figures. What differs is found by
`difference`, how it reads is in `difference_text`; both are imported when the command runs.
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
        typer.Argument(metavar="A", help="A rule, as `liger`, a table's file, or a shipped table, as `nvidia-h200`."),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    store: Annotated[str | None, typer.Option(help="Store: URL or file; else NORMTUNE_STORE, normtune.db.")] = None,
    recording: Annotated[
        str | None, typer.Option(help="Score on a recording that ships with normtune instead.")
    ] = None,
    regime: Annotated[str, typer.Option(help="Of times taken cold, warm or eager.")] = "cold",
    weights: Annotated[
        str, typer.Option(help="What a shape counts: decades of bytes moved, equal, or a CSV of rows,hidden,weight.")
    ] = "decades",
    operator: Annotated[
        list[str] | None, typer.Option(help="Only this operator, or variant as a:b; repeat. Default all.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; repeat. Default all.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
) -> None:
    """Show where two tables or rules launch differently, and what each loses on what was measured.

    A config has a time only where it, or one that launches the same, was measured.
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
        found = []
        for plain in matrices:
            matrix = weighting.weighted(registered(plain.operator), plain)
            found.append(difference(matrix, target, *sides, best_times(current, matrix).best))
        for note in (*outdated(part, current), *notes):
            say(f"\n{note}")
        for lines in (
            summary_lines(found, markdown),
            *(difference_lines(one, columns, device.l2_bytes, markdown) for one in found),
        ):
            say()
            for line in lines:
                say(line)
        for line in against_liger(found):
            say(line)
    for note in weighting.notes():
        say(f"\n{note}")
