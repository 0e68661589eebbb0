"""What every emitted module is made of, whatever was fitted: for `emit` to write and for `regions` to recognise.

In: nothing. Out: texts, in two forms: of a table of one GPU, and of a table for any GPU, whose functions take the GPU's
multiprocessors and L2 cache besides. Light, as dispatch reads tables at the first launch.
"""

import json
from typing import NamedTuple

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


class Form(NamedTuple):
    """The parts of a module that are alike in all tables of a kind.

    Attributes:
        signature: of every function, behind its name.
        tables: the beginning of the statement that lists them.
        closing: all that stands below that list.
        docstring: of the module.
    """

    signature: str
    tables: str
    closing: str
    docstring: str

    def opening(self) -> str:
        """All that stands above the configs."""
        return opening().replace(_DOCSTRING, self.docstring)


def opening() -> str:
    """All that stands above the configs, in a table of one GPU."""
    return _OPENING + "\n".join(f"    {_field(name)}" for name in Config._fields)


def literal(value: object) -> str:
    """A field of a config as code."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _field(name: str) -> str:
    kind = Config.__annotations__[name].__name__
    if name not in Config._field_defaults:
        return f"{name}: {kind}"
    return f"{name}: {kind} = {literal(Config._field_defaults[name])}"


_DOCSTRING = "Launch configs by operator, dtype, rows and hidden; `lookup` finds one."
_GPU = "sms: int, l2_bytes: int"

ONE_GPU = Form(SIGNATURE, TABLES, CLOSING, _DOCSTRING)
ANY_GPU = Form(
    SIGNATURE.replace("hidden: int", f"hidden: int, {_GPU}"),
    TABLES.replace("[int, int]", "[int, int, int, int]"),
    CLOSING.replace("rows: int, hidden: int", f"rows: int, hidden: int, {_GPU}")
    .replace("elements.\n", "elements on a GPU of `sms` multiprocessors.\n")
    .replace("table(rows, hidden)", "table(rows, hidden, sms, l2_bytes)"),
    "Launch configs by operator, dtype, rows, hidden, multiprocessors and bytes of L2 cache; `lookup` finds one.",
)
