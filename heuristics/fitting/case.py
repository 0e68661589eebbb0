"""The data and the conditions of one function of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from normtune.heuristics.fitting.baseline import Choice, Incumbents
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
    decisions: Mapping[Key, TableEntry]

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
            self.decisions.get(key),
        )


@dataclass(frozen=True)
class Case:
    """The data and conditions of one function.

    Attributes:
        matrix: the weighted timing matrix.
        legality: for all dtypes and variants that use the function.
        options: of the fit.
        baseline: the config that the function's must not be slower than; None without one.
        decision: decisions of an earlier fit, which are kept.
        solver: of the matrix.
    """

    matrix: TimingMatrix
    legality: Legality
    options: FitOptions
    baseline: Choice | None = None
    decision: TableEntry | None = None
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

    @cached_property
    def guard(self) -> Guard | None:
        """The comparison of the matrix's configs with the baseline's; None without a baseline."""
        return None if self.baseline is None else Guard(self.matrix, self.baseline)

    @cached_property
    def guarded(self) -> TimingMatrix | None:
        """The matrix without configs where they are slower than the baseline's; None if there are none."""
        cells = None if self.guard is None else self.guard.barred(self.legality.reaches)
        return None if cells is None or not cells.any() else self.matrix.without(cells)

    def against_baseline(self, figures: Figures, tree: Tree) -> Figures:
        """The figures of a tree with those of its comparison with the baseline."""
        if self.guard is None:
            return figures
        legality = self.legality.serving((self.key.dtype,), (self.key.variant,))
        return figures._replace(
            slower=self.guard.slower(tree), uncompared=self.guard.uncompared(tree, legality.reaches)
        )
