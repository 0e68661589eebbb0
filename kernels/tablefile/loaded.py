"""A loaded table: its trees, by key.

In: what `locate.load` reads from a file, whose code is never run. Out: the function of a key, which returns a config.
Standard library only, because dispatch asks it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.key import Key, dtype_of
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.tree import Tree, choose


class LoadedTable(NamedTuple):
    """A loaded table.

    Attributes:
        source: its file.
        header: its facts.
        trees: by key the tree of a function.
        measured: the box of the measured sizes of each key with data.
        axes: the names of the sizes.
    """

    source: Path
    header: Header
    trees: Mapping[Key, Tree]
    measured: Mapping[Key, Box]
    axes: tuple[str, ...]

    def lookup(self, operator: str, dtype: str, *shape: int) -> Config:
        """The config at a shape of as many sizes as the table's axes, as `lookup` of its module.

        A dtype may also be torch's, or a short name such as `bf16`.

        Raises:
            ValueError: there is no table for this operator and dtype, or the shape has another number of sizes.
        """
        key = Key.parse(operator, dtype_of(dtype))
        key = key if key in self.trees else key.nearest(self.trees)
        if key not in self.trees:
            keys = ", ".join(map(str, self.trees))
            raise ValueError(f"no table for {operator!r} in {str(dtype)!r}: expected one of {keys}")
        if len(shape) != len(self.axes):
            raise ValueError(f"{len(shape)} sizes: expected {', '.join(self.axes)}")
        return choose(self.trees[key], shape, self.axes)

    def function(self, key: Key) -> Callable[..., Config] | None:
        """The function of a key; without one of its modes, the plain operator's; None if there is neither.

        It takes sizes, (rows, hidden). For named integers that the table lacks, it is that of the nearest ones. If the
        trees have a third size, it is set to the key's.
        """
        name = self.name(key)
        if name is None:
            return None
        tree, third = self.trees[name], tuple(value for axis, value in key.sizes if axis in self.axes)
        return lambda *shape: choose(tree, (*shape, *third), self.axes)

    def name(self, key: Key) -> Key | None:
        """The key in the table whose function `function` returns."""
        return next((name for name in self.names(key) if name in self.trees), None)

    def names(self, key: Key) -> tuple[Key, ...]:
        """The keys whose function `function` returns, the first that exists."""
        key = key.without(self.axes)
        if key.sizes and not self.trees.keys() & {*key.names}:
            key = key.nearest(self.trees)
        return key.names
