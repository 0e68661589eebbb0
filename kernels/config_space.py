"""The configs of a space, as a sequence that makes one when it is asked for, so that many of them take no memory.

In: the values of each knob, or the configs themselves. Out: `Product` and `Listed`, sequences in the order of their
configs, which know at once whether a config is one of them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product, starmap
from typing import Any, TypeVar

from normtune.kernels.config import Config

_Item = TypeVar("_Item")


class Product(Sequence[Config]):
    """Each value of each knob with all those of the others.

    Args:
        config: the class of the configs.
        values: of each knob of the class.
    """

    def __init__(self, config: type[Config], values: Mapping[str, Iterable[int | str]]) -> None:
        self._config = config
        self._values = [sorted(set(values[name])) for name in config._fields]  # type: ignore[type-var]

    def __len__(self) -> int:
        return math.prod(map(len, self._values))

    def __iter__(self) -> Iterator[Config]:
        return starmap(self._config, product(*self._values))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"config {index} of {len(self)}")
        chosen, rest = [], index % len(self)
        for values in reversed(self._values):
            rest, place = divmod(rest, len(values))
            chosen.append(values[place])
        return self._config(*reversed(chosen))

    def __contains__(self, config: object) -> bool:
        return type(config) is self._config and all(
            value in values for value, values in zip(config, self._values, strict=True)
        )

    def having(self, wanted: Mapping[str, int | str]) -> "Product":
        """Those with these values of knobs."""
        named = zip(self._config._fields, self._values, strict=True)
        return Product(self._config, {k: [v for v in values if wanted.get(k, v) == v] for k, values in named})


class Listed(tuple[Config, ...]):
    """Configs, each once and in order."""

    def __new__(cls, configs: Iterable[Config]) -> "Listed":
        """Of the configs, in any order."""
        return super().__new__(cls, sorted(set(configs)))

    def __contains__(self, config: object) -> bool:
        return config in self._set

    def having(self, wanted: Mapping[str, int | str]) -> "Listed":
        """Those with these values of knobs."""
        return Listed(one for one in self if wanted.items() <= one._asdict().items())

    @cached_property
    def _set(self) -> frozenset[Config]:
        return frozenset(self)


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` (2 or more) of the items, as evenly as possible, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
