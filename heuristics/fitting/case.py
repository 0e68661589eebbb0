"""One timing matrix, and all else that its function depends on.

In: the matrices of an operator and what is asked of a fit. Out: `Case`, made once a matrix and handed down: what is
legal, the options, what an earlier fit decided, the baseline, and the solver that all who ask for its optima share.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normtune.heuristics.fitting.baseline import Incumbent, Incumbents
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.legality import Legality, served_variants
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import Solver
from normtune.heuristics.tablefile.header import Known
from normtune.heuristics.tablefile.tree import Tree
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.target import Target


class Asked(NamedTuple):
    """What is asked of a fit, the same for all operators: the arguments of `pipeline.fit`."""

    target: Target
    options: FitOptions
    incumbents: Incumbents | None
    known: Mapping[tuple[str, str], Known]
    given: Mapping[tuple[str, str], Tree]

    def case(self, spec: OperatorSpec, matrix: TimingMatrix) -> "Case":
        """The case of a weighted matrix, which serves its own dtype."""
        kind, entry = (matrix.operator, matrix.variant, matrix.dtype), (matrix.key, matrix.dtype)
        return Case(
            matrix,
            Legality(spec, self.target, (matrix.dtype,), served_variants(spec, matrix.variant)),
            self.options,
            Solver(),
            self.incumbents.of(*kind, self.target) if self.incumbents else None,
            self.known.get(entry),
            self.given.get(entry),
        )


class Case(NamedTuple):
    """One operator variant and dtype.

    Attributes:
        matrix: its timing matrix, weighted.
        legality: for all that its function will serve.
        options: what is asked for.
        solver: of the matrix.
        baseline: what its function must not be slower than; None for nothing.
        known: what an earlier fit decided, which then is not decided again.
        given: the tree of an earlier fit, which then is judged and not sought.
    """

    matrix: TimingMatrix
    legality: Legality
    options: FitOptions
    solver: Solver
    baseline: Incumbent | None = None
    known: Known | None = None
    given: Tree | None = None

    @property
    def name(self) -> str:
        """Its key and dtype."""
        return f"{self.matrix.key} {self.matrix.dtype}"

    @property
    def spec(self) -> OperatorSpec:
        """The operator."""
        return self.legality.spec

    def serving(self, dtypes: Sequence[str]) -> "Case":
        """The same for a function that serves other dtypes."""
        spec, target = self.legality.spec, self.legality.target
        return self._replace(legality=Legality(spec, target, dtypes, served_variants(spec, self.matrix.variant)))
