"""`normtune doctor`: prints the findings of `checks`; exit code 1 if one is a problem.

Needs only Typer, because it has to run when the rest is broken.
"""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.results.terminal import printable, say

if TYPE_CHECKING:
    from normtune.tuner.doctor.checks import Finding

_COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "problem": typer.colors.RED}


def doctor(
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Store: an SQLite file or a URL. Default: NORMTUNE_STORE, else ./normtune.db."
        ),
    ] = None,
) -> None:
    """Report the state of this machine, with advice for each fault. Bug reports should have its lines.

    The exit code is 1 if a fault prevents a sweep or the kernels.
    """
    from normtune.tuner.doctor.checks import PROBLEM, WARNING
    from normtune.tuner.doctor.checks import doctor as findings_of

    findings = findings_of(store)
    problems = sum(finding.level == PROBLEM for finding in findings)
    warnings = sum(finding.level == WARNING for finding in findings)
    for line in lines(findings, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR")):
        typer.echo(line, color=True)
    say(_verdict(problems, warnings))
    if problems:
        raise typer.Exit(1)


def lines(findings: "list[Finding]", colour: bool) -> list[str]:
    """Findings as lines, with advice indented below; with `colour`, levels are coloured for a terminal."""
    printed = []
    for level, topic, state, advice in findings:
        label = typer.style(f"{level:8}", fg=_COLOURS[level]) if colour else f"{level:8}"
        printed.append(f"{label} {topic:9} {printable(state)}")
        if advice:
            printed.append(f"{'':18} {printable(advice)}")
    return printed


def _verdict(problems: int, warnings: int) -> str:
    count = f"{warnings} warning{'s' * (warnings != 1)}"
    if not problems:
        return f"no problem found, {count}"
    return f"{problems} problem{'s' * (problems != 1)}, {count}: sweeps or kernels will not work before that is fixed"
