"""Which table serves a GPU.

In: the GPU's name, target and number of multiprocessors. Out: `Selection`: a loaded table, where it came from, and
whether it was made for that GPU. Loads neither numpy nor pandas, as dispatch asks it at the first launch.

The first that there is: the file that NORMTUNE_TABLE names; the table that the user installed for the GPU; the shipped
table of the same name and number of multiprocessors; the shipped table of the nearest GPU: of the same target, else of
the nearest compute capability, and among those of the nearest number of multiprocessors.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.header import Header, parse

VARIABLE = "NORMTUNE_TABLE"
SHIPPED = Path(__file__).parent / "tables"


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
            return Selection(load(named), f"{named} ({VARIABLE})", True)
        except UsageError as error:
            raise UsageError(f"{VARIABLE} cannot be used: {error}") from None
    installed = _installed(name)
    if installed:
        table = load(installed)
        if (table.header.gpu, table.header.sms) == (name, sms):
            return Selection(table, f"the installed table {installed}", True)
    headers = shipped()
    if not headers:
        return Selection(_empty(name, target, sms), "the default config of each operator", False)
    path = min(headers, key=lambda path: _distance(headers[path], name, target, sms))
    header = headers[path]
    return Selection(load(path), f"the table of {header.device}", (header.gpu, header.sms) == (name, sms))


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


def _installed(name: str) -> Path | None:
    """The file of the installed table of that GPU, if the user has one."""
    try:
        path = installed_path(name)
    except UsageError:
        return None
    return path if os.path.isfile(path) else None  # where Path.is_file fails on a folder that may not be entered


def slug(name: str) -> str:
    """A GPU's name as the name of a file, `nvidia_h200`: only a-z, 0-9 and _, at most 64 of them, never empty."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())[:64].strip("_") or "gpu"


def load(path: str | os.PathLike[str]) -> Table:
    """The table in a file. The file is Python and is run.

    Raises:
        UsageError: the file is missing, has no header of a table, or does not run.
    """
    source = Path(path)
    text = read(source)
    header, _ = parse(text, str(source))
    names: dict[str, object] = {"__name__": f"normtune.heuristics.tables._{slug(source.stem)}", "__file__": str(source)}
    try:
        exec(compile(text, str(source), "exec"), names)
    except Exception as error:
        raise UsageError(f"table {source} does not run ({type(error).__name__}: {error}): fit it again") from None
    tables, lookup = names.get("TABLES"), names.get("lookup")
    if not isinstance(tables, dict) or not callable(lookup):
        raise UsageError(f"table {source} has no TABLES or no lookup: fit it again")
    return Table(source, header, tables, lookup)


def read(source: Path) -> str:
    """The text of a table's file.

    Raises:
        UsageError: there is no such file, or it is not text.
    """
    try:
        return source.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"table {source} cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"table {source} is no text file: expected a module that `normtune fit --out` wrote") from None


def _empty(name: str, target: str, sms: int) -> Table:
    """A table without entries, for when no table ships."""

    def lookup(operator: str, dtype: str, rows: int, hidden: int) -> Entry:
        raise ValueError(f"no table for {operator!r} in {dtype!r}: no table ships with normtune")

    header = Header("", name, target, sms, "", "", {}, "", (), (), "")
    return Table(SHIPPED, header, {}, lookup)


def _distance(header: Header, name: str, target: str, sms: int) -> tuple[bool, bool, bool, int, int, str]:
    """How far a table's GPU is from another; the least is the nearest."""
    family, capability = _architecture(header.target)
    wanted_family, wanted_capability = _architecture(target)
    return (
        (header.gpu, header.sms) != (name, sms),
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
