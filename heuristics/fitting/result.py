"""Result of a fit: the functions of a table, shared functions, and the data behind them.

`TableFunction` and `FromData` are also the base of tables for any GPU.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from normtune.heuristics.fitting.figures import Cost, Figures
from normtune.heuristics.fitting.forward_backward import Together
from normtune.heuristics.fitting.in_use import Compared
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape, axes_of, function_operator
from normtune.kernels.tablefile.header import Data
from normtune.kernels.tablefile.relative_tree import RelativeTree
from normtune.kernels.tablefile.tree import Tree
from normtune.results.records import UNKNOWN_START, Device
from normtune.results.regimes import COLD

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

FiguresT = TypeVar("FiguresT")


@dataclass(frozen=True)
class TableFunction:
    """One function of a table, for one GPU or for any.

    Attributes:
        key: of the data it was fitted on.
        tree: the tree.
        dtypes: the dtypes that it answers for under its key, its own first.
    """

    key: Key
    tree: Tree | RelativeTree
    dtypes: tuple[str, ...]

    @property
    def served(self) -> list[Key]:
        """The keys under which the table has it."""
        return [self.key._replace(dtype=dtype) for dtype in self.dtypes]


@dataclass(frozen=True)
class FittedFunction(TableFunction):
    """One fitted function of the table of one GPU.

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
        key: its own.
        donor: key of the function that it takes.
        cost: mean regret that sharing adds on its data, against a function of its own, millionths.
        figures: losses of the function on its data.
    """

    key: Key
    donor: Key
    cost: int
    figures: FiguresT


Shared = SharedFunction[Figures]


@dataclass(frozen=True, kw_only=True)
class FromData:
    """The data behind a table, for one GPU or for any.

    Attributes:
        software: of the newest run.
        date: of the newest run, YYYY-MM-DD, UTC; empty if nobody said when it was.
        digest: of the evidence that was used.
        measurements: their number.
        fingerprints: of the kernels, by operator.
        measured: the least and the most measured size of each axis.
        notes: for the user: data left out, and why.
        regime: of the times.
        unpaired: whether another program measured some of them.
    """

    software: dict[str, str]
    date: str
    digest: str
    measurements: int
    fingerprints: dict[str, str]
    measured: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    regime: str = COLD
    unpaired: bool = False

    @classmethod
    def of(cls, data: "Evidence", shapes: Collection[Shape], regime: str, notes: Sequence[str]) -> "FromData":
        """The facts on some data with these shapes, at least one."""
        newest, axes = data.runs[-1], axes_of(data.measured_keys()[0].family)
        return FromData(
            software=newest.software,
            date="" if newest.started == UNKNOWN_START else newest.started[:10],
            digest=data.digest(),
            measurements=len(data.frame),
            fingerprints=_by_function(data.fingerprints()),
            measured={axis: (min(sizes), max(sizes)) for axis, *sizes in zip(axes, *shapes, strict=True)},
            notes=tuple(notes),
            regime=regime,
            unpaired=any(run.is_unpaired for run in data.runs),
        )

    @property
    def data(self) -> Data:
        """The measurements, as a header names them."""
        regime = "" if self.regime == COLD else self.regime
        return Data(self.digest, self.measurements, self.date, regime, self.unpaired)


def _by_function(fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Fingerprints by operator, of the members of a family in one where they have one function and are equal."""
    found: dict[str, dict[str, str]] = {}
    for name, mark in fingerprints.items():
        found.setdefault(function_operator(name), {})[name] = mark
    return {
        name: mark
        for function, marks in found.items()
        for name, mark in (marks if len({*marks.values()}) > 1 else {function: next(iter(marks.values()))}).items()
    }


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
        compared: by key, what was measured beside what would launch it without this table.
    """

    device: Device
    functions: tuple[FittedFunction, ...]
    shared: tuple[Shared, ...]
    weights: str = "decades"
    together: tuple[Together, ...] = ()
    searched: tuple[str, ...] = ()
    compared: Mapping[Key, Compared] = field(default_factory=dict)

    def with_data(self) -> dict[Key, Figures]:
        """The figures of everything that was measured, with a function of its own or with another's."""
        fitted = {function.key: function.figures for function in self.functions}
        return fitted | {function.key: function.figures for function in self.shared}

    def without_data(self) -> list[tuple[Key, str]]:
        """The keys served without measurements of their own, each with the dtype of the function that serves it."""
        measured = self.with_data()
        return [
            (key, function.key.dtype) for function in self.functions for key in function.served if key not in measured
        ]
