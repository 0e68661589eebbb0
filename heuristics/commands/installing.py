"""The tables that `fit --install` installs for a user and `fit --uninstall` removes.

In: devices, and the GPUs of this machine, which a process of its own asks torch for. Out: what stands against an
installation, what one displaces, and the same for a removal, in words. Tables are written by `write`.
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
    """A GPU by what a table is found by: the driver's name, the compiler's name, the number of multiprocessors."""

    name: str
    target: str
    sms: int


def gpus_here() -> list[Gpu]:
    """The GPUs that torch can use on this machine; none where it cannot say."""
    from normtune.tuner.machine.probe import ask

    return [Gpu(gpu["name"], gpu["target"], gpu["sms"]) for gpu in ask("torch").get("gpus", [])]


def displaced(device: Device) -> str:
    """What kernels on a GPU use as long as nothing is installed over it, NORMTUNE_TABLE left out of account."""
    try:
        return locate.unnamed(device.name, device.target, device.sms, device.l2_bytes).source
    except UsageError:
        return f"the installed table {locate.told(locate.installed_path(device.name))}, which cannot be used"


def check(devices: list[Device], force: bool) -> None:
    """Refuse to install tables that were not measured on a GPU of this machine; without one, just those of a replay.

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
        devices: whose tables; None for the GPUs of this machine, and on a machine without one for the GPU whose table
            is the only one that is installed.
        force: whether also a file is removed that normtune did not write, or that was edited.

    Returns:
        What was removed, and what kernels use from now on, in lines.

    Raises:
        UsageError: a file is to stay, or it is not clear which table is meant.
        NormtuneError: nothing is installed, or a file cannot be removed.
    """
    wanted = gpus_here() if devices is None else [Gpu(one.name, one.target, one.sms) for one in devices]
    there = locate.installed()
    if wanted:
        paths = list(dict.fromkeys(locate.installed_path(gpu.name) for gpu in wanted))
    elif len(there) > 1:
        raise UsageError(
            f"--uninstall is given where there is no GPU, and several tables are installed: {_listed(there)}; name "
            "measurements of the one that is meant with --store or --recording"
        )
    else:
        paths = there
    found = [path for path in paths if path in there]
    if not found:
        of = f" for {', '.join(dict.fromkeys(plain_name(gpu.name) for gpu in wanted))}" if wanted else ""
        others = f"installed is {_listed(there)}" if there else "nothing is installed"
        raise NormtuneError(f"no table is installed{of}, so none is removed; {others}")
    for path in found:
        if not force and (why := write.not_as_written(path)):
            raise UsageError(f"cannot remove {locate.told(path)}: {why}; --force removes it")
    return [line for path in found for line in _removed(path, wanted)]


def _removed(path: Path, wanted: list[Gpu]) -> list[str]:
    gpus = [gpu for gpu in wanted if locate.installed_path(gpu.name) == path]
    with contextlib.suppress(UsageError):
        header = locate.header_of(path)
        gpus = gpus or [Gpu(header.gpu, header.target, header.sms)]
    try:
        path.unlink()
    except OSError as error:
        raise NormtuneError(f"cannot remove {locate.told(path)}: {error.strerror or error}") from None
    told = [f"removed {locate.told(path)}"]
    for gpu in dict.fromkeys(gpus):
        told.append(f"kernels on {plain_name(gpu.name)} use {locate.select(*gpu).source} from now on")
    return told


def _listed(paths: list[Path]) -> str:
    return ", ".join(locate.told(path) for path in paths)
