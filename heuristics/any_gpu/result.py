"""What a fit for any GPU says: the functions of the shared table, what they lose on each GPU, and their data.

In: values. Out: `AnyGpuFunction` and `AnyGpuFit`. How they are found is in `pipeline`, how they are written in
`emit`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from normtune.heuristics.fitting.result import FromData, SharedFunction, TableFunction
from normtune.heuristics.tablefile.relative_tree import NormalisedTree
from normtune.results.records import Device


class Lost(NamedTuple):
    """Log-regret over the problems of one GPU, millionths.

    Attributes:
        mean: weighted, rounded down.
        worst: the largest.
    """

    mean: int
    worst: int


class OnDevice(NamedTuple):
    """What a function loses on one GPU.

    Attributes:
        device: label of the GPU.
        lost: of the function, which was fitted to it among others.
        left_out: of the function that is fitted in the same way without it; None where it is the only one.
    """

    device: str
    lost: Lost
    left_out: Lost | None


@dataclass(frozen=True)
class AnyGpuFunction(TableFunction):
    """One function of the shared table.

    Attributes:
        leaves: of the tree.
        figures: on each GPU that has data of it.
    """

    tree: NormalisedTree
    leaves: int
    figures: tuple[OnDevice, ...]


AnyGpuShared = SharedFunction[tuple[OnDevice, ...]]


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
