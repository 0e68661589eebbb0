"""Whether a config has a launch at every shape of a region.

An illegal config stays illegal as sizes grow, so the largest shape decides for the region.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, operators
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.tree import Tree, regions
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
    """The bits of rows that a new table must keep; implemented by `solver.kept_bits`. Axes are those of bins."""

    @property
    def configs(self) -> tuple[Config, ...]:
        """Configs that keep the bits; at least one of them does so at each shape."""

    def cut(self, axes: Any) -> Any:
        """The axes with the additional cuts at which the configs that keep the bits change."""

    def refuses(self, config: Config, box: Box) -> bool:
        """Whether a config changes the bits anywhere in a box."""

    def refused(self, configs: Sequence[Config], axes: Any, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bool (C, R, H): the entries of `among` at which a config changes the bits."""


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
        self._known: dict[tuple[Config, Shape], bool] = {}

    def reaches(self, config: Config, shape: Shape) -> bool:
        """Whether the config is legal at a shape, and therefore at every smaller one."""
        legal = self._known.get((config, shape))
        if legal is None:
            legal = all(self.spec.is_legal(config, Problem(key, *shape), self.target) for key in self.served)
            self._known[config, shape] = legal
        return legal

    def breaches(self, tree: Tree) -> Iterator[tuple[Config, Box]]:
        """Configs of a tree that are illegal somewhere in their box, or change kept bits, each with that box."""
        for config, box in regions(tree, self.spec.whole):
            if not self.reaches(config, box.largest) or (self.kept and self.kept.refuses(config, box)):
                yield config, box

    def over(self, configs: Sequence[Config], first: Sequence[int], second: Sequence[int]) -> NDArray[np.bool_]:
        """For ascending sizes of both axes, bool (configs, first, second): legality of each config up to each pair."""
        legal = np.zeros((len(configs), len(first), len(second)), np.bool_)
        for index, config in enumerate(configs):
            for column, reached in enumerate(self._edge(config, first, second)):
                legal[index, :reached, column] = True
        return legal

    def _edge(self, config: Config, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """For each size in `second`, which ascends, the number of sizes in `first` that the config reaches."""
        edge = [0] * len(second)

        def reached(column: int, least: int, most: int) -> int:
            """Bisect between two bounds; most often one of them is the answer."""
            if least == most or self.reaches(config, (first[most - 1], second[column])):
                return most
            if not self.reaches(config, (first[least], second[column])):
                return least
            return bisect_left(
                range(most), True, least + 1, key=lambda index: not self.reaches(config, (first[index], second[column]))
            )

        def between(start: int, last: int, most: int, least: int) -> None:
            """Fill the columns from start to last, given bounds of their numbers."""
            if start > last:
                return
            if most == least:
                edge[start : last + 1] = [most] * (last + 1 - start)
                return
            middle = (start + last) // 2
            edge[middle] = reached(middle, least, most)
            between(start, middle - 1, most, edge[middle])
            between(middle + 1, last, edge[middle], least)

        most = reached(0, 0, len(first))
        least = reached(len(second) - 1, 0, most)
        between(0, len(second) - 1, most, least)
        return edge
