"""The command in a table's facts, which writes the table again if it is run in the table's folder.

Files are named relative to that folder. The facts have the command as data, and the comment at the
top has it as one line for a shell.
"""

import os
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions, seen_from, words_of
from normtune.kernels.load_file import loaded
from normtune.kernels.tablefile.facts import decoded
from normtune.kernels.tablefile.header import Header
from normtune.results.elsewhere import Elsewhere
from normtune.results.elsewhere import words as words_of_elsewhere

# In place of a store that is not a file, as its URL may have a password.
_STORE_VARIABLE = "$NORMTUNE_STORE"


class Command(NamedTuple):
    """A command `normtune fit` as data.

    Attributes:
        load: files of operators.
        recording: name of the fitted recording; empty for a store.
        store: its file, or the variable with its URL; empty for a recording and a file of another program.
        options: of the fit that differ from their defaults, by the names in `FitOptions`.
        out: file of the table, or `./`; empty if the table is installed.
        evidence: file or folder of the measurements; empty if they are not written.
        install: whether the table is installed.
        file: fitted file of another program; empty without one.
        elsewhere: facts that this file lacks, as in `Elsewhere.facts`.
    """

    load: tuple[str, ...] = ()
    recording: str = ""
    store: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    out: str = ""
    evidence: str = ""
    install: bool = False
    file: str = ""
    elsewhere: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def fit_options(self) -> FitOptions:
        """The options of the fit.

        Raises:
            UsageError: an option is unknown, or its value out of range.
        """
        return FitOptions.of_facts(self.options)

    def installed(self, table: Path, path: Path) -> "Command":
        """The command of a copy of a table, which is installed as another file.

        Raises:
            UsageError: as of `fit_options`.
        """

        def moved(name: str) -> str:
            return seen_from(table.parent / name, path.parent) if name else ""

        return self._replace(
            load=tuple(map(moved, self.load)),
            store=self.store if self.store == _STORE_VARIABLE else moved(self.store),
            options=self.fit_options().seen_from(path.parent, table.parent).facts(),
            file=moved(self.file),
            out="",
            evidence="",
            install=True,
        )

    def line(self) -> str:
        """The command for a shell, in printable ASCII; its options need not be valid."""
        words = ["normtune", "fit"]
        if self.file:  # a name that begins with a dash would be an option
            words.append(f"./{self.file}" if self.file.startswith("-") else self.file)
        for flag, values in (("--load", self.load), ("--recording", [self.recording]), ("--store", [self.store])):
            words += [word for value in values if value for word in (flag, value)]
        words += [*words_of_elsewhere(self.elsewhere), *words_of(self.options)]
        words += ["--install"] * self.install
        words += [*(["--out", self.out] if self.out else []), *(["--evidence", self.evidence] if self.evidence else [])]
        return " ".join(word if word == _STORE_VARIABLE else quoted(word) for word in words)


class Source(NamedTuple):
    """Source of the measurements of a fit.

    Attributes:
        store: value of `--store`; None for NORMTUNE_STORE, else the default store.
        recording: value of `--recording`; None for the store.
        file: of another program, in place of both; None without one.
        elsewhere: facts that this file lacks.
    """

    store: str | None = None
    recording: str | None = None
    file: str | None = None
    elsewhere: Elsewhere = Elsewhere()

    def seen_from(self, folder: Path) -> Command:
        """The command that names the measurements again, from the folder of a table."""
        if self.file:
            return Command(file=seen_from(self.file, folder), elsewhere=self.elsewhere.facts())
        if self.recording:
            return Command(recording=self.recording)
        from normtune.results.database.url import parse, resolve_url, sqlite_path

        path = sqlite_path(parse(resolve_url(self.store)))
        return Command(store=seen_from(path, folder) if path else _STORE_VARIABLE)


def command(
    source: Source | None, options: FitOptions, table: Path, data: Path | None = None, in_folders: bool = False
) -> Command:
    """The command that writes a table and its data again.

    Args:
        source: of the measurements; None if they are in no store, which the command takes from NORMTUNE_STORE.
        options: of the fit.
        table: the file of the table.
        data: the file of its measurements; None if they are not written.
        in_folders: whether several GPUs have such files; then the command names the folders.
    """
    folder = table.parent
    measured = Command(store=_STORE_VARIABLE) if source is None else source.seen_from(folder)
    evidence = ""
    if data is not None:
        evidence = os.path.join(seen_from(data.parent, folder), "") if in_folders else seen_from(data, folder)
    return measured._replace(
        load=tuple(seen_from(file, folder) for file in loaded()),
        options=options.seen_from(folder).facts(),
        out="./" if in_folders else table.name,
        evidence=evidence,
    )


def command_of(header: Header) -> Command:
    """The command of a header.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return decoded(Command, header.command, "command")
    except ValueError as error:
        raise UsageError(f"the command of a table cannot be read ({error}): fit it again") from None


def is_plain(header: Header) -> bool:
    """Whether the command can be read and writes into the table's folder."""
    try:
        out = command_of(header).out
        return out == "./" or "/" not in out
    except UsageError:
        return False


def quoted(word: str) -> str:
    """A word of a command for a shell, in printable ASCII; other characters are written as $'...' of POSIX shells."""
    if word.isascii() and word.isprintable() and not (word.startswith("$") and "\\" in word):
        return shlex.quote(word)
    plain = {*range(32, 127)} - set(b"'\\")
    return "$'" + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(word)) + "'"
