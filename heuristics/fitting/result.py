"""Result of a fit: the functions of a table, shared functions, and the data behind them.

In: values. Out: `Function`, `Shared` and `Fit`, and `TableFunction` and `FromData`, which tables for any GPU share.
`pipeline` makes them, `emit` writes them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from normtune.heuristics.fitting.figures import Cost, Figures
from normtune.heuristics.fitting.forward_backward import Together
from normtune.kernels.problem import AXES, Shape, join_key
from normtune.kernels.tablefile.header import Data
from normtune.kernels.tablefile.relative_tree import RelativeTree
from normtune.kernels.tablefile.tree import Tree
from normtune.results.records import Device
from normtune.results.regimes import COLD

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

FiguresT = TypeVar("FiguresT")


@dataclass(frozen=True)
class TableFunction:
    """One function of a table, for one GPU or for any.

    Attributes:
        operator, variant, dtype: of the data it was fitted on.
        tree: the tree.
        dtypes: the dtypes that it answers for under its key, its own first.
    """

    operator: str
    variant: str
    dtype: str
    tree: Tree | RelativeTree
    dtypes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The operator's name in the table."""
        return join_key(self.operator, self.variant)


@dataclass(frozen=True)
class Function(TableFunction):
    """One function of the table of one GPU.

    Attributes:
        figures: its losses.
        replacing: whether the table that it replaces shaped it.
        beside: of a batch-invariant function, its cost against the usual one; else None.
    """

    tree: Tree
    figures: Figures
    replacing: bool = False
    beside: Cost | None = None


class SharedFunction(NamedTuple, Generic[FiguresT]):
    """A variant or dtype that has data, but takes the function of another.

    Attributes:
        key, dtype: its name and dtype.
        donor: key and dtype of the function that it takes.
        cost: mean regret that sharing adds on its data, against a function of its own, millionths.
        figures: losses of the function on its data.
    """

    key: str
    dtype: str
    donor: tuple[str, str]
    cost: int
    figures: FiguresT


Shared = SharedFunction[Figures]


@dataclass(frozen=True, kw_only=True)
class FromData:
    """The data behind a table, for one GPU or for any.

    Attributes:
        software: of the newest run.
        date: of the newest run, YYYY-MM-DD, UTC.
        digest: of the evidence that was used.
        measurements: their number.
        fingerprints: of the kernels, by operator.
        measured: the least and the most measured size of each axis.
        notes: for the user: data left out, and why.
        regime: of the times.
    """

    software: dict[str, str]
    date: str
    digest: str
    measurements: int
    fingerprints: dict[str, str]
    measured: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    regime: str = COLD

    @classmethod
    def of(cls, data: "Evidence", shapes: Collection[Shape], regime: str, notes: Sequence[str]) -> "FromData":
        """The facts on some data with these shapes, at least one."""
        newest = data.runs[-1]
        return FromData(
            software=newest.software,
            date=newest.started[:10],
            digest=data.digest(),
            measurements=len(data.frame),
            fingerprints=data.fingerprints(),
            measured={axis: (min(sizes), max(sizes)) for axis, *sizes in zip(AXES, *shapes, strict=True)},
            notes=tuple(notes),
            regime=regime,
        )

    @property
    def data(self) -> Data:
        """The measurements, as a header names them."""
        return Data(self.digest, self.measurements, self.date, "" if self.regime == COLD else self.regime)


@dataclass(frozen=True, kw_only=True)
class Fit(FromData):
    """A fitted table, not written yet.

    Attributes:
        device: of the newest run.
        functions: in the order of the code.
        shared: variants and dtypes that have data and no function of their own.
        weights: of the problems, the user's choice.
        together: loss of forward and backward together.
        searched: a line for each function whose data a search chose that left configs out.
    """

    device: Device
    functions: tuple[Function, ...]
    shared: tuple[Shared, ...]
    weights: str = "decades"
    together: tuple[Together, ...] = ()
    searched: tuple[str, ...] = ()

    def with_data(self) -> list[tuple[str, str, Figures]]:
        """(key, dtype, figures) of everything that was measured, with a function of its own or with another's."""
        own = [(function.key, function.dtype, function.figures) for function in self.functions]
        return own + [(function.key, function.dtype, function.figures) for function in self.shared]

    def without_data(self) -> list[tuple[str, str, str]]:
        """(key, dtype, dtype of the function it takes) of everything that is served without measurements of its own."""
        measured = {(key, dtype) for key, dtype, _ in self.with_data()}
        return [
            (function.key, dtype, function.dtype)
            for function in self.functions
            for dtype in function.dtypes
            if (function.key, dtype) not in measured
        ]
