"""Files that a table's header names.

In: the options in a header, and the table's file. Out: paths, or an error of one line. A table may come from anybody,
so no file outside of its folder and the repository around it is opened, and the content of an unusable file is never
shown.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import NAMES, Incumbents
from normtune.heuristics.fitting.baseline import baseline as incumbents
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.weights import NAMED, Weighting
from normtune.heuristics.writing.regenerate import Command
from normtune.kernels.tablefile import locate
from normtune.results.elsewhere import Elsewhere
from normtune.results.paths import unreadable

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


def inside(option: str, name: str, table: Path) -> Path:
    """The file that an option of a header names, links followed.

    Args:
        option: as `--weights`, for the message.
        name: its value.
        table: the file with the header.

    Raises:
        NormtuneError: it is outside of the table's folder and the repository around it.
    """
    try:
        folder = Path(os.path.realpath(table.parent))
        root = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")), folder)
        file = Path(os.path.realpath(folder / name))
    except ValueError:
        raise NormtuneError(f"{option} of its header is no file: a NUL in its name") from None
    if not file.is_relative_to(root):
        where = "its folder" if root == folder else "its repository"
        raise NormtuneError(
            f"{option} of its header names {locate.told(name)}, which lies outside of {where} {locate.told(root)} and "
            "is not opened: move it there and fit again"
        )
    return file


def measurements(command: Command, table: Path) -> "Evidence":
    """The measurements of another program in the file of a header's command.

    Raises:
        NormtuneError: it must not be opened, or does not hold what the header says.
    """
    from normtune.results.exchange.foreign_file import read_foreign

    file = inside("FILE", command.file, table)
    try:
        return read_foreign(file, Elsewhere.from_facts(command.elsewhere), command.fit_options().operators)
    except UsageError:  # its text may quote the file
        raise NormtuneError(
            f"FILE of its header names {locate.told(command.file)}, which is missing or holds no measurements as the "
            "header says: put it back"
        ) from None


def weights(options: FitOptions, table: Path) -> str:
    """The weights of a header's options, for a fit.

    Raises:
        NormtuneError: they are in a file that must not be opened, or is not a file of weights.
    """
    if options.weights in NAMED:
        return options.weights
    file = inside("--weights", options.weights, table)
    if reason := unreadable(file):
        raise NormtuneError(f"--weights of its header names {locate.told(file)}, which {reason}: put it back")
    try:
        Weighting(str(file))
    except UsageError:  # its text may quote the file
        raise NormtuneError(
            f"--weights of its header names {locate.told(options.weights)}, which is no CSV file with columns "
            "rows,hidden,weight"
        ) from None
    return str(file)


def same_bits_as(options: FitOptions, table: Path) -> str | None:
    """The table of the option `--same-bits-as` in a header; None if there is none.

    Raises:
        NormtuneError: it must not be opened.
    """
    return options.same_bits_as and str(inside("--same-bits-as", options.same_bits_as, table))


def baseline(options: FitOptions, table: Path) -> Incumbents | None:
    """The baseline in a header's options; None if there is none.

    Raises:
        NormtuneError: it is a file that must not be opened, or is not a table.
    """
    if options.baseline is None:
        return None
    if options.baseline not in NAMES:
        inside("--baseline", options.baseline, table)
    return incumbents(options.baseline, table.parent)
