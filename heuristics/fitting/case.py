"""The data and the conditions of one function of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from normtune.heuristics.fitting.baseline import Incumbent, Incumbents
from normtune.heuristics.fitting.figures import Cost, Figures
from normtune.heuristics.fitting.guard import Guard
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.legality import Legality, served_variants
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import Solver
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import Target, relatives


class TableEntry(NamedTuple):
    """The decisions and figures of a key in the header of a table of one GPU; a refit keeps the decisions.

    Attributes:
        key: of the data.
        figures: of the key's function, or of the shared function on the key's data.
        beside: the cost of a batch-invariant function relative to the usual one; None for another function.
        donor: the key whose function is shared; None without sharing.
        cost: mean regret that sharing adds on the key's data, log_ppm.
    """

    key: Key
    figures: Figures
    beside: Cost | None = None
    donor: Key | None = None
    cost: int = 0


class FitArguments(NamedTuple):
    """Arguments of `pipeline.fit`, the same for all operators."""

    target: Target
    options: FitOptions
    incumbents: Incumbents | None
    known: Mapping[Key, TableEntry]
    given: Mapping[Key, Tree]

    def case(self, spec: OperatorSpec, matrix: TimingMatrix) -> "Case":
        """The case of a weighted matrix, for a function of its own dtype."""
        key = matrix.key
        return Case(
            matrix,
            Legality(
                spec,
                self.target,
                (key.dtype,),
                served_variants(spec, key),
                relatives(self.target) if self.options.portable else (),
            ),
            self.options,
            # Unpaired times cannot tell a slower config from noise.
            self.incumbents.of(key, self.target) if self.incumbents and matrix.rounds else None,
            self.known.get(key),
            self.given.get(key),
        )


@dataclass(frozen=True)
class Case:
    """The data and conditions of one function.

    Attributes:
        matrix: the weighted timing matrix.
        legality: for all dtypes and variants that use the function.
        options: of the fit.
        baseline: than which the function must not be slower; None without one.
        known: decisions of an earlier fit, which are kept.
        given: the tree of an earlier fit, which is scored instead of fitting one.
        solver: of the matrix.
    """

    matrix: TimingMatrix
    legality: Legality
    options: FitOptions
    baseline: Incumbent | None = None
    known: TableEntry | None = None
    given: Tree | None = None
    solver: Solver = field(default_factory=Solver)

    @property
    def key(self) -> Key:
        """The function's key."""
        return self.matrix.key

    @property
    def spec(self) -> OperatorSpec:
        """The operator."""
        return self.legality.spec

    def serving(self, dtypes: Sequence[str], batch_invariant: bool = False) -> "Case":
        """The case of a function for these dtypes, or for the batch-invariant mode."""
        key = self.key.batch_invariant if batch_invariant else self.key
        return replace(self, legality=self.legality.serving(dtypes, served_variants(self.spec, key)))

    def on(self, matrix: TimingMatrix, known: TableEntry | None) -> "Case":
        """The case of another matrix, with the decisions `known`."""
        return replace(self, matrix=matrix, known=known, solver=Solver())

    @cached_property
    def guard(self) -> Guard | None:
        """The comparison of the matrix's configs with the baseline's; None without a baseline."""
        if self.baseline is None:
            return None
        legality = self.legality.serving((self.key.dtype,), (self.key.variant,))
        return Guard(self.matrix, self.baseline.choice, legality.reaches)
