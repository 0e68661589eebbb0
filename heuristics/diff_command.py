"""`normtune diff`: where two tables, or a table and the rule of another library, differ, and what each loses.

In: two names and options. Out: for each device, operator and dtype a map and figures. What differs is found by
`difference`, how it reads is in `difference_text`; both are imported when the command runs.
"""

from typing import Annotated

import typer


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
    operator: Annotated[
        list[str] | None, typer.Option(help="Only this operator, or variant as a:b; repeat. Default all.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype; repeat. Default all.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
) -> None:
    """Show where two tables or rules launch differently, and what each loses on what was measured.

    A config has a time only where it, or one that launches the same, was measured.
    """
    from normtune.heuristics.difference import difference, side
    from normtune.heuristics.difference_text import difference_lines
    from normtune.heuristics.matrices import matrices_of, outdated
    from normtune.kernels.target import target_for
    from normtune.results.source import measured, narrowed
    from normtune.results.terminal import console, map_columns, printable

    sides = side(first), side(second)
    evidence = narrowed(measured(store, recording), operator or [], dtype or [])
    if evidence.frame.empty:
        typer.echo("there are no measurements yet: run `normtune sweep`")
        return
    columns = map_columns(console())
    for number, device in enumerate(evidence.devices()):
        if number:
            typer.echo()
        label = printable(f"{device.label}, {device.target}, {device.sms} SMs: {sides[0].name} and {sides[1].name}")
        typer.echo(f"## {label}" if markdown else label)
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        for note in (*outdated(part, current), *notes):
            typer.echo(f"\n{note}")
        for matrix in matrices:
            typer.echo()
            target = target_for(device.target, device.sms)
            for line in difference_lines(difference(matrix, target, *sides), columns, markdown):
                typer.echo(line)
