"""Which table the kernels take on a GPU, said without torch and without launching anything.

In: a GPU's name, target and number of multiprocessors; NORMTUNE_TABLE and what is installed and shipped. Out: the
table in words. `dispatch` takes it; who only wants to know asks here.
"""

import os

from normtune.errors import UsageError
from normtune.heuristics.tablefile import locate


def serving(name: str, target: str, sms: int) -> tuple[str, bool]:
    """Where the table of a GPU comes from, as one would say it in a sentence, and whether it was made for that GPU.

    Args:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.

    Raises:
        UsageError: NORMTUNE_TABLE, or the installed table, is no table.
    """
    found = locate.select(name, target, sms)
    return found.source, found.exact


def without_gpu() -> str:
    """What waits for a GPU: the table that NORMTUNE_TABLE names, else the GPUs whose tables ship.

    Raises:
        UsageError: NORMTUNE_TABLE names no table.
    """
    named = os.environ.get(locate.VARIABLE)
    if named:
        # NORMTUNE_TABLE comes before all else, so any GPU gives the same answer, or the same error.
        source, _ = serving("", "", 0)
        return f"{source} waits for one"
    devices = ", ".join(sorted(header.device for header in locate.shipped().values())) or "none"
    return f"normtune ships tables of {devices}"


def installed() -> list[tuple[str, str, str]]:
    """The tables that the user installed, of whatever GPU: the file of each, the GPU, and why it cannot be used."""
    found = []
    for path in locate.installed():
        try:
            header = locate.load(path).header
        except UsageError as error:
            found.append((locate.told(path), "", str(error)))
        else:
            found.append((locate.told(path), f"{header.device}, {header.sms} SMs", ""))
    return found
