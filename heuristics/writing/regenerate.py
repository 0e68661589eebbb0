"""The fit in a table's facts, which `normtune fit --like TABLE` repeats.

Files are named relative to the table's folder. The facts have the options as data, and the comment at the top has the
command as one line for a shell.
"""

import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions, seen_from
from normtune.kernels.load_file import loaded
from normtune.kernels.tablefile.facts import decoded
from normtune.kernels.tablefile.header import Header
from normtune.results.source import is_recording

# In place of a store that is not a file, as its URL may have a password.
STORE_VARIABLE = "$NORMTUNE_STORE"


class Command(NamedTuple):
    """A fit as data.

    Attributes:
        load: files of operators.
        store: file of the measurements, the name of a recording, or the variable with the URL of a store.
        options: of the fit that differ from their defaults, by the names in `FitOptions`.
        out: name of the table's file.
        evidence: file to which the measurements are written; empty if they are not written.
    """

    load: tuple[str, ...] = ()
    store: str = STORE_VARIABLE
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    out: str = ""
    evidence: str = ""

    def fit_options(self) -> FitOptions:
        """The options of the fit.

        Raises:
            UsageError: an option is unknown, or its value out of range.
        """
        return FitOptions.of_facts(self.options)

    def moved(self, table: Path, path: Path) -> "Command":
        """The command of a copy of a table in another file, which writes no measurements.

        Raises:
            UsageError: as of `fit_options`.
        """
        folder = table.parent
        return self._replace(
            load=tuple(seen_from(folder / name, path.parent) for name in self.load),
            store=self.store if self.is_named else seen_from(folder / self.store, path.parent),
            options=self.fit_options().seen_from(path.parent, folder).facts(),
            out=path.name,
            evidence="",
        )

    @property
    def is_named(self) -> bool:
        """Whether the measurements are a recording, or in the store of the variable, and not in a file."""
        return self.store == STORE_VARIABLE or is_recording(self.store)

    def line(self) -> str:
        """The command for a shell in the table's folder, in printable ASCII."""
        loads = [word for file in self.load for word in ("--load", file)]
        return " ".join(map(quoted, ["normtune", "fit", *loads, "--like", self.out]))


def command(source: str, options: FitOptions, table: Path, data: Path | None = None) -> Command:
    """The command that writes a table and its data again.

    Args:
        source: the value of `--store` with the measurements; empty if they are in no store.
        options: of the fit.
        table: the file of the table.
        data: the file of its measurements; None if they are not written.
    """
    folder = table.parent
    return Command(
        load=tuple(seen_from(file, folder) for file in loaded()),
        store=_store(source, folder) if source else STORE_VARIABLE,
        options=options.seen_from(folder).facts(),
        out=table.name,
        evidence="" if data is None else seen_from(data, folder),
    )


def _store(source: str, folder: Path) -> str:
    """The value of `--store` from the folder of a table."""
    if is_recording(source):
        return source
    from normtune.results.database.url import StoreUrl

    path = StoreUrl.of(source).path
    return seen_from(path, folder) if path else STORE_VARIABLE


def command_of(header: Header) -> Command:
    """The command of a header.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return decoded(Command, header.command, "command")
    except ValueError as error:
        raise UsageError(f"the command of a table cannot be read ({error}): fit it again") from None


def quoted(word: str) -> str:
    """A word of a command for a shell, in printable ASCII; other characters are written as $'...' of POSIX shells."""
    if word.isascii() and word.isprintable() and not (word.startswith("$") and "\\" in word):
        return shlex.quote(word)
    unescaped = {*range(32, 127)} - set(b"'\\")
    return "$'" + "".join(chr(byte) if byte in unescaped else f"\\x{byte:02x}" for byte in os.fsencode(word)) + "'"
