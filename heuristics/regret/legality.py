"""Whether a config is legal at every shape of a region.

An illegal config stays illegal as sizes grow, so the largest shape decides for the region.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, find
from normtune.kernels.problem import ITEMSIZE, Problem, Shape, axes_at
from normtune.kernels.tablefile.tree import Tree, regions
from normtune.kernels.target import Target


def all_variants(spec: OperatorSpec) -> tuple[str, ...]:
    """All variants of an operator, including those of several words; the plain one first."""
    words = spec.variants[1:]
    return tuple("+".join(chosen) for count in range(len(words) + 1) for chosen in combinations(words, count))


def served_variants(spec: OperatorSpec, key: Key) -> tuple[str, ...]:
    """The variants that use a key's function: all for the plain operator, to which they fall back, else the key's."""
    return (key.usual.variant,) if key.modes else all_variants(spec)


class Registered(NamedTuple):
    """A registered operator of a table's entry, and the variants that use the entry's function."""

    spec: OperatorSpec
    variants: tuple[str, ...]


def registered(key: Key) -> Registered | None:
    """The operator and the variants of a table's entry; None if operator, variant or dtype is not registered."""
    spec = find(key.operator)
    if spec is None or key.dtype not in spec.dtypes or key.usual.variant not in all_variants(spec):
        return None
    return Registered(spec, served_variants(spec, key))


def is_known_to_fit(spec: OperatorSpec, dtype: str, measured: Iterable[str]) -> bool:
    """Whether configs that were measured in other dtypes are known to have the shared memory that they need in a dtype.

    They need less in a narrower one. In a wider one the operator's own rule has to refuse what does not fit: a product
    of matrices measured in bfloat16 took 294,912 bytes in float32, of 232,448.
    """
    return spec.checks_resources or ITEMSIZE[dtype] <= max(map(ITEMSIZE.__getitem__, measured), default=0)


def _exists(spec: OperatorSpec, target: Target, key: Key) -> bool:
    """Whether a key has any launch on a target, which is so if the default config has one at the smallest shape."""
    problem = Problem.at(key, (1,) * len(axes_at(key)))
    return spec.is_legal(spec.default_config(problem, target), problem, target)


class Kept(Protocol):
    """The bits of rows that a new table must keep; implemented by `fitting.same_bits`. Axes are those of `Bins`."""

    @property
    def configs(self) -> tuple[Config, ...]:
        """Configs that keep the bits; at least one of them does so at each shape."""

    def cut(self, axes: Any) -> Any:
        """The axes with additional thresholds where the set of configs that keep the bits changes."""

    def refuses(self, config: Config, box: Box) -> bool:
        """Whether a config changes the bits anywhere in a box."""

    def refused(self, configs: Sequence[Config], axes: Any, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bool (C, bins of each axis): the entries of `among` at which a config changes the bits."""


class Legality:
    """Legality of configs on one target, for all dtypes and variants of a function."""

    def __init__(
        self,
        spec: OperatorSpec,
        target: Target,
        dtypes: Sequence[str],
        variants: Sequence[str],
        kept: Kept | None = None,
    ) -> None:
        """Take dtypes and variants, of which those without a kernel on the target are dropped (another vendor's FP8).

        `kept` has the bits of rows that a tree must not change. Results are cached, because folds of a cross-validation
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
        """Whether the config is legal at a shape, and so at every smaller one; derived sizes of it are ignored."""
        shape = shape[: len(self.spec.axes)]
        legal = self._known.get((config, shape))
        if legal is None:
            legal = all(self.spec.is_legal(config, Problem.at(key, shape), self.target) for key in self.served)
            self._known[config, shape] = legal
        return legal

    def breaches(self, tree: Tree) -> Iterator[tuple[Config, Box]]:
        """The configs of a tree that are illegal, or change kept bits, somewhere in their box; each with the box."""
        for config, box in regions(tree, self.spec.whole):
            if not self.reaches(config, box.largest) or (self.kept and self.kept.refuses(config, box)):
                yield config, box

    def over(self, configs: Sequence[Config], first: Sequence[int], *others: Sequence[int]) -> NDArray[np.bool_]:
        """Bool (configs, sizes of each axis): legality of each config at each shape; sizes are ascending."""
        counts = [len(sizes) for sizes in others]
        edges = np.array([self._edges(config, first, others) for config in configs], np.int64)
        # Lines are along the second axis, which comes last here.
        edges = edges.reshape(len(configs), *counts[1:], *counts[:1])
        edges = np.moveaxis(edges, -1, 1) if counts else edges
        return np.arange(len(first)).reshape(-1, *[1] * len(counts)) < np.expand_dims(edges, 1)

    def _edges(self, config: Config, first: Sequence[int], others: Sequence[Sequence[int]]) -> list[list[int]]:
        """The edge of each line of shapes along the second axis, the last axis first."""
        if not others:
            return [self._edge(config, first, [()], [len(first)])]
        second, *behind = others
        edges: list[list[int]] = []
        for number, sizes in enumerate(product(*behind)):
            # Along the last axis no more sizes are reached than before.
            most = edges[-1] if behind and number % len(behind[-1]) else [len(first)] * len(second)
            edges.append(self._edge(config, first, [(size, *sizes) for size in second], most))
        return edges

    def _edge(self, config: Config, first: Sequence[int], line: Sequence[Shape], bounds: Sequence[int]) -> list[int]:
        """The number of sizes in `first` at which the config is legal, for each of the other sizes in `line`.

        These ascend, so the numbers never rise; `bounds`, which never rise either, are upper bounds.
        """
        edge = [0] * len(line)

        def reached(place: int, least: int, most: int) -> int:
            """The number at one place between two bounds, by bisection; most often it is one of the bounds."""
            if least == most or self.reaches(config, (first[most - 1], *line[place])):
                return most
            if not self.reaches(config, (first[least], *line[place])):
                return least
            return bisect_left(
                range(most), True, least + 1, key=lambda index: not self.reaches(config, (first[index], *line[place]))
            )

        def between(start: int, last: int, most: int, least: int) -> None:
            """Fill the places from start to last, given bounds of their numbers."""
            if start > last:
                return
            if most == least:
                edge[start : last + 1] = [most] * (last + 1 - start)
                return
            middle = (start + last) // 2
            edge[middle] = reached(middle, least, min(most, bounds[middle]))
            between(start, middle - 1, most, edge[middle])
            between(middle + 1, last, edge[middle], least)

        most = reached(0, 0, bounds[0])
        least = reached(len(line) - 1, 0, min(most, bounds[-1]))
        between(0, len(line) - 1, most, least)
        return edge
