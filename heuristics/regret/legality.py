"""Whether a config is legal at every shape of a region.

An illegal config stays illegal as sizes grow, so the largest shape decides for the region.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from operator import ge, le
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.box import Box
from normtune.kernels.call import AnyLaunch
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


class Legality:
    """Legality of configs for all dtypes and variants of a function, on the GPU of its table or on other ones, too.

    Attributes:
        spec: of the operator.
        target: of the table's GPU.
        dtypes: of the function.
        served: the keys of the function.
        launched: the targets with their keys on which a config must be legal.
    """

    def __init__(
        self,
        spec: OperatorSpec,
        target: Target,
        dtypes: Sequence[str],
        variants: Sequence[str],
        others: Sequence[Target] = (),
    ) -> None:
        """Take dtypes and variants, of which those without a kernel on a target are dropped (another vendor's FP8).

        Results are cached, because folds of a cross-validation repeat the queries.
        """
        self.spec = spec
        self.target = target
        self.dtypes = tuple(dtypes)
        self._others = others
        parts = dict.fromkeys(map(spec.limiting_part, variants))
        every = tuple(spec.key(dtype, variant) for dtype in dtypes for variant in parts)
        self.served = tuple(served for served in every if _exists(spec, target, served)) or every
        elsewhere = ((other, key) for other in others for key in every if _exists(spec, other, key))
        self.launched = (*((target, key) for key in self.served), *elsewhere)
        self._legal_at: dict[tuple[Config, Shape], bool] = {}
        self._reach: dict[tuple[Config, ...], dict[Shape, _Reach]] = {}

    def serving(self, dtypes: Sequence[str], variants: Sequence[str]) -> "Legality":
        """The legality on the same targets for other dtypes and variants."""
        return Legality(self.spec, self.target, dtypes, variants, self._others)

    def reaches(self, config: Config, shape: Shape) -> bool:
        """Whether the config is legal at a shape, and so at every smaller one; derived sizes of it are ignored."""
        shape = shape[: len(self.spec.axes)]
        legal = self._legal_at.get((config, shape))
        if legal is None:
            legal = all(self.spec.is_legal(config, Problem.at(key, shape), target) for target, key in self.launched)
            self._legal_at[config, shape] = legal
        return legal

    def launch(self, config: Config, shape: Shape) -> AnyLaunch | None:
        """The launch on the table's GPU, in the function's first dtype; None where it is illegal."""
        return self.spec.launch_of(config, Problem.at(self.served[0], shape), self.target)

    def breaches(self, tree: Tree) -> Iterator[tuple[Config, Box]]:
        """The configs of a tree that are illegal somewhere in their box; each with the box."""
        for config, box in regions(tree, self.spec.whole):
            if not self.reaches(config, box.largest):
                yield config, box

    def over(self, configs: Sequence[Config], first: Sequence[int], *others: Sequence[int]) -> NDArray[np.bool_]:
        """Bool (configs, sizes of each axis): legality of each config at each shape; sizes are ascending."""
        reach = self._reach.setdefault(tuple(configs), {})
        for line in product(*map(_ends_first, others)):
            reach[line] = self._along(configs, first, line, reach)
        largest = np.stack([reach[line].legal for line in product(*others)], axis=-1)
        largest = largest.reshape(len(configs), 1, *map(len, others))
        return np.array(first).reshape(-1, *[1] * len(others)) <= largest

    def _along(
        self, configs: Sequence[Config], first: Sequence[int], line: Shape, reach: Mapping[Shape, "_Reach"]
    ) -> "_Reach":
        """The reach of the configs at the other sizes `line`, which decides about each size in `first`.

        Smaller and larger lines bound it; most often it is one of the bounds.
        """
        none = _Reach(np.zeros(len(configs), np.int64), np.full(len(configs), np.iinfo(np.int64).max))
        legal, illegal = reach.get(line, none)
        if (np.searchsorted(first, legal, side="right") == np.searchsorted(first, illegal)).all():
            return _Reach(legal, illegal)
        legal, illegal = legal.copy(), illegal.copy()
        for other, other_reach in reach.items():
            if all(map(ge, other, line)):
                np.maximum(legal, other_reach.legal, out=legal)
            if all(map(le, other, line)):
                np.minimum(illegal, other_reach.illegal, out=illegal)
        least, most = np.searchsorted(first, legal, side="right"), np.searchsorted(first, illegal)
        for index in np.flatnonzero(least < most).tolist():
            count = self._bisected(configs[index], first, line, int(least[index]), int(most[index]))
            if count:
                legal[index] = max(legal[index], first[count - 1])
            if count < len(first):
                illegal[index] = min(illegal[index], first[count])
        return _Reach(legal, illegal)

    def _bisected(self, config: Config, first: Sequence[int], line: Shape, least: int, most: int) -> int:
        """The number of sizes in `first` at which a config is legal, from `least` to `most`."""
        if self.reaches(config, (first[most - 1], *line)):
            return most
        if not self.reaches(config, (first[least], *line)):
            return least
        return bisect_left(
            range(most), True, least + 1, key=lambda index: not self.reaches(config, (first[index], *line))
        )


class _Reach(NamedTuple):
    """What is known of configs at fixed other sizes: int64 (configs,) each.

    Attributes:
        legal: the largest first size that is known to be legal; 0 for none.
        illegal: the smallest one that is known to be illegal; the largest integer for none.
    """

    legal: NDArray[np.int64]
    illegal: NDArray[np.int64]


def _ends_first(sizes: Sequence[int]) -> list[int]:
    """The last and the first size, then the middle of each span between two."""
    order, spans = [sizes[-1], sizes[0]], [(0, len(sizes) - 1)]
    for low, high in spans:
        if high - low > 1:
            middle = (low + high) // 2
            order.append(sizes[middle])
            spans += [(low, middle), (middle, high)]
    return order
