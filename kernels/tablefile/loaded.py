"""A loaded table: its functions, by key.

In: what `locate.load` reads from a file. Out: the function of a key, which returns a config as a plain tuple. Standard
library only, because dispatch asks it.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from normtune.kernels.box import Box
from normtune.kernels.config import Config, Knob, class_of
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.tree import Tree

# A config as the plain tuple of its fields.
ConfigFields = tuple[int | str, ...]


class LoadedTable(NamedTuple):
    """A loaded table.

    Attributes:
        source: its file.
        header: its header.
        tables: by key a function of sizes, (rows, hidden), that returns a config as a plain tuple.
        lookup: a function of a key's text, dtype and the same sizes that returns a config.
        trees: by key the tree of a function.
        measured: the box of the measured sizes of each key with data.
        axes: the names of the sizes.
    """

    source: Path
    header: Header
    tables: dict[Key, Callable[..., ConfigFields]]
    lookup: Callable[..., ConfigFields]
    trees: Mapping[Key, Tree]
    measured: Mapping[Key, Box]
    axes: tuple[str, ...] = AXES

    def function(self, key: Key) -> Callable[..., ConfigFields] | None:
        """The function of a key; without one of its modes, the plain operator's; None if there is neither.

        For named integers that the table lacks, the function of the nearest ones. If the functions take a third size,
        it is set to the key's.
        """
        name = self.name(key)
        if name is None:
            return None
        third = tuple(value for axis, value in key.sizes if axis in self.axes)
        return partial(_with_third, self.tables[name], third) if third else self.tables[name]

    def name(self, key: Key) -> Key | None:
        """The key in the table whose function `function` returns."""
        return next((name for name in self.names(key) if name in self.tables), None)

    def names(self, key: Key) -> tuple[Key, ...]:
        """The keys whose function `function` returns, the first that exists."""
        key = key.without(self.axes)
        if key.sizes and not self.tables.keys() & {*key.names}:
            key = key.nearest(self.tables)
        return key.names

    def answer(self, key: Key) -> Callable[..., Config] | None:
        """The same as `function`, but of functions that return a `Config`."""
        function = self.function(key)
        return None if function is None else lambda *shape: config_of(function(*shape))


def _with_third(function: Callable[..., ConfigFields], third: tuple[int, ...], *shape: int) -> ConfigFields:
    return function(*shape, *third)


def config_of(entry: ConfigFields) -> Config:
    """A config as a plain tuple converted to a `Config` with the same knobs."""
    return _class_of(type(entry))(*entry)


@cache
def _class_of(kind: Any) -> type[Config]:
    hints, defaults = get_type_hints(kind), kind._field_defaults
    return class_of(tuple(Knob(name, hints[name], default=defaults.get(name)) for name in kind._fields))
