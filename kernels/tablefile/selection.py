"""The tables of a GPU in the order in which they are asked, and the sizes at which each answers.

In: loaded tables and a key. Out: the config of a shape, from the first table that was measured near it. A table answers
within a factor of two of its measured sizes, along each axis and for each named integer. Elsewhere it hands on to the
next one, and the last one to the operator's default config. In the batch-invariant mode a table may answer at any
number of rows, so that one table can serve all rows of a hidden size.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from normtune.kernels.box import EVERYWHERE, Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.tree import regions


class BoundedFunction(NamedTuple):
    """A function of a table, and the sizes at which it answers for a key.

    Attributes:
        box: the sizes within a factor of two of the measured ones.
        function: of a size along each axis of the box.
        key: of the function in its table.
        is_of_key: whether the measurements are of that very key, and not of another dtype or variant.
        table: the table.
    """

    box: Box
    function: Callable[..., Config]
    key: Key
    is_of_key: bool
    table: LoadedTable

    @property
    def at_all_rows(self) -> "BoundedFunction":
        """The same function for any number of rows."""
        return self._replace(box=self.box.with_interval(Interval(self.box.axes[0], 1, MAX_ROWS)))

    def row_bounds(self, hidden: int) -> Iterable[int]:
        """The numbers of rows at which its config for rows of `hidden` elements may change, its ends among them."""
        rows, columns = self.box
        if not columns.least <= hidden <= columns.most:
            return
        yield from (rows.least, rows.most + 1)
        tree, whole = self.table.trees[self.key], EVERYWHERE.with_interval(Interval("hidden", hidden, hidden))
        yield from (box[0].least for _, box in regions(tree, whole))


def bounded(table: LoadedTable, key: Key) -> Iterator[BoundedFunction]:
    """The function of a key, once for each box of sizes that it was measured at.

    Nothing if a named integer is not within a factor of two of that of the function.
    """
    name, function, sizes = table.name(key), table.function(key), dict(key.sizes)
    if name is None or function is None:
        return
    nearest = [Interval(axis, value, value) for axis, value in name.sizes]
    of_key: dict[Box, bool] = {}
    for measured, box in table.measured.items():
        of_measured = table.name(measured)
        if of_measured is None or table.trees[of_measured] is not table.trees[name]:
            continue
        within = Box((*box, *nearest)).within_twice()
        if all(least <= sizes[axis] <= most for axis, least, most in within if axis in sizes):
            free = Box(interval for interval in within if interval.axis not in sizes)
            of_key[free] = of_key.get(free, False) or measured == table.names(key)[0]
    for box, is_of_key in of_key.items():
        yield BoundedFunction(box, function, name, is_of_key, table)


class TableSelection(NamedTuple):
    """The tables for a GPU.

    Attributes:
        tables: in the order in which they are asked: the families of a table's operators, and a function that loads it.
        source: the origin of the first table, as text for a message.
        exact: whether it was made or chosen for this GPU; False for a table of another GPU.
    """

    tables: tuple[tuple[Collection[str], Callable[[], LoadedTable]], ...]
    source: str = ""
    exact: bool = True

    def functions(self, key: Key) -> tuple[BoundedFunction, ...]:
        """The functions for a key, in the order in which they are asked: the first at whose sizes a shape lies answers.

        Functions measured for the key come before those measured for another dtype or variant. A batch-invariant key
        has a function at every number of rows: the last ones are those measured at the most rows.
        """
        functions = [
            function for families, load in self.tables if key.family in families for function in bounded(load(), key)
        ]
        functions.sort(key=lambda function: not function.is_of_key)
        if key.is_batch_invariant:
            by_rows = sorted(functions, key=lambda function: -function.box[0].most)
            functions += [function.at_all_rows for function in by_rows]
        return tuple(functions)

    def answer(self, key: Key) -> Callable[..., Config | None]:
        """A function of the sizes of a shape that returns the config of the table that answers there, if any."""
        functions = self.functions(key)

        def config(*shape: int) -> Config | None:
            return next((one.function(*shape) for one in functions if one.box.holds(shape)), None)

        return config


def row_bounds(functions: Iterable[BoundedFunction], hidden: int) -> list[int]:
    """The numbers of rows, ascending from 1, at which the first answer for rows of `hidden` elements may change."""
    bounds = {1, *(bound for function in functions for bound in function.row_bounds(hidden))}
    return sorted(bound for bound in bounds if 1 <= bound <= MAX_ROWS)
