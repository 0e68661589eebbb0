"""The commands `fit` and `check`.

In: their options. Out: figures on the terminal, a table's file, an exit code. The work is done by `fitting`, `emit` and
`checking`, which are imported when a command runs.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import UsageError

if TYPE_CHECKING:
    from normtune.heuristics.fitted import Fit
    from normtune.results.frame import Evidence


def register(app: typer.Typer) -> None:
    """Add `fit` and `check` to the command line."""
    app.command("fit")(fit)
    app.command("check")(check)


def fit(
    store: Annotated[
        str | None, typer.Option(help="Measurements: a URL or an SQLite file; else NORMTUNE_STORE, else ./normtune.db.")
    ] = None,
    recording: Annotated[str | None, typer.Option(help="Fit a recording that ships with normtune instead.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    leaves: Annotated[
        int | None, typer.Option(min=1, help="The most leaves a function may have; else chosen by cross-validation.")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Make the table the one of this user for its GPU.")
    ] = False,
    operator: Annotated[list[str] | None, typer.Option(help="Only this operator; may be repeated.")] = None,
) -> None:
    """Fit the table that loses least, print what it loses, and write it with --out or --install."""
    from normtune.heuristics.fitting import fit as fit_table

    if store and recording:
        raise UsageError("--store and --recording are both given: a table is fitted to one of them")
    if out:
        _check_ours(out)
    operators = operator or []
    evidence, source = _evidence(store, recording)
    fitted = fit_table(evidence, leaves=leaves, operators=operators)
    _print_figures(fitted)
    options = [*source, *(word for name in operators for word in ("--operator", name))]
    if leaves:
        options += ["--leaves", str(leaves)]
    if out:
        _write(fitted, out, ["normtune", "fit", *options, "--out", out.name])
        print(f"wrote {out}")
    if install:
        from normtune.heuristics.locate import installed_path

        path = installed_path(fitted.device.name)
        _check_ours(path, folder=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(fitted, path, ["normtune", "fit", *options, "--install"])
        print(f"installed {path}: kernels on {fitted.device.name} use it from now on")
    if not install:
        _print_ways(fitted, out)


def check(
    tables: Annotated[list[Path], typer.Argument(help="Files that `normtune fit` wrote.", show_default=False)],
    strict: Annotated[bool, typer.Option("--strict", help="Fail where the kernels changed since, too.")] = False,
) -> None:
    """Check that tables belong to their data and kernels, without a GPU."""
    from normtune.heuristics.checking import check as check_table

    failed = False
    for path in tables:
        report = check_table(path)
        bad = bool(report.failures) or (strict and bool(report.stale))
        failed = failed or bad
        print(f"{path}: {'FAILED' if bad else 'STALE' if report.stale else 'OK'}")
        for line in (*report.failures, *report.stale, *report.notes):
            print("  " + line.replace("\n", "\n  "))
    if failed:
        raise typer.Exit(1)


def _evidence(store: str | None, recording: str | None) -> "tuple[Evidence, list[str]]":
    """The measurements, and the options that name them again without a password or a folder of this machine."""
    if recording:
        from normtune.results.recording import load_recording

        return load_recording(recording), ["--recording", recording]
    from normtune.results.connect import parse, resolve_url
    from normtune.results.store import Store

    url = resolve_url(store)
    with Store.open(url, create=False) as opened:
        evidence = opened.load()
    file = parse(url).database if url.startswith("sqlite") else None
    return evidence, ["--store", Path(file).name if file else "$NORMTUNE_STORE"]


def _check_ours(path: Path, folder: bool = True) -> None:
    """Refuse to write where something else stands.

    Raises:
        UsageError: the folder is missing, or the file exists and was not written by normtune.
    """
    from normtune.heuristics.header import FIRST_LINE

    if folder and not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist; create it or name another")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder, expected a file name")
    if path.exists() and not path.read_bytes().startswith(FIRST_LINE.encode() + b"\n"):
        raise UsageError(
            f"cannot write {path}: it exists and normtune did not write it; remove it or name another file"
        )


def _write(fitted: "Fit", path: Path, command: list[str]) -> None:
    from normtune.heuristics.emit import module_text
    from normtune.results.atomic import replaced

    words = [word if word.startswith("$") else shlex.quote(word) for word in command]
    with replaced(path) as temporary:
        temporary.write_text(module_text(fitted, " ".join(words)), "utf-8", newline="\n")


def _print_figures(fitted: "Fit") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from normtune.heuristics.micrologs import percent
    from normtune.heuristics.rules import liger

    console = Console(highlight=False)
    # Narrower, it would cut figures off; a terminal wraps what it cannot show.
    console.width = max(console.width, 120)
    device = fitted.device
    print(f"{device.label}, {device.target}, {device.sms} SMs: {fitted.measurements} measurements, {fitted.date}")
    print(f"Slower than the best config of each problem by, in percent ({liger.TITLE} on the same kernels):")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("operator", "dtype"):
        table.add_column(name, no_wrap=True, vertical="bottom")
    for name in ("leaves", "mean", "90th", "worst", "cross-\nvalidated", "optimum", "Liger\nmean", "Liger\nworst"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in fitted.functions:
        found = one.figures
        shown = (
            (found.loss.mean, 2),
            (found.loss.ninetieth, 2),
            (found.loss.worst, 1),
            (found.cross_validated, 2),
            (found.optimum, 2),
            (found.rule.mean if found.rule else None, 2),
            (found.rule.worst if found.rule else None, 1),
        )
        figures = ("-" if value is None else percent(value, digits).removesuffix(" %") for value, digits in shown)
        table.add_row(one.key, one.dtype, str(found.leaves), *figures)
    console.print(table)
    for variant in fitted.shared:
        cost = f"{percent(variant.cost)} on {variant.problems} problems"
        print(f"{variant.key} {variant.dtype} shares the plain table: that costs {cost}")
    for note in fitted.notes:
        print(note)


def _print_ways(fitted: "Fit", out: Path | None) -> None:
    name = str(out or "FILE")
    print("Three ways to use it:" if out else "Nothing was written. Three ways to use the table:")
    for way, effect in (
        ("normtune fit --install", f"kernels on {fitted.device.name} use it, for this user"),
        (f"NORMTUNE_TABLE={name}", "one process uses it" if out else "one process uses it; --out FILE writes it"),
        ("commit it", "as heuristics.py of a library, or in heuristics/tables/ of normtune"),
    ):
        print(f"  {way}: {effect}")
