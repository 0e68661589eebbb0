"""What every emitted module is made of, whatever was fitted: for `emit` to write and for `regions` to recognise.

In: nothing. Out: texts, in two forms: of a table of one GPU, and of a table for any GPU, whose functions take the GPU's
multiprocessors and L2 cache besides. Light, as dispatch reads tables at the first launch.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from normtune.kernels.config import Config

# The default of black and of ruff. What is longer is one part a line with a trailing comma, which keeps it so at every
# width.
WIDTH = 88

_OPENING = '''
"""{docstring}"""

from collections.abc import Callable
from typing import NamedTuple


class Config(NamedTuple):
    """How a kernel is launched.

    Attributes:
        schedule: row, block_row (block_row rows a program), persistent (a fixed grid
            strides over the rows) or split.
        block_row: rows a program holds at once.
        num_warps: warps a program.
        num_stages: depth of the software pipeline of the row loop; in split, 2 fetches
            the next row into the L2.
        programs_per_sm: size of the fixed grid, programs a multiprocessor; 0 where the
            grid follows the rows.
        finish: how sums over rows end, none, reduce, dependent (reduce, brought early)
            or columns (own programs).
        block_col: columns a chunk in split, columns a program with finish columns.
    """

'''

_CLOSING = '''

{lookup}
    """{docstring}

    Raises:
        ValueError: there is no table for this operator and dtype.
    """
    try:
        table = TABLES[operator, dtype]
    except KeyError:
        known = ", ".join(" ".join(key) for key in TABLES)
        raise ValueError(
            f"no table for {{operator!r}} in {{dtype!r}}: expected one of {{known}}",
        ) from None
    return table({names})
'''


class Form(NamedTuple):
    """The parts of a module that are alike in all tables of a kind.

    Attributes:
        sizes: the arguments of every function.
        docstring: of the module.
        answer: the first line of the docstring of `lookup`.
    """

    sizes: tuple[str, ...]
    docstring: str
    answer: str

    def opening(self) -> str:
        """All that stands above the configs."""
        return _OPENING.format(docstring=self.docstring) + "\n".join(f"    {_field(name)}" for name in Config._fields)

    def function(self, name: str) -> str:
        """The first lines of a function."""
        return _typed(name, self.sizes)

    def tables(self) -> str:
        """The beginning of the statement that lists the functions."""
        kinds = ", ".join("int" for _ in self.sizes)
        return f"TABLES: dict[tuple[str, str], Callable[[{kinds}], Config]] ="

    def closing(self) -> str:
        """All that stands below that list."""
        lookup = _typed("lookup", ("operator: str", "dtype: str", *self.sizes))
        names = ", ".join(size.partition(":")[0] for size in self.sizes)
        return _CLOSING.format(lookup=lookup, docstring=self.answer, names=names)


def in_parentheses(head: str, parts: Sequence[str], tail: str) -> str:
    """Parts in parentheses behind a head, in one line where they fit.

    Args:
        head: what stands before the parentheses; its indentation is that of the parts, less one step.
        parts: what stands in them, without commas.
        tail: what stands behind them.
    """
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(head) - len(head.lstrip()))
    return "\n".join([f"{head}(", *(f"{indent}    {part}," for part in parts), f"{indent}){tail}"])


def literal(value: object) -> str:
    """A field of a config as code."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _typed(name: str, arguments: Sequence[str]) -> str:
    return in_parentheses(f"def {name}", arguments, " -> Config:")


def _field(name: str) -> str:
    kind = Config.__annotations__[name].__name__
    if name not in Config._field_defaults:
        return f"{name}: {kind}"
    return f"{name}: {kind} = {literal(Config._field_defaults[name])}"


_SIZES = ("rows: int", "hidden: int")

ONE_GPU = Form(
    _SIZES,
    "Launch configs by operator, dtype, rows and hidden; `lookup` finds one.",
    "The config for `rows` rows of `hidden` elements.",
)
ANY_GPU = Form(
    (*_SIZES, "sms: int", "l2_bytes: int"),
    "Launch configs by operator, dtype, shape and GPU; `lookup` finds one.",
    "The config for `rows` rows of `hidden` elements on a GPU of `sms` SMs.",
)
