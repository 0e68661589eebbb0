"""Result of a fit for any GPU: the functions of the shared table, their loss on each GPU, and their data."""

from dataclasses import dataclass

from normtune.heuristics.fitting.figures import DeviceLoss
from normtune.heuristics.fitting.result import FromData, SharedFunction, TableFunction
from normtune.kernels.tablefile.relative_tree import RelativeTree
from normtune.results.records import Device


@dataclass(frozen=True)
class AnyGpuFunction(TableFunction):
    """One function of the shared table.

    Attributes:
        leaves: of the tree.
        figures: on each GPU that has data for it.
    """

    tree: RelativeTree
    leaves: int
    figures: tuple[DeviceLoss, ...]


AnyGpuShared = SharedFunction[tuple[DeviceLoss, ...]]


@dataclass(frozen=True, kw_only=True)
class AnyGpuFit(FromData):
    """A shared table, not written yet.

    Attributes:
        devices: those it was fitted to, by label.
        functions: in the order of the code.
        shared: variants and dtypes that have data and no function of their own.
    """

    devices: tuple[Device, ...]
    functions: tuple[AnyGpuFunction, ...]
    shared: tuple[AnyGpuShared, ...]
