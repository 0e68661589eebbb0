"""The command `fit`.

In: its options. Out: figures on the terminal, and tables. `api.fit` and `writing.installing` do the work,
`writing.report` has the text; all are imported when the command runs.
"""

import os
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.results.commands import JsonOption, RayOption, ReadOption, with_options
from normtune.results.elsewhere import Elsewhere
from normtune.results.source import is_parquet
from normtune.results.terminal import say, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normtune.heuristics.fitting.baseline import Incumbents
    from normtune.heuristics.writing.installing import Installed, Removed
    from normtune.heuristics.writing.regenerate import Source
    from normtune.kernels.tablefile.header import Gpu
    from normtune.results.evidence import Evidence


class _DeviceFiles(NamedTuple):
    """The measurements of one device, and the files to write; None for a file that is not."""

    evidence: "Evidence"
    table: Path | None
    data: Path | None
    installed: Path | None

    @property
    def replaced(self) -> list[Path]:
        """The files of tables that exist."""
        return [path for path in (self.table, self.installed) if path and os.path.exists(path)]


@dataclass(frozen=True, kw_only=True)
class _Options(FitOptions, Elsewhere):
    """The options that the command shares with `normtune.fit`."""


@with_options(_Options, before="install")
def fit(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(
            help="CSV or Parquet file of measurements, in place of a store. Another program's needs --name and "
            "--target; columns: operator (or --operator), dtype, rows, hidden, a column for each knob or config, and "
            "nanoseconds, microseconds, milliseconds or seconds. With --install also a table, which is only installed.",
        ),
    ] = None,
    store: ReadOption = None,
    recording: Annotated[
        str | None, typer.Option(metavar="NAME", help="Fit a recording that ships with normtune, in place of a store.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the table to this file, or to DIR/, one file per GPU.")
    ] = None,
    evidence: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the measurements that were fitted to this .parquet file, or to DIR/, for `check`.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format of --out: module, a table; triton-configs, lists for triton.autotune.",
        ),
    ] = "module",
    install: Annotated[bool, typer.Option("--install", help="Install the table for this user and its GPU.")] = False,
    uninstall: Annotated[
        bool,
        typer.Option(
            "--uninstall",
            help="Remove the installed table of this GPU, or of the GPU of --store or --recording; fit nothing.",
        ),
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Also print all figures of each function.")] = False,
    ray: RayOption = None,
    as_json: JsonOption = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Overwrite files that normtune did not write or that were edited; install the table of a replay or "
            "of another GPU.",
        ),
    ] = False,
    **chosen: Any,
) -> None:
    """Fit a table to measurements, and print its losses and gains.

    Writes nothing without --out or --install.
    """
    from normtune.heuristics.api import fit as api
    from normtune.heuristics.fitting.baseline import baseline as in_use
    from normtune.heuristics.writing import installing, regenerate, report, write
    from normtune.heuristics.writing.emit import gpu_of
    from normtune.heuristics.writing.formats import MODULE, check_format
    from normtune.results.parallel.cluster_maps import on_cluster

    if file and write.is_table(Path(file)):
        _check_alone(context, file, install)
        say(_installed(*installing.install(Path(file), force)))
        return
    cluster = on_cluster(ray)
    chosen_options = _Options(**chosen)
    options, source = FitOptions.of(chosen_options), _source(file, store, recording, Elsewhere.said_by(chosen_options))
    baseline, regime = options.baseline, options.regime
    for name, place in (("--out", out), ("--evidence", evidence), ("--baseline", baseline)):
        if place == "":
            raise UsageError(f"{name} is empty: name a file, or leave it out")
        if place and uninstall:
            raise UsageError(f"--uninstall and {name} are both given: --uninstall fits and writes nothing")
    check_format(form)
    if form != MODULE and (out is None or install or uninstall):
        raise UsageError(f"--format {form} is for --out FILE, without --install and --uninstall")
    if as_json and (details or uninstall):
        raise UsageError(f"--json and {'--details' if details else '--uninstall'} are both given: leave one out")
    if uninstall:
        if install:
            raise UsageError("--uninstall and --install are both given: leave one out")
        data = None if source == regenerate.Source() else api.measured(source, options)
        _print_removed(installing.uninstall(data, regime=regime, force=force))
        return
    incumbents = None if baseline is None else in_use(baseline, Path())
    data = api.measured(source, options)
    parts = _parts(data, options.operators, out, evidence, install, force, form)
    if baseline is not None:
        _check_stays(baseline, parts)
    context.with_resource(cluster)
    tables = []
    for part in parts:
        say(f"normtune: fitting {len(part.evidence.frame)} measurements", error=True)
        replaced = _replaced(part) if baseline is None else None
        tables.append(api.fitted(part.evidence, options, source, incumbents, replaced, _progress))
    # All files are written before the first line, because a reader of the lines may stop.
    written: list[list[str]] = []
    plain: list[dict[str, Any]] = []
    for part, table in zip(parts, tables, strict=True):
        is_module = form == MODULE
        paths = table.write(part.table if is_module else None, part.data, len(parts) > 1)
        if part.table and not is_module:
            paths += table.write_as(form, part.table, force)
        wrote = [f"wrote {path}" for path in paths]
        if part.table and part.table.suffix == ".py" and not write.is_importable(part.table):
            wrote.append(f"  {part.table.name!r} is not the name of a module: rename it before a library imports it")
        if install:
            installed = table.install(force=True)  # what needs force was refused before the fit
            wrote.append(_installed(gpu_of(table.device), installed))
            paths.append(installed.path)
        written.append(wrote)
        plain.append(
            {
                "device": table.device._asdict(),
                "functions": table.figures(),
                "notes": list(table.notes),
                "wrote": list(map(str, paths)),
            }
        )
    if as_json:
        say_json({"tables": plain})
        return
    for part, table, wrote in zip(parts, tables, written, strict=True):
        for note in table.notes:
            say(f"normtune: {note}", error=True)
        more = ["", *report.figures(table.fit)] if details else []
        say("\n".join([*report.verdict(table.fit), *more, "", *wrote]))
        if not install and form == MODULE:
            say("\n".join(report.ways(gpu_of(table.device), part.table)))
    if not details:
        say("More figures: --details")


def _check_alone(context: typer.Context, table: str, install: bool) -> None:
    """Refuse options that a table, which is installed and not fitted, would ignore."""
    if not install:
        raise UsageError(f"FILE is {table!r}, a table: expected measurements to fit, or --install")
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if source and source.name == "COMMANDLINE" and option.name not in ("file", "install", "force"):
            raise UsageError(
                f"{option.opts[0]} is given with the table {table!r}, which is only installed: leave it out"
            )


def _installed(gpu: "Gpu", installed: "Installed") -> str:
    """Lines about an installed table."""
    from normtune.heuristics.writing.entries import ends
    from normtune.kernels.tablefile import locate

    line = f"installed {installed.path}: kernels on {gpu.name} use it from now on, in place of {installed.displaced}"
    where = [f"  {end}" for end in ends(locate.load(installed.path).measured)]
    return "\n".join(filter(None, (line, *where, installed.note)))


def _source(file: str | None, store: str | None, recording: str | None, elsewhere: Elsewhere) -> "Source":
    """The source of the measurements.

    Raises:
        UsageError: several are given, or the file is not one of measurements.
    """
    from normtune.heuristics.writing.regenerate import Source

    if file is None:
        if facts := elsewhere.facts():
            raise UsageError(f"--{next(iter(facts))} describes the FILE of another program, which is missing")
        return Source(store, recording)
    if store is not None or recording is not None:
        raise UsageError("FILE is given with --store or --recording: measurements come from one of them")
    if elsewhere.is_of(file):
        return Source(file=file, elsewhere=elsewhere)
    if not is_parquet(file):
        raise UsageError(f"FILE is {file!r}: expected a file of measurements that ends in .csv or .parquet")
    return Source(file)


def _print_removed(tables: "Sequence[Removed]") -> None:
    from normtune.kernels.tablefile.locate import quoted

    for path, used in tables:
        say(f"removed {quoted(path)}")
        for gpu, table in used:
            say(f"kernels on {gpu} use {table} from now on")


def _progress(done: int, count: int) -> None:
    if done < count:
        say(f"normtune: {done} of {count} functions fitted", error=True)


def _replaced(part: _DeviceFiles) -> "Incumbents | None":
    """The replaced file, if it is a table."""
    from normtune.heuristics.fitting.baseline import of_file

    try:
        return next((of_file(path) for path in part.replaced), None)
    except UsageError:
        return None


def _check_stays(baseline: str, parts: "Sequence[_DeviceFiles]") -> None:
    """Refuse a baseline that is replaced, as the table could not be fitted again."""
    for path in [path for part in parts for path in part.replaced]:
        if os.path.exists(baseline) and path.samefile(baseline):
            raise UsageError(f"--baseline is {path}, which is replaced: copy it, and name the copy")


def _parts(
    measured: "Evidence",
    operators: tuple[str, ...],
    out: str | None,
    evidence: str | None,
    install: bool,
    force: bool,
    form: str,
) -> list[_DeviceFiles]:
    """The measurements by device if each gets a table, else all together; creates the folders of the files.

    Raises:
        UsageError: two devices would get the same file, or a file cannot be written.
    """
    from normtune.heuristics.writing import installing, write
    from normtune.heuristics.writing.emit import gpu_of
    from normtune.kernels.tablefile import locate

    devices, evidences = measured.select(operators).devices(), [measured]
    if len(devices) > 1 and (write.is_folder(out) if out else install):
        evidences = [measured.of(device) for device in devices]
    devices = devices[: len(evidences)]
    names = write.names(devices)
    tables, data = write.files(out, names, ".py"), write.files(evidence, names, ".parquet")
    gpus = [gpu_of(device) for device in devices] if install else []
    installed = [locate.installed_path(gpu.name) for gpu in gpus]
    for option, paths in (("--out", tables), ("--evidence", data), ("--install", installed)):
        if len({*paths}) < len(paths):
            labels = ", ".join(f"{device.label!r} with {device.sms} SMs" for device in devices)
            are_named = len({device.label for device in devices}) == len(devices)
            advice = "--device NAME chooses one" if are_named else "--out DIR/ keeps them apart"
            raise UsageError(f"{option} would write one file for several devices: {labels}; {advice}")
    parts = [*map(_DeviceFiles._make, zip_longest(evidences, tables, data, installed))]
    for part in parts:
        write.check_files(part.table, part.data, force, form)
    if install:
        installing.check(gpus, force)
    return parts
