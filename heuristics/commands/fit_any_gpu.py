"""`normtune fit --all-devices`: one table for any GPU.

In: the source of measurements, options, and files. Out: figures on the terminal, a table, its data. `api.any_gpu` does
the work, `any_gpu.emit` has the text.
"""

from typing import TYPE_CHECKING

from normtune.errors import UsageError
from normtune.results.terminal import say, say_json

if TYPE_CHECKING:
    from normtune.heuristics.fitting.options import FitOptions
    from normtune.heuristics.writing.regenerate import Source

_STEM = "any_gpu"


def fit_all_devices(
    source: "Source", options: "FitOptions", out: str | None, evidence: str | None, force: bool, as_json: bool
) -> None:
    """Fit, print, and write the requested files; arguments are the options of the command.

    Raises:
        UsageError: a file cannot be written, or an option is for the table of one GPU.
        NormtuneError: there is nothing to fit, no legal function, no such store, or data are damaged.
    """
    from normtune.heuristics.any_gpu.emit import report
    from normtune.heuristics.api.any_gpu import everywhere, fitted_everywhere
    from normtune.heuristics.writing import write
    from normtune.heuristics.writing.regenerate import quoted
    from normtune.results.source import on_stderr

    measured = everywhere(source.store, source.recording, options.regime, on_stderr)
    if evidence and not out:
        raise UsageError("--evidence is given without --out: only a table's file can name it, add --out FILE")
    table = next(iter(write.files(out, [_STEM], ".py")), None)
    data = next(iter(write.files(evidence, [_STEM], ".parquet")), None)
    write.check_files(table, data, force)
    fitted = fitted_everywhere(measured, options, source)
    paths = fitted.write(table, data) if table else []
    if as_json:
        devices = [device._asdict() for device in fitted.devices]
        notes, wrote = list(fitted.notes), list(map(str, paths))
        say_json({"devices": devices, "functions": fitted.figures(), "notes": notes, "wrote": wrote})
        return
    lines = [f"wrote {path}" for path in paths]
    if table:
        lines.append(
            f"NORMTUNE_TABLE={quoted(str(table))} makes one process use it, on any GPU; if it ships, GPUs without a "
            "table use it"
        )
    for note in fitted.notes:
        say(f"normtune: {note}", error=True)
    say("\n".join([*report(fitted.fit), *(lines or ["Nothing was written: --out FILE writes the table"])]))
