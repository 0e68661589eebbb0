"""Legality of configs over regions: every problem in the region must have a launch.

In: an operator's spec, the target, and the dtypes and variants that a table serves. Out: yes or no for a config and the
largest shape of a region. An illegal config stays illegal as rows or hidden grow, so the largest shape decides for the
region.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, operators
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.tablefile.tree import Box, Tree, regions
from normtune.kernels.target import Target


def all_variants(spec: OperatorSpec) -> tuple[str, ...]:
    """All variants of an operator, including those of several words; the plain one first."""
    words = spec.variants[1:]
    return tuple("+".join(chosen) for count in range(len(words) + 1) for chosen in combinations(words, count))


def served_variants(spec: OperatorSpec, key: Key) -> tuple[str, ...]:
    """Variants that a function serves: every variant falls back to the plain one."""
    return (key.usual.variant,) if key.modes else all_variants(spec)


class Registered(NamedTuple):
    """A registered operator as an entry of a table names it, and the variants that the entry's function serves."""

    spec: OperatorSpec
    variants: tuple[str, ...]


def registered(key: Key) -> Registered | None:
    """Operator and variants of a table's entry; None if the operator, variant or dtype is not registered."""
    spec = operators().get(key.operator)
    if spec is None or key.dtype not in spec.dtypes or key.usual.variant not in all_variants(spec):
        return None
    return Registered(spec, served_variants(spec, key))


def _exists(spec: OperatorSpec, target: Target, key: Key) -> bool:
    """Whether any launch of a key exists on a target: if so, the default config's does at the smallest shape."""
    problem = Problem(key, 1, 1)
    return spec.is_legal(spec.default_config(problem, target), problem, target)


class Kept(Protocol):
    """Bits of rows that no config may change: `solver.kept_bits`; axes are bins of rows and of hidden."""

    @property
    def configs(self) -> tuple[Config, ...]:
        """Configs that keep them, one anywhere."""

    def cut(self, axes: Any) -> Any:
        """The axes with the cuts between these."""

    def refuses(self, config: Config, box: Box) -> bool:
        """Whether a config changes them anywhere in a box."""

    def refused(self, configs: Sequence[Config], axes: Any, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bool (C, R, H), where configs change them, of the entries `among` alone."""


class Legality:
    """Legality of configs on one target, for all dtypes and variants that one table serves."""

    def __init__(
        self,
        spec: OperatorSpec,
        target: Target,
        dtypes: Sequence[str],
        variants: Sequence[str],
        kept: Kept | None = None,
    ) -> None:
        """Take the dtypes and variants, without those that the target has no kernel for, as FP8 of another vendor.

        `kept` are the bits of rows that a tree must not change. Results are cached, because folds of a cross-validation
        repeat the queries.
        """
        self.spec = spec
        self.kept = kept
        self.target = target
        self.dtypes = tuple(dtypes)
        parts = dict.fromkeys(map(spec.limiting_part, variants))
        every = tuple(spec.key(dtype, variant) for dtype in dtypes for variant in parts)
        self.served = tuple(served for served in every if _exists(spec, target, served)) or every
        self._known: dict[tuple[Config, int, int], bool] = {}

    def reaches(self, config: Config, rows: int, hidden: int) -> bool:
        """Whether the config is legal at (rows, hidden), and therefore at every smaller shape."""
        legal = self._known.get((config, rows, hidden))
        if legal is None:
            legal = all(self.spec.is_legal(config, Problem(key, rows, hidden), self.target) for key in self.served)
            self._known[config, rows, hidden] = legal
        return legal

    def breaches(self, tree: Tree) -> Iterator[tuple[Config, Box]]:
        """Configs of a tree that are illegal somewhere in their box, or change kept bits, each with that box."""
        for config, box in regions(tree, Box(1, MAX_ROWS, 1, self.spec.max_hidden)):
            is_legal = self.reaches(config, box.most_rows, box.most_hidden)
            if not is_legal or (self.kept and self.kept.refuses(config, box)):
                yield config, box

    def over(self, configs: Sequence[Config], rows: Sequence[int], hidden: Sequence[int]) -> NDArray[np.bool_]:
        """For ascending sizes, bool (configs, rows, hidden): legality of each config up to each pair."""
        legal = np.zeros((len(configs), len(rows), len(hidden)), np.bool_)
        for index, config in enumerate(configs):
            for column, reached in enumerate(self._edge(config, rows, hidden)):
                legal[index, :reached, column] = True
        return legal

    def _edge(self, config: Config, rows: Sequence[int], hidden: Sequence[int]) -> list[int]:
        """Number of the rows that a config reaches at each hidden size; it never grows with hidden."""
        edge = [0] * len(hidden)

        def reached(column: int, least: int, most: int) -> int:
            """Bisect between two bounds; most often one of them is the answer."""
            if least == most or self.reaches(config, rows[most - 1], hidden[column]):
                return most
            if not self.reaches(config, rows[least], hidden[column]):
                return least
            return bisect_left(
                range(most), True, least + 1, key=lambda index: not self.reaches(config, rows[index], hidden[column])
            )

        def between(first: int, last: int, most: int, least: int) -> None:
            """Fill the columns from first to last, given bounds of their numbers of rows."""
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
