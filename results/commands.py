"""`normtune data`: list, export and import measurements.

In: options. Out: a table on the terminal, files, or more measurements in a store. The work is done by `store`,
`parquet_csv` and `recording`, which are imported when a command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normtune.errors import NormtuneError, UsageError
from normtune.results.regimes import COLD, check_regime
from normtune.results.terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from normtune.results.evidence import Evidence

app = typer.Typer(help="List, export and import measurements.", no_args_is_help=True)

# The value of `--regime` that stands for every one.
_ALL = "all"

StoreOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Store: an SQLite file or a URL. Default: NORMTUNE_STORE, else ./normtune.db."),
]


@app.command("list")
def list_(store: StoreOption = None) -> None:
    """Print what a store holds, by device, operator and dtype."""
    from normtune.results.source import measured
    from normtune.results.terminal import console

    evidence = measured(store, regime=None)
    if evidence.frame.empty:
        say("the store holds no measurements yet: run `normtune sweep`")
        return
    console().print(_overview(evidence))


@app.command("export")
def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="FILE.parquet or FILE.csv; with --recording, a folder.")],
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this dtype. Repeatable.")] = None,
    recording: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Write a recording of this name (nvidia-h200), one Parquet file per operator."
        ),
    ] = None,
    regime: Annotated[
        str, typer.Option(metavar="NAME", help="Only times measured cold, warm or eager; all: everything.")
    ] = COLD,
    store: StoreOption = None,
) -> None:
    """Write measurements as Parquet (to import or to fit elsewhere), as CSV (a line per sample), or as a recording."""
    from normtune.results.parquet_csv import check_export, writer_of
    from normtune.results.recording import check_folder, write_recording
    from normtune.results.source import in_regime, measured, narrowed

    write = writer_of(out) if recording is None else None
    if regime != _ALL:
        check_regime(regime)
    if recording is None:
        check_export(out)
    else:
        check_folder(out)
    whole = narrowed(measured(store, regime=None), operator or [], dtype or [])
    evidence = whole if regime == _ALL else in_regime(whole, regime, "the store")
    if evidence.frame.empty:
        raise UsageError("there are no measurements to export: run `normtune sweep` first")
    lines = []
    if left := len(whole.frame) - len(evidence.frame):
        others = ", ".join(name for name in whole.regimes() if name != regime)
        lines.append(f"left out {left} measurements of other regimes ({others}): --regime {_ALL} takes them along")
    if recording is not None:
        lines += [f"{path}: {path.stat().st_size} bytes" for path in write_recording(evidence, recording, out)]
    elif write is not None:
        write(evidence, out)
        runs = f"{len(evidence.runs)} run{'s' * (len(evidence.runs) != 1)}"
        lines.append(f"{out}: {len(evidence.frame)} measurements of {runs}, {evidence.digest()}")
    say("\n".join(lines))


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Parquet files that `normtune data export` wrote.")],
    store: StoreOption = None,
) -> None:
    """Add the measurements of Parquet files to a store. What the store has already stays as it is."""
    from normtune.results.database.store import Store, resolve_url
    from normtune.results.parquet_csv import read_parquet
    from normtune.results.t4 import is_t4

    for path in filter(is_t4, files):
        raise UsageError(
            f"{path} is not imported: the samples of a T4 file were not taken in rounds, and a store compares no "
            "others; `python benchmarks/strategies.py` replays such files"
        )
    url = resolve_url(store)
    # All files are read and checked before the store is touched.
    parts = [(path, read_parquet(path)) for path in files]
    with Store.open(url) as opened:
        for path, evidence in parts:
            try:
                added = opened.merge(evidence)
            except ValueError as error:
                raise NormtuneError(f"cannot import {path}: {error}") from None
            say(f"{path}: {len(evidence.frame)} measurements, {added} new")


def _overview(evidence: "Evidence") -> "Table":
    """A row for each device, operator, variant, dtype and regime."""
    from rich.table import Table

    from normtune.kernels.problem import join_key
    from normtune.results.terminal import printable

    runs = {run.id: run.device for run in evidence.runs}
    regimes = {run.id: run.regime for run in evidence.runs}
    frame = evidence.frame.assign(
        device=evidence.frame["run"].map(lambda run: f"{runs[run].label}, {runs[run].sms} SMs"),
        regime=evidence.frame["run"].map(regimes),
    )
    table = Table("device", "operator", "dtype", "regime")
    for name in ("problems", "measurements", "runs"):
        table.add_column(name, justify="right")
    table.add_column("by status")
    for names, part in frame.groupby(["device", "operator", "variant", "dtype", "regime"]):
        device, operator, variant, dtype, regime = map(str, names)
        counts = part["status"].value_counts()
        told = ", ".join(f"{counts[status]} {status}" for status in sorted(counts.index, key=lambda s: (s != "ok", s)))
        table.add_row(
            printable(device),
            printable(join_key(operator, variant)),
            dtype,
            printable(regime),
            str(len(part[["rows", "hidden"]].drop_duplicates())),
            str(len(part)),
            str(part["run"].nunique()),
            told,
        )
    return table
