"""The command `fit`.

In: its options. Out: figures on the terminal, and tables. `api.fit` and `writing.installing` do the work,
`writing.report` has the text; all are imported when the command runs.
"""

import os
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from normtune.errors import UsageError
from normtune.heuristics.commands.table import installed_text
from normtune.heuristics.fitting.options import FitOptions, seen_from
from normtune.results.commands import JsonOption, ReadOption, with_options
from normtune.results.terminal import note, say, say_json, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normtune.kernels.tablefile.header import Gpu
    from normtune.results.evidence import Evidence


class _Fit(NamedTuple):
    """What is fitted.

    Attributes:
        source: the value of `--store` for the header.
        evidence: the measurements.
        options: of the fit.
        out, data: files or folders of the table and its measurements; None for those that are not written.
    """

    source: str
    evidence: "Evidence"
    options: FitOptions
    out: str | None
    data: str | None


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


@with_options(FitOptions, before="install")
def fit(
    store: ReadOption = None,
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
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Repeat the fit of this table, from the measurements, with the options and to the files of its facts. "
            "Other options given replace these.",
        ),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the table for this user and its GPU.")] = False,
    details: Annotated[bool, typer.Option("--details", help="Also print all figures of each function.")] = False,
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

    Writes nothing without --out, --install or --like.
    """
    from normtune.heuristics.api import fit as api
    from normtune.heuristics.fitting.pipeline import used
    from normtune.heuristics.writing import report, write
    from normtune.heuristics.writing.emit import gpu_of

    for name, place in (("--out", out), ("--evidence", evidence), ("--baseline", chosen["baseline"])):
        if place == "":
            raise UsageError(f"{name} is empty: name a file, or leave it out")
    if as_json and details:
        raise UsageError("--json and --details are both given: leave one out")
    options = FitOptions(**chosen)
    if like is None:
        request = _of_options(store, options, out, evidence)
    else:
        request = _like(like, store, options, out, evidence, install)
        options = request.options
    parts = _parts(request, install, force)
    if options.baseline is not None:
        _check_stays(options.baseline, parts)
    tables = []
    for part in parts:
        note(f"fitting {len(used(part.evidence, options.operators, options.weights).frame)} measurements")
        replaced = _replaced(part) if options.baseline is None else None
        table = api.fit(part.evidence, **vars(options), replaces=replaced, progress=_progress)
        tables.append(replace(table, source=request.source))
    # All files are written before the first line, because a reader of the lines may stop.
    written: list[list[str]] = []
    json_tables: list[dict[str, Any]] = []
    for part, table in zip(parts, tables, strict=True):
        paths = table.write(part.table, part.data)
        wrote = [f"wrote {path}" for path in paths]
        if part.table and part.table.suffix == ".py" and not write.is_importable(part.table):
            wrote.append(f"  {part.table.name!r} is not the name of a module: rename it before a library imports it")
        if install:
            installed = table.install(force=True)  # what needs force was refused before the fit
            wrote.append(installed_text(gpu_of(table.device), installed))
            paths.append(installed.path)
        written.append(wrote)
        json_tables.append(
            {
                "device": table.device._asdict(),
                "functions": table.figures(),
                "notes": list(table.notes),
                "wrote": list(map(str, paths)),
            }
        )
    if as_json:
        say_json({"tables": json_tables})
        return
    for part, table, wrote in zip(parts, tables, written, strict=True):
        for line in table.notes:
            note(line)
        more = ["", *report.figures(table.fit)] if details else []
        say("\n".join([*report.verdict(table.fit), *more]))
        tell("\n".join(["", *wrote]))
        if not install:
            tell("\n".join(report.ways(gpu_of(table.device), part.table)))
    if not details:
        tell("More figures: --details")


def _of_options(store: str | None, options: FitOptions, out: str | None, data: str | None) -> _Fit:
    """What the options say."""
    from normtune.heuristics.api.fit import source_of
    from normtune.results.source import read_evidence

    return _Fit(source_of(store), read_evidence(store, options.regime, options.device), options, out, data)


def _like(
    table: Path, store: str | None, overrides: FitOptions, out: str | None, data: str | None, install: bool
) -> _Fit:
    """What the facts of a table say, and the options given in their place; files as seen from here.

    Raises:
        UsageError: it is no table, or its measurements are not those that it was fitted to.
        NormtuneError: a file that its facts name is outside of its repository.
    """
    from normtune.heuristics.writing import named_files
    from normtune.heuristics.writing.regenerate import STORE_VARIABLE, command_of
    from normtune.kernels.tablefile.locate import load

    header = load(table).header
    command, folder = command_of(header), table.parent
    options = FitOptions.of_facts({**command.fit_options().seen_from(Path(), folder).facts(), **overrides.facts()})
    if out is None and not install:
        out = str(table)
        if data is None and command.evidence:
            data = os.path.relpath(named_files.inside("--evidence", command.evidence, table))
    if store is not None:
        return _on_its_gpu(_of_options(store, options, out, data), header.device)
    if command.store == STORE_VARIABLE:
        source: str | None = None
    else:
        source = command.store if command.is_named else seen_from(folder / command.store, Path())
    named = named_files.measured(header, table)
    if named is None:
        return _on_its_gpu(_of_options(source, options, out, data), header.device)
    return _Fit(source or "", named[1], options, out, data)


def _on_its_gpu(fit: _Fit, gpu: "Gpu") -> _Fit:
    """The measurements of a table's GPU, if there are some, because another fit wrote tables of several GPUs."""
    from normtune.heuristics.writing.emit import gpu_of

    same = [device for device in fit.evidence.devices() if gpu_of(device) == gpu]
    return fit._replace(evidence=fit.evidence.of(same[0])) if same else fit


def _progress(done: int, count: int) -> None:
    if done < count:
        note(f"{done} of {count} functions fitted")


def _replaced(part: _DeviceFiles) -> Path | None:
    """The replaced file, if it is a table."""
    from normtune.heuristics.fitting.baseline import of_file

    with suppress(UsageError):
        for path in part.replaced:
            of_file(path)
            return path
    return None


def _check_stays(baseline: str, parts: "Sequence[_DeviceFiles]") -> None:
    """Refuse a baseline that is replaced, as the table could not be fitted again."""
    for path in [path for part in parts for path in part.replaced]:
        if os.path.exists(baseline) and path.samefile(baseline):
            raise UsageError(f"--baseline is {path}, which is replaced: copy it, and name the copy")


def _parts(request: _Fit, install: bool, force: bool) -> list[_DeviceFiles]:
    """The measurements by device if each gets a table, else all together; creates the folders of the files.

    Raises:
        UsageError: two devices would get the same file, or a file cannot be written.
    """
    from normtune.heuristics.writing import installing, write
    from normtune.heuristics.writing.emit import gpu_of
    from normtune.kernels.tablefile import locate

    measured, out = request.evidence, request.out
    devices, evidences = measured.select(request.options.operators).devices(), [measured]
    if len(devices) > 1 and (write.is_folder(out) if out else install):
        evidences = [measured.of(device) for device in devices]
    devices = devices[: len(evidences)]
    names = write.names(devices)
    tables, data = write.files(out, names, ".py"), write.files(request.data, names, ".parquet")
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
        write.check_files(part.table, part.data, force)
    if install:
        installing.check(gpus, force)
    return parts
