"""Tables that `fit --install` installs for a user and `fit --uninstall` removes.

In: devices, and the GPUs of this machine, which a separate process asks torch for. Out: objections to an installation,
the table that it displaces, and the same for a removal, in words. `write` writes tables.
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting import write
from normtune.heuristics.tablefile import locate
from normtune.kernels.gpu_name import plain_name
from normtune.results.records import REPLAY_PREFIX, Device


class Gpu(NamedTuple):
    """A GPU by the keys of a table: the driver's name, the compiler's name, the number of multiprocessors."""

    name: str
    target: str
    sms: int


def gpus_here() -> list[Gpu]:
    """The GPUs that torch can use on this machine; none if torch cannot tell."""
    from normtune.tuner.machine.probe import ask

    return [Gpu(gpu["name"], gpu["target"], gpu["sms"]) for gpu in ask("torch").get("gpus", [])]


def displaced(device: Device) -> str:
    """The table that kernels on a GPU use without an installation over it, disregarding NORMTUNE_TABLE."""
    try:
        return locate.unnamed(device.name, device.target, device.sms, device.l2_bytes).source
    except UsageError:
        return f"the installed table {locate.told(locate.installed_path(device.name))}, which cannot be used"


def check(devices: list[Device], force: bool) -> None:
    """Refuse tables that were not measured on a GPU of this machine; on a machine without one, only those of a replay.

    Raises:
        UsageError: there is such a table, and `force` is not set.
    """
    if force:
        return
    here = gpus_here()
    for device in devices:
        if device.uuid.startswith(REPLAY_PREFIX):
            why = "its times are a replay of a recording, measured on no GPU"
        elif here and plain_name(device.name) not in {plain_name(gpu.name) for gpu in here}:
            why = f"this machine has {', '.join(dict.fromkeys(plain_name(gpu.name) for gpu in here))}"
        else:
            continue
        raise UsageError(
            f"--install is of a table for {device.label}, but {why}; kernels on {plain_name(device.name)} would use it "
            f"in place of {displaced(device)}; --force installs it all the same"
        )


def uninstall(devices: list[Device] | None, force: bool) -> list[str]:
    """Remove installed tables.

    Args:
        devices: of the tables; None for the GPUs of this machine, and on a machine without one for the GPU with the
            only installed table.
        force: whether to remove files that normtune did not write, or that were edited.

    Returns:
        Lines with the removed files and the tables that kernels use from now on.

    Raises:
        UsageError: a file is to stay, or the choice of a table is ambiguous.
        NormtuneError: nothing is installed, or a file cannot be removed.
    """
    wanted = gpus_here() if devices is None else [Gpu(device.name, device.target, device.sms) for device in devices]
    installed = locate.installed()
    if wanted:
        paths = list(dict.fromkeys(locate.installed_path(gpu.name) for gpu in wanted))
    elif len(installed) > 1:
        raise UsageError(
            f"--uninstall is given where there is no GPU, and several tables are installed: {_listed(installed)}; name "
            "measurements of the one that is meant with --store or --recording"
        )
    else:
        paths = installed
    present = [path for path in paths if path in installed]
    if not present:
        of = f" for {', '.join(dict.fromkeys(plain_name(gpu.name) for gpu in wanted))}" if wanted else ""
        others = f"installed is {_listed(installed)}" if installed else "nothing is installed"
        raise NormtuneError(f"no table is installed{of}, so none is removed; {others}")
    for path in present:
        if not force and (reason := write.not_as_written(path)):
            raise UsageError(f"cannot remove {locate.told(path)}: {reason}; --force removes it")
    return [line for path in present for line in _removed(path, wanted)]


def _removed(path: Path, wanted: list[Gpu]) -> list[str]:
    gpus = [gpu for gpu in wanted if locate.installed_path(gpu.name) == path]
    with contextlib.suppress(UsageError):
        header = locate.header_of(path)
        gpus = gpus or [Gpu(header.gpu, header.target, header.sms)]
    try:
        path.unlink()
    except OSError as error:
        raise NormtuneError(f"cannot remove {locate.told(path)}: {error.strerror or error}") from None
    lines = [f"removed {locate.told(path)}"]
    for gpu in dict.fromkeys(gpus):
        lines.append(f"kernels on {plain_name(gpu.name)} use {locate.select(*gpu).source} from now on")
    return lines


def _listed(paths: list[Path]) -> str:
    return ", ".join(locate.told(path) for path in paths)
