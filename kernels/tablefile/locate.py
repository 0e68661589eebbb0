"""Find the table of a GPU.

In: the GPU's name, target, number of multiprocessors and L2 cache. Out: `TableSelection`: a loaded table, its source,
and whether it was made for that GPU. Imports neither numpy nor pandas, because dispatch calls it at the first launch.

The order is: the file in NORMTUNE_TABLE, which is used alone; the table that the user installed for the GPU; the
shipped tables of the same name and number of multiprocessors, one per family of operators; the shipped table for any
GPU, whose thresholds are relative to multiprocessors and L2 cache. An operator is looked up in the first table that has
functions of it.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.arguments import checked
from normtune.kernels.box import EVERYWHERE, Interval
from normtune.kernels.config import Config, Knob, class_of
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES, MAX_ROWS
from normtune.kernels.tablefile.header import Data, Gpu, Header, parse
from normtune.kernels.tablefile.parse import relative_trees, trees
from normtune.kernels.tablefile.relative_tree import boxes_on
from normtune.kernels.tablefile.syntax import parsed
from normtune.kernels.tablefile.tree import regions
from normtune.kernels.target import Target, plain_name, target_for

VARIABLE = "NORMTUNE_TABLE"
SHIPPED = Path(__file__).parents[2] / "heuristics" / "tables"
ANY_GPU = "any_gpu.py"
# The table of the H200 has 37 KB.
MAX_BYTES = 1 << 20
_MOST_CHARACTERS = 160


# A config as the plain tuple of its fields.
ConfigFields = tuple[int | str, ...]


class LoadedTable(NamedTuple):
    """A loaded table.

    Attributes:
        source: its file.
        header: its header.
        tables: by key a function of sizes, (rows, hidden), that returns a config as a plain tuple. The functions of an
            unbound table for any GPU also take multiprocessors and bytes of L2 cache.
        lookup: a function of a key's text, dtype and the same sizes that returns a config.
        trees: by key the tree of a function; with relative thresholds in a table for any GPU.
        is_bound: whether the functions take only sizes of a shape.
        axes: the names of these sizes.
    """

    source: Path
    header: Header
    tables: dict[Key, Callable[..., ConfigFields]]
    lookup: Callable[..., ConfigFields]
    trees: Mapping[Key, Any]
    is_bound: bool = True
    axes: tuple[str, ...] = AXES

    def bound(self, sms: int, l2_bytes: int) -> "LoadedTable":
        """The table whose functions take only sizes of a shape; a table of one GPU is returned unchanged."""
        if self.is_bound:
            return self
        gpu = sms, l2_bytes

        def on_gpu(function: Callable[..., ConfigFields]) -> Callable[..., ConfigFields]:
            return lambda *sizes: function(*sizes, *gpu)

        tables = {key: on_gpu(function) for key, function in self.tables.items()}
        return self._replace(tables=tables, lookup=on_gpu(self.lookup), is_bound=True)

    def serves(self, key: Key) -> bool:
        """Whether it has a function of the operator, with any named integers, modes and dtype."""
        return any(table_key.family == key.family for table_key in self.tables)

    def function(self, key: Key) -> Callable[..., ConfigFields] | None:
        """The function of a key; without one of its modes, the plain operator's; None if there is neither.

        For named integers that the table lacks, the function of the nearest ones. If the functions take a third size,
        it is set to the key's.
        """
        found = next((self.tables[name] for name in self.names(key) if name in self.tables), None)
        third = tuple(value for name, value in key.sizes if name in self.axes)
        return partial(_with_third, found, third) if found and third else found

    def names(self, key: Key) -> tuple[Key, ...]:
        """The keys whose function `function` returns, the first that exists."""
        key = key.without(self.axes)
        if key.sizes and not self.tables.keys() & {*key.names}:
            key = key.nearest(self.tables)
        return key.names

    def answer(self, key: Key) -> Callable[..., Config] | None:
        """The same as `function`, but of functions that return a `Config`."""
        function = self.function(key)
        return None if function is None else lambda *shape: _config(function(*shape))


def _with_third(function: Callable[..., ConfigFields], third: tuple[int, ...], *shape: int) -> ConfigFields:
    return function(*shape, *third)


def _config(entry: ConfigFields) -> Config:
    """A config as a plain tuple converted to a `Config` with the same knobs."""
    return _class_of(type(entry))(*entry)


@cache
def _class_of(kind: Any) -> type[Config]:
    hints, defaults = get_type_hints(kind), kind._field_defaults
    return class_of(tuple(Knob(name, hints[name], default=defaults.get(name)) for name in kind._fields))


class TableSelection(NamedTuple):
    """The tables for a GPU.

    Attributes:
        table: the first table.
        source: its origin, as text for a message.
        exact: whether it was made or chosen for this GPU; False for the table for any GPU.
        further: functions that load the other tables, in order, for operators that the tables before lack.
    """

    table: LoadedTable
    source: str
    exact: bool
    further: tuple[Callable[[], LoadedTable], ...] = ()

    def serving(self, key: Key) -> LoadedTable:
        """The table of an operator: the first that has a function of it, else the first table."""
        if self.table.serves(key):
            return self.table
        return next((table for table in (load() for load in self.further) if table.serves(key)), self.table)


def select(name: str, target: str, sms: int, l2_bytes: int | None = None) -> TableSelection:
    """Find the table of a GPU, bound to it.

    Args:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.
        l2_bytes: size of its L2 cache; None for the known value of its target.

    Raises:
        UsageError: NORMTUNE_TABLE, or the installed table, is not a table.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return unnamed(name, target, sms, l2_bytes)
    try:
        table = load(os.path.expanduser(named)).bound(sms, l2_bytes or _l2_bytes(target, sms))
    except UsageError as error:
        raise UsageError(f"{VARIABLE} cannot be used: {error}") from None
    return TableSelection(table, f"{quoted(named)} ({VARIABLE})", True)


def unnamed(name: str, target: str, sms: int, l2_bytes: int | None = None) -> TableSelection:
    """The same as `select`, but ignores NORMTUNE_TABLE.

    Raises:
        UsageError: the installed table is not a table.
    """
    made_for, l2_bytes = (plain_name(name), sms), l2_bytes or _l2_bytes(target, sms)
    further = [cache(partial(load, path)) for path, header in shipped().items() if (header.gpu, header.sms) == made_for]
    for_any = SHIPPED / ANY_GPU
    if for_any.exists():
        further.append(cache(lambda: load(for_any).bound(sms, l2_bytes)))
    installed = _installed(name)
    if installed and (installed.header.gpu, installed.header.sms) == made_for:
        return TableSelection(installed, f"the installed table {quoted(installed.source)}", True, tuple(further))
    if not further:
        return TableSelection(_empty(name, target, sms), "the default config of each operator", False)
    table, *rest = further[0](), *further[1:]
    if table.header.is_for_any_gpu:
        measured = "; ".join(gpu.label for gpu in table.header.fitted)
        return TableSelection(
            table, f"the table for any GPU, which is unmeasured there (it was fitted to {measured})", False
        )
    return TableSelection(table, f"the table of {table.header.label}", True, tuple(rest))


def _l2_bytes(target: str, sms: int) -> int:
    """Bytes of L2 cache of a target; 1 if unknown, so that every size exceeds it."""
    try:
        return target_for(target, sms).l2_bytes
    except UsageError:
        return 1


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
    """Shipped tables of a single GPU: file to header."""
    paths = sorted(path for path in SHIPPED.glob("*.py") if path.name not in ("__init__.py", ANY_GPU))
    return {path: header_of(path) for path in paths}


def by_name() -> dict[str, Path]:
    """Shipped tables by their names in commands: `nvidia-h200`, ..., and last `any-gpu`."""
    paths = [*shipped(), *(path for path in (SHIPPED / ANY_GPU,) if path.exists())]
    return {path.stem.replace("_", "-"): path for path in paths}


def installed_path(name: str) -> Path:
    """The file of a GPU's installed table, which `normtune fit --install` writes.

    Raises:
        UsageError: the user has no home.
    """
    return installed_folder() / f"{slug(name)}.py"


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
    """Load a table for look-ups, after a check that its code does nothing else.

    Args:
        table: a file that `normtune fit` wrote; if it does not exist, the name of a shipped table: `nvidia-h200`,
            `any-gpu`.

    Raises:
        UsageError: neither exists, or the file cannot be read, has no header of a table, or code of another form.
    """
    named = by_name()
    if not os.path.lexists(table):
        if os.fspath(table) in named:
            return load(named[os.fspath(table)])
        raise UsageError(
            f"{quoted(table)} is no file or shipped table: expected a table that `normtune fit --out` wrote, or one of "
            f"{', '.join(named)}"
        )
    return load(table)


def load(path: str | os.PathLike[str]) -> LoadedTable:
    """Load a table. The file is executed only if its syntax proves that it does nothing but choose configs.

    Raises:
        UsageError: the file cannot be read, has no header of a table, or code of another form.
    """
    text = read(path)
    name = quoted(path)
    header, _ = parse(text, name)
    names: dict[str, object] = {"__name__": f"normtune.heuristics.tables._{slug(Path(path).stem)}", "__file__": name}
    try:
        tree_of_key: Mapping[Key, Any] = (relative_trees if header.is_for_any_gpu else trees)(text)
        exec(compile(parsed(text), name, "exec"), names)
        tables, lookup = names["TABLES"], names["lookup"]
    except NormtuneError as error:
        raise UsageError(f"table {name} cannot be used: {error}; fit it again") from None
    except Exception as error:  # any error becomes one that names the file
        why = f"it raises {type(error).__name__}: {str(error)[:_MOST_CHARACTERS]}"
        raise UsageError(f"table {name} cannot be used: {why}; fit it again") from None
    if not isinstance(tables, dict) or not callable(lookup):
        raise AssertionError("a table in the form that normtune writes has TABLES and lookup")
    by_key = {Key.parse(*entry): function for entry, function in tables.items()}
    axes = AXES if header.is_for_any_gpu else tuple(signature(lookup).parameters)[2:]
    return LoadedTable(Path(path), header, by_key, lookup, tree_of_key, not header.is_for_any_gpu, axes)


def header_of(path: str | os.PathLike[str]) -> Header:
    """Header of a table, without executing the file.

    Raises:
        UsageError: the file cannot be read, or has no header.
    """
    return parse(read(path), quoted(path))[0]


def row_bounds(table: LoadedTable, key: Key, hidden: int, target: Target) -> list[int]:
    """The numbers of rows, ascending from 1, at which the table's config for rows of `hidden` elements may change."""
    bounds, whole = {1}, EVERYWHERE.with_interval(Interval("hidden", hidden, hidden))
    for tree in (table.trees[name] for name in table.names(key) if name in table.trees):
        if table.header.is_for_any_gpu:
            for _, (rows, _, elements) in boxes_on(tree, target.sms, target.l2_bytes, whole):
                bounds |= {rows.least, rows.most + 1, elements.most // hidden + 1}
        else:
            bounds |= {box[0].least for _, box in regions(tree, whole)}
    return sorted(bound for bound in bounds if 1 <= bound <= MAX_ROWS)


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


def _empty(name: str, target: str, sms: int) -> LoadedTable:
    """A table without entries, for an installation without shipped tables."""

    def lookup(operator: str, dtype: str, rows: int, hidden: int) -> ConfigFields:
        raise ValueError(f"no table for {operator!r} in {dtype!r}: no table ships with normtune")

    header = Header(Gpu(plain_name(name), target, sms), {}, Data("", 0, ""), {}, {}, {}, (), "")
    return LoadedTable(SHIPPED, header, {}, lookup, {})
