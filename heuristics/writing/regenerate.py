"""The command in a table's header, which writes the table again from the folder of the table.

In: the source of the measurements, options, and the requested files. Out: words, with every file named relative to that
folder; and those words as one line.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions, quoted, seen_from, words_of
from normtune.kernels.load_file import loaded

# A store that is not a file: its URL may have a password.
_STORE_VARIABLE = "$NORMTUNE_STORE"


class Source(NamedTuple):
    """Source of the measurements of a fit.

    Attributes:
        store: value of `--store`; None for NORMTUNE_STORE, else the default one.
        recording: value of `--recording`; None for the store.
    """

    store: str | None = None
    recording: str | None = None

    def words(self, folder: Path) -> list[str]:
        """The options that name the measurements again, from the folder of a table."""
        if self.recording:
            return ["--recording", self.recording]
        from normtune.results.database.url import parse, resolve_url, sqlite_path

        path = sqlite_path(parse(resolve_url(self.store)))
        return ["--store", seen_from(path, folder) if path else _STORE_VARIABLE]


def command(source: Source | None, options: FitOptions, table: Path, place: Sequence[str]) -> str:
    """The whole command in one line.

    Args:
        source: of the measurements; None if they are in no store yet: NORMTUNE_STORE names the later one.
        options: of the fit.
        table: the file that it writes.
        place: the options that name this file.
    """
    measured = ["--store", _STORE_VARIABLE] if source is None else source.words(table.parent)
    return line(words(measured, options, table, place))


def words(measured: Sequence[str], options: FitOptions, table: Path, place: Sequence[str]) -> list[str]:
    """The whole command.

    Args:
        measured: the options that name the measurements.
        options: of the fit.
        table: the file that it writes.
        place: the options that name this file.
    """
    files = [word for file in loaded() for word in ("--load", seen_from(file, table.parent))]
    return ["normtune", "fit", *files, *measured, *options.seen_from(table.parent).words(), *place]


def places(table: Path, data: Path | None, in_folders: bool = False) -> list[str]:
    """The options that write a table and its data again, from the folder of the table.

    Args:
        table: its file.
        data: the file of its measurements; None if they are not written.
        in_folders: whether these files are among those of several GPUs, each in the file of its name; then both folders
            are named, because one file cannot serve all.
    """
    options = ["--out", "./" if in_folders else table.name]
    if data is None:
        return options
    if not in_folders:
        return [*options, "--evidence", seen_from(data, table.parent)]
    return [*options, "--evidence", os.path.join(seen_from(data.parent, table.parent), "")]


def line(command: Sequence[str]) -> str:
    """A command for a shell, in printable ASCII; `options.words_of` parses it."""
    return " ".join(word if word == _STORE_VARIABLE else quoted(word) for word in command)


def is_plain(command: str) -> bool:
    """Whether a header's command is one that `line` writes: a shell runs `normtune fit` and nothing else.

    And it writes the table where it lies.
    """
    try:
        parsed = words_of(command)
    except UsageError:
        return False
    written = [value for word, value in pairwise(parsed) if word == "--out"]
    written += [word.partition("=")[2] for word in parsed if word.startswith("--out=")]
    is_here = len(written) <= 1 and all(value == "./" or "/" not in value for value in written)
    return parsed[:2] == ["normtune", "fit"] and line(parsed) == command and is_here
