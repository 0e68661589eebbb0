"""What every emitted module is made of, whatever was fitted: for `emit` to write and for `regions` to recognise.

In: nothing. Out: texts. Light, as dispatch reads tables at the first launch.
"""

import json

from normtune.kernels.config import Config

_OPENING = '''
"""Launch configs by operator, dtype, rows and hidden; `lookup` finds one."""

from collections.abc import Callable
from typing import NamedTuple


class Config(NamedTuple):
    """How a kernel is launched.

    Attributes:
        schedule: row, block_row (block_row rows a program), persistent (a fixed grid strides over the rows) or split.
        block_row: rows a program holds at once.
        num_warps: warps a program.
        num_stages: depth of the software pipeline of the row loop; in split, 2 fetches the next row into the L2.
        programs_per_sm: size of the fixed grid, programs a multiprocessor; 0 where the grid follows the rows.
        finish: how sums over rows end, none, reduce, dependent (reduce, brought early) or columns (own programs).
        block_col: columns a chunk in split, columns a program with finish columns.
    """

'''

CLOSING = '''

def lookup(operator: str, dtype: str, rows: int, hidden: int) -> Config:
    """The config for `rows` rows of `hidden` elements.

    Raises:
        ValueError: there is no table for this operator and dtype.
    """
    try:
        table = TABLES[operator, dtype]
    except KeyError:
        known = ", ".join(" ".join(key) for key in TABLES)
        raise ValueError(f"no table for {operator!r} in {dtype!r}: expected one of {known}") from None
    return table(rows, hidden)
'''

SIGNATURE = "(rows: int, hidden: int) -> Config:"
TABLES = "TABLES: dict[tuple[str, str], Callable[[int, int], Config]] ="


def opening() -> str:
    """All that stands above the configs."""
    return _OPENING + "\n".join(f"    {_field(name)}" for name in Config._fields)


def literal(value: object) -> str:
    """A field of a config as code."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _field(name: str) -> str:
    kind = Config.__annotations__[name].__name__
    if name not in Config._field_defaults:
        return f"{name}: {kind}"
    return f"{name}: {kind} = {literal(Config._field_defaults[name])}"
