"""What a fit says: the functions of a table, what shares them, and the data they come from.

In: values. Out: `Function`, `Shared` and `Fit`. How they are found is in `fitting`, how they are written in `emit`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from normtune.heuristics.figures import Figures
from normtune.heuristics.tree import Tree
from normtune.results.records import Device


@dataclass(frozen=True)
class Function:
    """One function of the table.

    Attributes:
        operator, variant, dtype: whose data it was fitted on.
        tree: what it does.
        figures: how good it is.
        dtypes: the dtypes that it answers for, its own first.
        cross_validated: mean regret on problems left out, for 1, 2, ... leaves; empty where leaves were given.
    """

    operator: str
    variant: str
    dtype: str
    tree: Tree
    figures: Figures
    dtypes: tuple[str, ...]
    cross_validated: tuple[int | None, ...]

    @property
    def key(self) -> str:
        """The operator's name in the table."""
        return f"{self.operator}:{self.variant}" if self.variant else self.operator


class Shared(NamedTuple):
    """A variant that takes the plain operator's function.

    Attributes:
        key, dtype: the variant's name and dtype.
        cost: mean regret that sharing adds on the variant's data, millionths.
        problems: how many the cost was taken over.
        leaves: leaves of the variant's own tree, the one it was compared with.
    """

    key: str
    dtype: str
    cost: int
    problems: int
    leaves: int


@dataclass(frozen=True)
class Fit:
    """A fitted table, not written yet.

    Attributes:
        device, software: of the newest run.
        date: of the newest run, YYYY-MM-DD, UTC.
        digest: of the evidence that was used.
        measurements: how many there are in it.
        fingerprints: of the kernels, by operator.
        measured: least and largest measured rows, least and largest measured hidden.
        functions: in the order of the code.
        shared: variants without functions of their own.
        notes: what the user should know: data left out, and why.
    """

    device: Device
    software: dict[str, str]
    date: str
    digest: str
    measurements: int
    fingerprints: dict[str, str]
    measured: tuple[int, int, int, int]
    functions: tuple[Function, ...]
    shared: tuple[Shared, ...]
    notes: tuple[str, ...]
