"""`normtune fit --all-devices`: one table for any GPU.

In: the source of measurements, options, and files. Out: figures on the terminal, a table, its data. `any_gpu.pipeline`,
`any_gpu.emit` and `fitting.write` do the work.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.errors import UsageError
from normtune.results.terminal import say

if TYPE_CHECKING:
    from normtune.heuristics.fitting.options import FitOptions
    from normtune.results.evidence import Evidence

_STEM = "any_gpu"


def measured_everywhere(store: str | None, recording: str | None, regime: str) -> "Evidence":
    """All measurements of a store, of a recording, or of all shipped recordings, if `recording` is `all`.

    Raises:
        UsageError: both are given, or one of them is invalid.
        NormtuneError: there is no such store, or data are damaged.
    """
    from normtune.results.recording import ALL, load_recordings
    from normtune.results.source import measured

    if recording == ALL and store is None:
        return load_recordings(regime)
    return measured(store, recording, regime)


def fit_all_devices(
    measured: "Evidence",
    options: "FitOptions",
    out: str | None,
    evidence: str | None,
    force: bool,
    command: Callable[[Path, list[str]], str],
) -> None:
    """Fit, print, and write the requested files.

    Args:
        measured: of all devices.
        options: of the fit.
        out: value of `--out`; a folder gets `any_gpu.py`.
        evidence: value of `--evidence`; a folder gets `any_gpu.parquet`.
        force: whether files that normtune did not write are replaced.
        command: (the table's file, its last words) to the command that writes it again.

    Raises:
        UsageError: a file cannot be written, or an option is for the table of one GPU.
        NormtuneError: there is nothing to fit.
    """
    from normtune.heuristics.any_gpu import emit
    from normtune.heuristics.any_gpu.pipeline import fit_all
    from normtune.heuristics.fitting import regenerate, write
    from normtune.heuristics.fitting.pipeline import used
    from normtune.results.parquet_csv import write_parquet

    table, data = _place(out, ".py"), _place(evidence, ".parquet")
    if data and not table:
        raise UsageError("--evidence is given without --out: the table that is to name it is written nowhere")
    if table:
        write.check_table(table, force)
    if data:
        write.check_evidence(data, force)
    fitted = fit_all(measured, options)
    wrote = []
    if data and table:
        write_parquet(used(measured, options.operators), data)
        wrote.append(f"wrote {data}")
    if table:
        words = ["--all-devices", *regenerate.places(table, data)]
        write.write_table(emit.module_text(fitted, command(table, words)), table)
        wrote.append(f"wrote {table}")
        wrote.append(
            f"NORMTUNE_TABLE={table} makes one process use it, on whatever GPU; shipped, it serves GPUs without a table"
        )
    say("\n".join([*emit.told(fitted), *(wrote or ["Nothing was written: --out FILE writes the table"])]))


def _place(option: str | None, suffix: str) -> Path | None:
    """The file of an option, in a folder under the name of the shared table; folders are created."""
    from normtune.heuristics.fitting import write

    if option is None:
        return None
    if not write.is_folder(option):
        return Path(option)
    write.make_folder(Path(option))
    return Path(option) / f"{_STEM}{suffix}"
