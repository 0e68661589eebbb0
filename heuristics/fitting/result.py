"""Result of a fit: the functions of a table, shared functions, and the data behind them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from normtune.heuristics.fitting.figures import Cost, Figures
from normtune.heuristics.fitting.in_use import Compared
from normtune.kernels.box import Box, Interval
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape, axes_of, function_operator
from normtune.kernels.tablefile.header import Data
from normtune.kernels.tablefile.tree import Tree
from normtune.results.records import UNKNOWN_START, Device
from normtune.results.regimes import COLD

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class OtherSize(NamedTuple):
    """What the best tree of another number of leaves would lose.

    Attributes:
        leaves: their number at most.
        loss: plain mean regret of the best tree, log_ppm.
        guarded: the same of the best tree that is nowhere slower than the baseline; None without one.
    """

    leaves: int
    loss: int
    guarded: int | None


@dataclass(frozen=True)
class FittedFunction:
    """One fitted function of a table.

    Attributes:
        key: of the data that it was fitted to.
        tree: the tree.
        dtypes: the dtypes that use it, the data's dtype first.
        figures: its losses.
        beside: the cost of a batch-invariant function relative to the usual one; None for another function.
        other_sizes: the best trees with other numbers of leaves; a table does not keep them.
    """

    key: Key
    tree: Tree
    dtypes: tuple[str, ...]
    figures: Figures
    beside: Cost | None = None
    other_sizes: tuple[OtherSize, ...] = ()

    @property
    def served(self) -> list[Key]:
        """The keys of the table that have this function."""
        return [self.key._replace(dtype=dtype) for dtype in self.dtypes]


class Shared(NamedTuple):
    """A variant or dtype that has data, but uses the function of another key.

    Attributes:
        key: of the data.
        donor: the key whose function is shared.
        cost: mean regret on the data above that of a separate function, log_ppm.
        figures: losses of the shared function on the data.
    """

    key: Key
    donor: Key
    cost: int
    figures: Figures


def box_around(key: Key, shapes: Collection[Shape]) -> Box:
    """The least box with all measured shapes of a key."""
    along = zip(axes_of(key.family), *shapes, strict=True)
    return Box(Interval(axis, min(sizes), max(sizes)) for axis, *sizes in along)


def data_of(evidence: "Evidence", regime: str) -> Data:
    """The facts about measurements in a header."""
    newest = evidence.runs[-1].started
    return Data(
        evidence.digest(),
        len(evidence.frame),
        "" if newest == UNKNOWN_START else newest[:10],
        "" if regime == COLD else regime,
        any(run.is_unpaired for run in evidence.runs),
    )


def by_function(fingerprints: Mapping[str, str]) -> dict[str, str]:
    """Fingerprints by operator; equal ones of operators that share a function have one entry."""
    marks_of: dict[str, dict[str, str]] = {}
    for name, mark in fingerprints.items():
        marks_of.setdefault(function_operator(name), {})[name] = mark
    return {
        name: mark
        for function, marks in marks_of.items()
        for name, mark in (marks if len({*marks.values()}) > 1 else {function: next(iter(marks.values()))}).items()
    }


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted table, not written yet.

    Attributes:
        device: of the newest run.
        functions: in the order of the code.
        shared: variants and dtypes that have data and use another key's function.
        measured: the box of the measured sizes of each key with data.
        data: the measurements, as in a header.
        software: of the newest run.
        fingerprints: of the kernels, by operator.
        notes: for the user: why data was left out.
        weights: the option for the weights of problems.
        searched: a line for each function whose search left configs out.
        compared: by key the comparison with the configs that would be launched without this table.
    """

    device: Device
    functions: tuple[FittedFunction, ...]
    shared: tuple[Shared, ...]
    measured: dict[Key, Box]
    data: Data
    software: dict[str, str]
    fingerprints: dict[str, str]
    notes: tuple[str, ...]
    weights: str | None = None
    searched: tuple[str, ...] = ()
    compared: Mapping[Key, Compared] = field(default_factory=dict)

    def with_data(self) -> dict[Key, Figures]:
        """The figures of each measured key, with its own function or a shared one."""
        fitted = {function.key: function.figures for function in self.functions}
        return fitted | {function.key: function.figures for function in self.shared}

    def without_data(self) -> list[tuple[Key, str]]:
        """The keys without measurements of their own, each with the dtype of its function's data."""
        measured = self.with_data()
        return [
            (key, function.key.dtype) for function in self.functions for key in function.served if key not in measured
        ]
