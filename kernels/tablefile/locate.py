"""Find the table of a GPU.

In: the GPU's name, target and number of multiprocessors. Out: `TableSelection`: tables, the source of the first, and
whether it was made for that GPU. Imports neither numpy nor pandas, because dispatch calls it at the first launch.

The order is: the file in NORMTUNE_TABLE; the table that the user installed for the GPU; the shipped tables of the same
name and number of multiprocessors, one per family of operators; those of other GPUs of the target, the nearest number
of multiprocessors and then most words of the name first; the portable ones. `selection` says where each of them
answers.
"""

import os
import re
import stat
from functools import cache, partial
from pathlib import Path

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.arguments import checked
from normtune.kernels.key import family_of
from normtune.kernels.tablefile.header import Header, parse
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.parse import decisions
from normtune.kernels.tablefile.selection import TableSelection
from normtune.kernels.target import plain_name

VARIABLE = "NORMTUNE_TABLE"
SHIPPED = Path(__file__).parents[2] / "heuristics" / "tables"
# The table of the H200 has 37 KB.
MAX_BYTES = 1 << 20
_UNMEASURED = ", which is unmeasured there"


def selection_of(table: LoadedTable, source: str = "", others: TableSelection | None = None) -> TableSelection:
    """A table that is asked first, and then others."""
    families = {key.family for key in table.trees}
    return TableSelection(((families, lambda: table), *(others.tables if others else ())), source)


def select(name: str, target: str, sms: int, table: str | os.PathLike[str] | None = None) -> TableSelection:
    """Find the tables of a GPU.

    Args:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.
        table: the file of the first table; None for that in NORMTUNE_TABLE, if any.

    Raises:
        UsageError: the first table, or the installed table, is not a table.
    """
    named = os.environ.get(VARIABLE) if table is None else table
    if not named:
        return unnamed(name, target, sms)
    try:
        first = load(os.path.expanduser(named))
    except UsageError as error:
        raise UsageError(f"{VARIABLE} cannot be used: {error}" if table is None else str(error)) from None
    source = f"{quoted(named)} ({VARIABLE})" if table is None else quoted(named)
    return selection_of(first, source, unnamed(name, target, sms))


def unnamed(name: str, target: str, sms: int) -> TableSelection:
    """The same as `select`, but ignores NORMTUNE_TABLE.

    Raises:
        UsageError: the installed table is not a table.
    """
    made_for = plain_name(name), sms

    def rank(entry: tuple[Path, Header]) -> tuple[bool, bool, int, int, str]:
        _, header = entry
        alike = len({*header.gpu.split()} & {*made_for[0].split()})
        return header.portable, (header.gpu, header.sms) != made_for, abs(header.sms - sms), -alike, header.gpu

    usable = [(path, header) for path, header in shipped().items() if header.portable or header.target == target]
    ranked = sorted(usable, key=rank)
    tables = tuple((_families(header), cache(partial(load, path))) for path, header in ranked)
    is_own, source = bool(ranked) and not any(rank(ranked[0])[:2]), "the default config of each operator"
    if ranked:
        first = ranked[0][1]
        source = f"the {'portable ' * first.portable}table of {first.label}{'' if is_own else _UNMEASURED}"
    others = TableSelection(tables, source, is_own)
    installed = _installed(name)
    if installed and (installed.header.gpu, installed.header.sms) == made_for:
        return selection_of(installed, f"the installed table {quoted(installed.source)}", others)
    return others


def _families(header: Header) -> set[str]:
    return {family_of(operator) for operator in header.kernels}


def _installed(name: str) -> LoadedTable | None:
    """The table that the user installed for a GPU; None if there is none.

    Raises:
        UsageError: it cannot be used.
    """
    try:
        path = installed_path(name)
    except UsageError:  # without a home nothing is installed
        return None
    if not os.path.lexists(path):
        return None
    try:
        return load(path)
    except UsageError as error:
        raise UsageError(
            f"the installed table cannot be used: {error}; delete {quoted(path)}, and install another"
        ) from None


def shipped() -> dict[Path, Header]:
    """Shipped tables: file to header."""
    paths = sorted(path for path in SHIPPED.glob("*.py") if path.name != "__init__.py")
    return {path: header_of(path) for path in paths}


def by_name() -> dict[str, Path]:
    """Shipped tables by their names in commands: `nvidia-h200`, ..., `portable`."""
    return {path.stem.replace("_", "-"): path for path in shipped()}


def installed_path(name: str) -> Path:
    """The file of a GPU's installed table, which `normtune fit --install` writes.

    Raises:
        UsageError: the user has no home.
    """
    return installed_folder() / f"{slug(plain_name(name))}.py"


def installed_folder() -> Path:
    """The folder of installed tables, in the user's data folder.

    By the XDG Base Directory Specification: XDG_DATA_HOME if it is an absolute path, else ~/.local/share.

    Raises:
        UsageError: the user has no home, such as an unnamed user id in a container.
    """
    home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not home.is_absolute():
        try:
            home = Path.home() / ".local" / "share"
        except RuntimeError:
            raise UsageError("this user has no home folder: set XDG_DATA_HOME to the folder of its data") from None
    return home / "normtune" / "tables"


def installed() -> list[Path]:
    """Files of all installed tables; empty if the user has no home, or the folder cannot be read."""
    try:
        return sorted(installed_folder().glob("*.py"))
    except (UsageError, OSError):
        return []


def slug(name: str) -> str:
    """A GPU's name as a file name, `nvidia_h200`: 1 to 64 characters of a-z, 0-9 and _."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())[:64].strip("_") or "gpu"


def quoted(path: str | os.PathLike[str]) -> str:
    """A file's name for messages; quoted if it would break the line."""
    name = os.fspath(path)
    return name if name.isprintable() and name.strip() else repr(name)


@checked
def load_table(table: str | os.PathLike[str]) -> LoadedTable:
    """Load a table for look-ups; its code is read, and never run.

    Args:
        table: a file that `normtune fit` wrote; if it does not exist, the name of a shipped table: `nvidia-h200`,
            `portable`.

    Raises:
        UsageError: neither exists, or the file cannot be read, has no header of a table, or code of another form.
    """
    return load(file_of(table))


def file_of(table: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The file of a table, by its path or, if no file has it, by the name of a shipped table.

    Raises:
        UsageError: neither exists.
    """
    if os.path.lexists(table):
        return table
    named = by_name()
    if os.fspath(table) not in named:
        raise UsageError(
            f"{quoted(table)} is no file or shipped table: expected a table that `normtune fit --out` wrote, or one of "
            f"{', '.join(named)}"
        )
    return named[os.fspath(table)]


def load(path: str | os.PathLike[str]) -> LoadedTable:
    """Load a table. Its code is read, and never run.

    Raises:
        UsageError: the file cannot be read, has no facts of a table, or code of another form.
    """
    text, name = read(path), quoted(path)
    header, _ = parse(text, name)
    try:
        return LoadedTable(Path(path), header, *decisions(text))
    except NormtuneError as error:
        raise UsageError(f"table {name} cannot be used: {error}; fit it again") from None


def header_of(path: str | os.PathLike[str]) -> Header:
    """Header of a table, without executing the file.

    Raises:
        UsageError: the file cannot be read, or has no header.
    """
    return parse(read(path), quoted(path))[0]


def read(path: str | os.PathLike[str]) -> str:
    """Read a table's file.

    Raises:
        UsageError: the file does not exist, is not a regular file, is too large for a table, or is not text.
    """
    try:
        content = regular_file(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a NUL in its name"
        raise UsageError(f"table {quoted(path)} cannot be read: {reason}; check the path") from None
    if content is None:
        raise UsageError(f"table {quoted(path)} is no regular file: expected a module that `normtune fit` wrote")
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"table {quoted(path)} has over {MAX_BYTES} bytes: expected a module that `normtune fit` wrote"
        )
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise UsageError(f"table {quoted(path)} is no text file: expected a module that `normtune fit` wrote") from None


def regular_file(path: str | os.PathLike[str], most: int, flags: int = 0) -> bytes | None:
    """The first `most` + 1 bytes of a file opened with `flags` of `os.open`; None if it is not a regular file."""
    # O_NONBLOCK: opening a pipe does not wait for its other end.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read(most + 1)
    finally:
        os.close(handle)
