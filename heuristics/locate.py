"""Which table serves a GPU.

In: the GPU's name, target and number of multiprocessors. Out: `Selection`: a loaded table, where it came from, and
whether it was made for that GPU. Loads neither numpy nor pandas, as dispatch asks it at the first launch.

The first that there is: the file that NORMTUNE_TABLE names; the table that the user installed for the GPU; the shipped
table of the same name and number of multiprocessors; the shipped table of the nearest GPU: of the same target, else of
the nearest compute capability, and among those of the nearest number of multiprocessors.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.header import Header, parse
from normtune.heuristics.regions import trees
from normtune.kernels.config import Config
from normtune.kernels.gpu_name import plain_name
from normtune.kernels.problem import batch_invariant_key, split_key

VARIABLE = "NORMTUNE_TABLE"
SHIPPED = Path(__file__).parent / "tables"
# The table of the H200 has 15 KB.
MAX_BYTES = 1 << 20


# A config, as the plain tuple of its fields.
Entry = tuple[str, int, int, int, int, str, int]


class Table(NamedTuple):
    """A loaded table.

    Attributes:
        source: its file.
        header: what it says of itself.
        tables: (operator key, dtype) to a function of (rows, hidden) that returns a config, a plain tuple to normtune.
        lookup: (operator key, dtype, rows, hidden) to a config.
    """

    source: Path
    header: Header
    tables: dict[tuple[str, str], Callable[[int, int], Entry]]
    lookup: Callable[[str, str, int, int], Entry]

    def function(self, key: str, dtype: str) -> Callable[[int, int], Entry] | None:
        """What answers for an operator: its own function, else, for a variant, the plain operator's; None without."""
        return self.tables.get((key, dtype)) or self.tables.get((split_key(key)[0], dtype))

    def batch_invariant(self, key: str, dtype: str) -> Callable[[int, int], Entry] | None:
        """As `function`, of functions that do not look at rows."""
        operator = split_key(key)[0]
        found = (self.tables.get((batch_invariant_key(name), dtype)) for name in (key, operator))
        return next((function for function in found if function), None)

    def answer(self, key: str, dtype: str) -> Callable[[int, int], Config] | None:
        """As `function`, of a function that returns a `Config`."""
        found = self.function(key, dtype)
        return None if found is None else lambda rows, hidden: Config(*found(rows, hidden))


class Selection(NamedTuple):
    """The table for a GPU.

    Attributes:
        table: the table.
        source: where it came from, as one would say it in a sentence.
        exact: whether somebody chose it for this GPU; False for the nearest one.
    """

    table: Table
    source: str
    exact: bool


def select(name: str, target: str, sms: int) -> Selection:
    """The table that serves a GPU.

    Args:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.

    Raises:
        UsageError: NORMTUNE_TABLE, or the installed table, is no table.
    """
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Selection(load(os.path.expanduser(named)), f"{told(named)} ({VARIABLE})", True)
        except UsageError as error:
            raise UsageError(f"{VARIABLE} cannot be used: {error}") from None
    made_for = plain_name(name), sms
    installed = _installed(name)
    if installed and (installed.header.gpu, installed.header.sms) == made_for:
        return Selection(installed, f"the installed table {told(installed.source)}", True)
    headers = shipped()
    if not headers:
        return Selection(_empty(name, target, sms), "the default config of each operator", False)
    path = min(headers, key=lambda path: _distance(headers[path], name, target, sms))
    header = headers[path]
    return Selection(load(path), f"the table of {header.device}", (header.gpu, header.sms) == made_for)


def _installed(name: str) -> Table | None:
    """The table that the user installed for the GPU of that name; None where there is none.

    Raises:
        UsageError: there is one that cannot be used.
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
            f"the installed table cannot be used: {error}; delete {told(path)}, or `normtune fit --install --force` "
            "writes it again"
        ) from None


def shipped() -> dict[Path, Header]:
    """The tables that come with normtune: file to header."""
    paths = sorted(path for path in SHIPPED.glob("*.py") if path.name != "__init__.py")
    return {path: parse(read(path), str(path))[0] for path in paths}


def installed_path(name: str) -> Path:
    """Where `normtune fit --install` puts the table of the GPU of that name: in the user's data folder.

    By the XDG Base Directory Specification: XDG_DATA_HOME if it is an absolute path, else ~/.local/share.

    Raises:
        UsageError: the user has no home, as under a number that a container gives.
    """
    home = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not home.is_absolute():
        try:
            home = Path.home() / ".local" / "share"
        except RuntimeError:
            raise UsageError("this user has no home folder: set XDG_DATA_HOME to the folder of its data") from None
    return home / "normtune" / "tables" / f"{slug(name)}.py"


def slug(name: str) -> str:
    """A GPU's name as the name of a file, `nvidia_h200`: only a-z, 0-9 and _, at most 64 of them, never empty."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())[:64].strip("_") or "gpu"


def told(path: str | os.PathLike[str]) -> str:
    """How messages name a file: as it is, or quoted where it would not stay in one line."""
    name = os.fspath(path)
    return name if name.isprintable() and name.strip() else repr(name)


def load(path: str | os.PathLike[str]) -> Table:
    """The table in a file. The file is Python and is run once it is known to do nothing but choose configs.

    Raises:
        UsageError: the file cannot be read, has no header of a table, or code that normtune does not write.
    """
    text = read(path)
    name = told(path)
    header, _ = parse(text, name)
    names: dict[str, object] = {"__name__": f"normtune.heuristics.tables._{slug(Path(path).stem)}", "__file__": name}
    try:
        trees(text)
        exec(compile(text, name, "exec"), names)
        tables, lookup = names["TABLES"], names["lookup"]
    except NormtuneError as error:
        raise UsageError(f"table {name} cannot be used: {error}; fit it again") from None
    if not isinstance(tables, dict) or not callable(lookup):
        raise AssertionError("a table in the form that normtune writes has TABLES and lookup")
    return Table(Path(path), header, tables, lookup)


def read(path: str | os.PathLike[str]) -> str:
    """The text of a table's file.

    Raises:
        UsageError: there is no such file, it is no regular file, too large for a table, or not text.
    """
    try:
        content = _content(path)
    except (OSError, ValueError) as error:  # ValueError: the name has a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"table {told(path)} cannot be read: {reason}; check the path") from None
    if content is None:
        raise UsageError(f"table {told(path)} is no regular file: expected a module that `normtune fit --out` wrote")
    if len(content) > MAX_BYTES:
        raise UsageError(f"table {told(path)} has over {MAX_BYTES} bytes: expected a module that `normtune fit` wrote")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            f"table {told(path)} is no text file: expected a module that `normtune fit --out` wrote"
        ) from None


def _content(path: str | os.PathLike[str]) -> bytes | None:
    """The first bytes of a file, one more than a table may have; None where it is no regular file."""
    # Opened like this a pipe does not wait for its other end.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    finally:
        os.close(handle)


def _empty(name: str, target: str, sms: int) -> Table:
    """A table without entries, for when no table ships."""

    def lookup(operator: str, dtype: str, rows: int, hidden: int) -> Entry:
        raise ValueError(f"no table for {operator!r} in {dtype!r}: no table ships with normtune")

    header = Header("", plain_name(name), target, sms, "", "", {}, "", (), (), "")
    return Table(SHIPPED, header, {}, lookup)


def _distance(header: Header, name: str, target: str, sms: int) -> tuple[bool, bool, bool, int, int, str]:
    """How far a table's GPU is from another; the least is the nearest."""
    family, capability = _architecture(header.target)
    wanted_family, wanted_capability = _architecture(target)
    return (
        (header.gpu, header.sms) != (plain_name(name), sms),
        header.target != target,
        family != wanted_family,
        abs(capability - wanted_capability),
        abs(header.sms - sms),
        header.device,
    )


def _architecture(target: str) -> tuple[str, int]:
    """The family and number of a target: `sm_90` is ("sm_", 90), `gfx942` is ("gfx", 942)."""
    match = re.match(r"(\D*)(\d*)", target)
    return (match[1], int(match[2] or 0)) if match else (target, 0)
