"""Opens the files that the header of a table refers to.

In: the options in a header, and the table's file. Out: paths and measurements, or an error of one line. Tables are
untrusted input: only files in the table's folder or its repository are opened, and no message quotes their content.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import NAMES, Incumbents
from normtune.heuristics.fitting.baseline import baseline as incumbents
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.weights import Weighting
from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.results.paths import unreadable
from normtune.results.regimes import COLD

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.source import Measured, Selection


def inside(option: str, name: str, table: Path) -> Path:
    """The path of the file that an option of a header names, with symbolic links resolved.

    Args:
        option: the option's name for the message, such as `--weights`.
        name: the option's value.
        table: the file with the header.

    Raises:
        NormtuneError: the file is neither in the table's folder nor in the repository around it.
    """
    try:
        folder = Path(os.path.realpath(table.parent))
        root = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")), folder)
        file = Path(os.path.realpath(folder / name))
    except ValueError:
        raise NormtuneError(f"{option} of its command is not the name of a file: it has a NUL") from None
    if not file.is_relative_to(root):
        where = "its folder" if root == folder else "its repository"
        raise NormtuneError(
            f"{option} of its command names {locate.quoted(name)}, which is outside of {where} {locate.quoted(root)} "
            "and so is not opened: move the file there and fit again"
        )
    return file


def weights(options: FitOptions, table: Path) -> str | None:
    """The path of the file of `--weights` in a header; None without one.

    Raises:
        NormtuneError: the file is outside of the repository, unreadable, or not a file of weights.
    """
    if options.weights is None:
        return None
    file = inside("--weights", options.weights, table)
    if reason := unreadable(file):
        raise NormtuneError(f"--weights of its command names {locate.quoted(file)}, which {reason}: put it back")
    try:
        Weighting(str(file))
    except UsageError:  # its text may quote the file
        raise NormtuneError(
            f"--weights of its command names {locate.quoted(options.weights)}, which is no CSV file with columns "
            "rows,hidden,weight"
        ) from None
    return str(file)


def baseline(options: FitOptions, table: Path) -> Incumbents | None:
    """The baseline of `--baseline` in a header; None without that option.

    Raises:
        NormtuneError: its file is outside of the repository, or is not a table.
    """
    if options.baseline is None:
        return None
    if options.baseline not in NAMES:
        inside("--baseline", options.baseline, table)
    return incumbents(options.baseline, table.parent)


def measured(header: Header, path: Path) -> "tuple[str, Evidence] | None":
    """The measurements that a table was fitted to, with their name; None if its command names a store.

    Raises:
        NormtuneError: the recording or file is missing or damaged, or has other measurements.
    """
    from normtune.results.exchange.parquet_csv import read_parquet
    from normtune.results.exchange.recording import load_recording
    from normtune.results.source import is_parquet, is_recording

    command = command_of(header)
    if is_recording(command.store):
        return f"recording {command.store}", load_recording(command.store, header.data.regime or COLD)
    file = command.evidence or (command.store if is_parquet(command.store) else "")
    if not file:
        return None
    parquet = inside("--evidence" if command.evidence else "--store", file, path)
    if not os.path.lexists(parquet):
        raise NormtuneError(
            f"the file of its measurements is missing: {locate.quoted(parquet)}; put it back, or fit again with "
            "another --evidence"
        )
    evidence = read_parquet(parquet)
    if not command.evidence:
        evidence = _fitted(evidence, header, locate.quoted(file), path)
    return locate.quoted(file), _same(evidence, header, locate.quoted(file))


def selected(selection: "Selection", data: "Measured", table: LoadedTable | None) -> "Evidence":
    """The selected measurements: of data, else those that a table was fitted to, else of the default store.

    Raises:
        UsageError: as `Selection.load`.
        NormtuneError: the file that the table names is missing or has other measurements.
    """
    named = None if table is None or data is not None else measured(table.header, table.source)
    return selection.load(data if named is None else named[1])


def _fitted(evidence: "Evidence", header: Header, name: str, table: Path) -> "Evidence":
    """The measurements of a file that the table was fitted to; the file may have others besides."""
    from normtune.heuristics.fitting.pipeline import used
    from normtune.results.regimes import in_regime

    options = command_of(header).fit_options()
    of_regime = in_regime(evidence, header.data.regime or COLD, name)
    of_device = of_regime if options.device is None else of_regime.labelled(options.device)
    return used(of_device, options.operators, weights(options, table))


def _same(evidence: "Evidence", header: Header, name: str) -> "Evidence":
    if evidence.digest() != header.data.digest:
        raise NormtuneError(f"{name} holds other measurements than the table was fitted to")
    return evidence
