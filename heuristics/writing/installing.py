"""Installation of tables for a user, and their removal.

`write` writes the files; nothing is printed. A separate process queries the GPUs of this machine through torch.
"""

import contextlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.writing import write
from normtune.heuristics.writing.entries import table_text
from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.arguments import checked
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.facts import encoded
from normtune.kernels.tablefile.header import Gpu, parse
from normtune.kernels.target import DRIVER_NAMES, plain_name
from normtune.results.regimes import COLD
from normtune.results.source import Measured, read_evidence


class Installed(NamedTuple):
    """An installed table.

    Attributes:
        path: its file.
        displaced: the table that kernels on this GPU used before, as text.
        note: line about a name of the GPU that no driver is known to report; empty for others.
    """

    path: Path
    displaced: str
    note: str = ""


class Removed(NamedTuple):
    """A removed table.

    Attributes:
        path: its file, which was removed.
        used: each GPU that used it, and the table that kernels on that GPU use from now on, as text.
    """

    path: Path
    used: tuple[tuple[str, str], ...]


def gpus_here() -> list[Gpu]:
    """The GPUs that torch can use on this machine; empty if torch fails."""
    from normtune.kernels.calling.probe import facts_in_child, torch_facts

    return [Gpu(gpu["name"], gpu["target"], gpu["sms"]) for gpu in facts_in_child(torch_facts).get("gpus", [])]


def check(gpus: Sequence[Gpu], force: bool) -> None:
    """Refuse tables of a replay, and on a machine with GPUs those of other GPUs.

    Raises:
        UsageError: there is such a table, and `force` is not set; or a file cannot be written; or normtune did not
            write it, or it was edited, and `force` is not set.
    """
    here = [] if force else gpus_here()
    for gpu in gpus:
        if gpu.is_replay and not force:
            why = "its times are those of a recording"
        elif here and gpu.name not in {plain_name(one.label) for one in here}:
            why = f"this machine has {', '.join(dict.fromkeys(plain_name(one.label) for one in here))}"
        else:
            continue
        raise UsageError(
            f"this would install a table for {gpu.label}, but {why}; kernels on {gpu.name} would use it in place "
            f"of {_displaced(gpu)}; --force installs it anyway"
        )
    for gpu in gpus:  # a refusal above leaves no folder
        path = locate.installed_path(gpu.name)
        advice = "set XDG_DATA_HOME to a folder that can be written"
        write.make_folder(path.parent, parents=True, advice=advice)
        write.check_table(path, force)


def write_installed(text: str, gpu: Gpu, is_unpaired: bool) -> Installed:
    """Write a table to the place of a GPU's installed table, after `check`.

    Somebody typed the name of the GPU where the times are unpaired.

    Raises:
        NormtuneError: it cannot be written.
    """
    note = _unreported(gpu.name) if is_unpaired else ""
    installed = Installed(locate.installed_path(gpu.name), _displaced(gpu), note)
    write.write_table(text, installed.path)
    return installed


def install(table: Path, force: bool = False) -> tuple[Gpu, Installed]:
    """Install a copy of a table, as `normtune table install` does.

    Args:
        table: its file.
        force: as of `Table.install`.

    Returns:
        Its GPU, and the copy.

    Raises:
        UsageError: the file is no table, or `check` refuses it.
        NormtuneError: writing failed.
    """
    header, name = locate.load(table).header, locate.quoted(table)
    check([header.device], force)
    command = command_of(header).moved(table, locate.installed_path(header.gpu))
    _, body = parse(locate.read(table), name)
    text = table_text(header._replace(command=encoded(command)), body)
    return header.device, write_installed(text, header.device, header.data.unpaired)


def _unreported(name: str) -> str:
    if name in DRIVER_NAMES or name in {plain_name(gpu.label) for gpu in gpus_here()}:
        return ""
    longer = [reported for reported in DRIVER_NAMES if reported.startswith(name)]
    nearest = (longer or get_close_matches(name, DRIVER_NAMES, 1, 0.0))[0]
    return (
        f"no driver is known to report {name!r}, and kernels use the table where the name is equal: the nearest known "
        f"one is {nearest!r}, for `data merge --name`"
    )


def _displaced(gpu: Gpu) -> str:
    """The table that kernels on a GPU use now, ignoring NORMTUNE_TABLE, as text."""
    try:
        return locate.unnamed(gpu.name, gpu.target, gpu.sms).source
    except UsageError:
        return f"the installed table {locate.quoted(locate.installed_path(gpu.name))}, which cannot be used"


@checked
def uninstall(data: Measured = None, *, regime: str = COLD, force: bool = False) -> tuple[Removed, ...]:
    """Remove installed tables, as `normtune table remove` does.

    Args:
        data: measurements of the GPUs of the tables: a store, open or by its file or URL, a recording's name, or
            evidence. Without data the tables of this machine's GPUs are removed, and on a machine without a GPU the
            only installed table.
        regime: cache mode of these measurements: `cold`, `warm` or `eager`.
        force: whether to remove files that normtune did not write, or that were edited.

    Raises:
        UsageError: a file may only be removed with `force`, or the choice of a table is ambiguous.
        NormtuneError: nothing is installed, or a file cannot be removed.
    """
    has_data = data is not None
    devices = read_evidence(data, regime).devices() if has_data else []
    requested = [Gpu(device.name, device.target, device.sms) for device in devices] if has_data else gpus_here()
    installed = locate.installed()
    if requested:
        paths = list(dict.fromkeys(locate.installed_path(gpu.label) for gpu in requested))
    elif len(installed) > 1:
        raise UsageError(
            f"this machine has no GPU, and several tables are installed: {_listed(installed)}; choose one by "
            "measurements of its GPU with --store"
        )
    else:
        paths = installed
    present = [path for path in paths if path in installed]
    if not present:
        of = f" for {', '.join(dict.fromkeys(plain_name(gpu.label) for gpu in requested))}" if requested else ""
        others = f"installed is {_listed(installed)}" if installed else "nothing is installed"
        raise NormtuneError(f"no table is installed{of}; {others}")
    for path in present:
        if not force and (reason := write.not_as_written(path)):
            raise UsageError(f"cannot remove {locate.quoted(path)}: {reason}; --force removes it")
    return tuple(_removed(path, requested) for path in present)


def _removed(path: Path, requested: list[Gpu]) -> Removed:
    gpus = [gpu for gpu in requested if locate.installed_path(gpu.label) == path]
    with contextlib.suppress(UsageError):
        header = locate.header_of(path)
        gpus = gpus or [Gpu(header.gpu, header.target, header.sms)]
    try:
        path.unlink()
    except OSError as error:
        raise NormtuneError(f"cannot remove {locate.quoted(path)}: {error.strerror or error}") from None
    return Removed(path, tuple((plain_name(gpu.label), locate.select(*gpu).source) for gpu in dict.fromkeys(gpus)))


def _listed(paths: list[Path]) -> str:
    return ", ".join(locate.quoted(path) for path in paths)
