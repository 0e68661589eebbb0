"""Which configs may answer for a region: those that every problem in it can launch.

In: an operator's spec, the target, the dtypes and variants that a table will serve. Out: yes or no for a config and
the largest shape of a region; since legality never returns as rows or hidden grow, that shape speaks for the region.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.tablefile.tree import Box, Tree, regions
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, operators
from normtune.kernels.problem import MAX_ROWS, Problem, split_batch_invariant, split_key
from normtune.kernels.target import Target


def all_variants(spec: OperatorSpec) -> tuple[str, ...]:
    """Every variant of an operator, those with several flags off too, the plain one first."""
    offs = [flag.off for flag in spec.flags]
    return tuple("+".join(chosen) for count in range(len(offs) + 1) for chosen in combinations(offs, count))


def served_variants(spec: OperatorSpec, variant: str) -> tuple[str, ...]:
    """The variants that a function serves: the plain one is what every variant falls back to."""
    return (variant,) if variant else all_variants(spec)


class Registered(NamedTuple):
    """An operator that is here, as an entry of a table names it, and the variants that the entry's function serves."""

    spec: OperatorSpec
    variants: tuple[str, ...]


def registered(key: str, dtype: str) -> Registered | None:
    """What an entry of a table is for; None where no such operator, variant or dtype is registered."""
    name, variant = split_key(split_batch_invariant(key)[0])
    spec = operators().get(name)
    if spec is None or dtype not in spec.dtypes or variant not in all_variants(spec):
        return None
    return Registered(spec, served_variants(spec, variant))


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

    def breaches(self, tree: Tree) -> Iterator[tuple[Config, Box]]:
        """The configs of a tree that are illegal at a shape of the box that they answer for, and that box."""
        for config, box in regions(tree, Box(1, MAX_ROWS, 1, self.spec.max_hidden)):
            if not self.reaches(config, box.most_rows, box.most_hidden):
                yield config, box

    def over(self, configs: Sequence[Config], rows: Sequence[int], hidden: Sequence[int]) -> NDArray[np.bool_]:
        """For ascending sizes, bool (configs, rows, hidden): whether each config reaches each pair."""
        legal = np.zeros((len(configs), len(rows), len(hidden)), np.bool_)
        for index, config in enumerate(configs):
            for column, reached in enumerate(self._edge(config, rows, hidden)):
                legal[index, :reached, column] = True
        return legal

    def _edge(self, config: Config, rows: Sequence[int], hidden: Sequence[int]) -> list[int]:
        """How many of the rows a config reaches at each hidden size: as hidden grows, they only become fewer."""
        edge = [0] * len(hidden)

        def reached(column: int, least: int, most: int) -> int:
            """By bisection between bounds, of which one is most often met."""
            if least == most or self.reaches(config, rows[most - 1], hidden[column]):
                return most
            if not self.reaches(config, rows[least], hidden[column]):
                return least
            return bisect_left(
                range(most), True, least + 1, key=lambda place: not self.reaches(config, rows[place], hidden[column])
            )

        def between(first: int, last: int, most: int, least: int) -> None:
            """Fill the columns from first to last, which reach at most and at least so many rows."""
            if first > last:
                return
            if most == least:
                edge[first : last + 1] = [most] * (last + 1 - first)
                return
            middle = (first + last) // 2
            edge[middle] = reached(middle, least, most)
            between(first, middle - 1, most, edge[middle])
            between(middle + 1, last, edge[middle], least)

        most = reached(0, 0, len(rows))
        least = reached(len(hidden) - 1, 0, most)
        between(0, len(hidden) - 1, most, least)
        return edge
