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
from normtune.kernels.operator import OperatorSpec, find
from normtune.kernels.problem import Problem, Shape, axes_at
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
    spec = find(key.operator)
    if spec is None or key.dtype not in spec.dtypes or key.usual.variant not in all_variants(spec):
        return None
    return Registered(spec, served_variants(spec, key))


def _exists(spec: OperatorSpec, target: Target, key: Key) -> bool:
    """Whether any launch of a key exists on a target: if so, the default config's does at the smallest shape."""
    problem = Problem.at(key, (1,) * len(axes_at(key)))
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
        """Bool (C, bins of each axis): the entries of `among` at which a config changes the bits."""


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
            legal = all(self.spec.is_legal(config, Problem.at(key, shape), self.target) for key in self.served)
            self._known[config, shape] = legal
        return legal

    def breaches(self, tree: Tree) -> Iterator[tuple[Config, Box]]:
        """Configs of a tree that are illegal somewhere in their box, or change kept bits, each with that box."""
        for config, box in regions(tree, self.spec.whole):
            if not self.reaches(config, box.largest) or (self.kept and self.kept.refuses(config, box)):
                yield config, box

    def over(self, configs: Sequence[Config], *sizes: Sequence[int]) -> NDArray[np.bool_]:
        """For ascending sizes of each axis, bool (configs, sizes of each): legality of each config up to each shape."""
        first = np.arange(len(sizes[0])).reshape(-1, *[1] * (len(sizes) - 1))
        legal = np.zeros((len(configs), *map(len, sizes)), np.bool_)
        for index, config in enumerate(configs):
            legal[index] = first < self._edge(config, *sizes)
        return legal

    def _edge(self, config: Config, first: Sequence[int], *others: Sequence[int]) -> NDArray[np.int64]:
        """The number of sizes in `first` that the config reaches, int64 (sizes of each other axis), all ascending."""

        def reached(behind: Shape, least: int, most: int) -> int:
            """Bisect between two bounds; most often one of them is the answer."""
            if least == most or self.reaches(config, (first[most - 1], *behind)):
                return most
            if not self.reaches(config, (first[least], *behind)):
                return least
            return bisect_left(
                range(most), True, least + 1, key=lambda index: not self.reaches(config, (first[index], *behind))
            )

        def edge_of(behind: Shape, least: NDArray[np.int64], most: NDArray[np.int64]) -> NDArray[np.int64]:
            """The edge at the sizes `behind` of the last axes, given its bounds."""
            if not least.ndim:
                return np.array(reached(behind, int(least), int(most)))
            sizes, edge = others[least.ndim - 1], least.copy()

            def between(start: int, last: int, most_before: NDArray[np.int64], least_after: NDArray[np.int64]) -> None:
                """Fill in the sizes from start to last, given the edge at the size before and behind."""
                if start > last:
                    return
                if (most_before == least_after).all():
                    edge[..., start : last + 1] = np.expand_dims(most_before, -1)
                    return
                middle = (start + last) // 2
                bounds = np.maximum(least[..., middle], least_after), np.minimum(most[..., middle], most_before)
                edge[..., middle] = edge_of((sizes[middle], *behind), *bounds)
                between(start, middle - 1, most_before, edge[..., middle])
                between(middle + 1, last, edge[..., middle], least_after)

            ends = len(sizes) - 1
            edge[..., 0] = edge_of((sizes[0], *behind), least[..., 0], most[..., 0])
            edge[..., ends] = edge_of(
                (sizes[ends], *behind), least[..., ends], np.minimum(most[..., ends], edge[..., 0])
            )
            between(1, ends - 1, edge[..., 0], edge[..., ends])
            return edge

        counts = [len(sizes) for sizes in others]
        return edge_of((), np.zeros(counts, np.int64), np.full(counts, len(first)))
