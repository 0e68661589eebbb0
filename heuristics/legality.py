"""Which configs may answer for a region: those that every problem in it can launch.

In: an operator's spec, the target, the dtypes and variants that a table will serve. Out: yes or no for a config and
the largest shape of a region; since legality never returns as rows or hidden grow, that shape speaks for the region.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.tree import Region, Tree, regions
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.target import Target


def all_variants(spec: OperatorSpec) -> tuple[str, ...]:
    """Every variant of an operator, those with several flags off too, the plain one first."""
    offs = [flag.off for flag in spec.flags]
    return tuple("+".join(chosen) for count in range(len(offs) + 1) for chosen in combinations(offs, count))


class Legality:
    """Legality of configs on one target, for all dtypes and variants that one table serves."""

    def __init__(self, spec: OperatorSpec, target: Target, dtypes: Sequence[str], variants: Sequence[str]) -> None:
        """Answers are kept, as folds of a cross-validation ask the same again."""
        self.spec = spec
        self.target = target
        self.dtypes = tuple(dtypes)
        self.served = tuple((dtype, variant) for dtype in dtypes for variant in variants)
        self._known: dict[tuple[Config, int, int], bool] = {}

    def reaches(self, config: Config, rows: int, hidden: int) -> bool:
        """Whether the config is legal at (rows, hidden), and so at every smaller shape."""
        found = self._known.get((config, rows, hidden))
        if found is None:
            found = all(
                self.spec.is_legal(config, Problem(self.spec.name, rows, hidden, dtype, variant), self.target)
                for dtype, variant in self.served
            )
            self._known[config, rows, hidden] = found
        return found

    def breaches(self, tree: Tree) -> Iterator[Region]:
        """The regions of a tree that hold a shape at which their config is illegal."""
        for region in regions(tree, MAX_ROWS, self.spec.max_hidden):
            if not self.reaches(region.config, region.most_rows, region.most_hidden):
                yield region

    def over(self, configs: Sequence[Config], rows: Sequence[int], hidden: Sequence[int]) -> NDArray[np.bool_]:
        """For ascending sizes, bool (configs, rows, hidden): whether each config reaches each pair."""
        legal = np.zeros((len(configs), len(rows), len(hidden)), np.bool_)
        for index, config in enumerate(configs):
            # Along the edge of the legal area: as hidden grows, the rows it reaches only shrink.
            reached = len(rows)
            for column, size in enumerate(hidden):
                while reached and not self.reaches(config, rows[reached - 1], size):
                    reached -= 1
                legal[index, :reached, column] = True
        return legal
