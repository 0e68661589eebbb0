"""Which table the kernels use on a GPU, as text for reports; imports no torch and launches nothing.

In: a GPU's name, target and number of multiprocessors; NORMTUNE_TABLE, installed and shipped tables.
"""

import os

from normtune.errors import UsageError
from normtune.kernels.tablefile import locate


def serving(name: str, target: str, sms: int) -> tuple[str, bool]:
    """Source of a GPU's table, as part of a sentence, and whether it was made for that GPU.

    Args:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.

    Raises:
        UsageError: NORMTUNE_TABLE, or the installed table, is not a table.
    """
    table = locate.select(name, target, sms)
    return table.source, table.exact


def without_gpu() -> str:
    """The tables for a machine without a GPU: that of NORMTUNE_TABLE, else the GPUs whose tables ship.

    Raises:
        UsageError: NORMTUNE_TABLE is not the path of a table.
    """
    named = os.environ.get(locate.VARIABLE)
    if named:
        # NORMTUNE_TABLE comes before all other tables, so any GPU gives the same result, or the same error.
        source, _ = serving("", "", 0)
        return f"{source} waits for one"
    devices = ", ".join(sorted({header.label for header in locate.shipped().values()})) or "none"
    return f"normtune ships tables of {devices}"


def installed() -> list[tuple[str, str, str]]:
    """The tables that the user installed, for any GPU: path, GPU, and the reason if it cannot be used."""
    entries = []
    for path in locate.installed():
        try:
            header = locate.load(path).header
        except UsageError as error:
            entries.append((locate.quoted(path), "", str(error)))
        else:
            entries.append((locate.quoted(path), f"{header.label}, {header.sms} SMs", ""))
    return entries
