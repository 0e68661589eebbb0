"""The fixed text of an emitted module: written by `emit`, recognised by `parse`.

In: nothing. Out: texts in two forms: for a table of one GPU, and for a table for any GPU, whose functions also take
multiprocessors and L2 cache. Light, because dispatch reads tables at the first launch.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from normtune.kernels.config import Config

# Default of black and of ruff. Longer statements have one part per line with a trailing comma, which formatters keep at
# every width.
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
    """The parts that all tables of a form share.

    Attributes:
        sizes: arguments of every function.
        docstring: of the module.
        answer: first line of the docstring of `lookup`.
    """

    sizes: tuple[str, ...]
    docstring: str
    answer: str

    def opening(self) -> str:
        """Everything above the configs."""
        return _OPENING.format(docstring=self.docstring) + "\n".join(f"    {_field(name)}" for name in Config._fields)

    def function(self, name: str) -> str:
        """First lines of a function."""
        return _typed(name, self.sizes)

    def tables(self) -> str:
        """Beginning of the statement that lists the functions."""
        kinds = ", ".join("int" for _ in self.sizes)
        return f"TABLES: dict[tuple[str, str], Callable[[{kinds}], Config]] ="

    def closing(self) -> str:
        """Everything below that list."""
        lookup = _typed("lookup", ("operator: str", "dtype: str", *self.sizes))
        names = ", ".join(size.partition(":")[0] for size in self.sizes)
        return _CLOSING.format(lookup=lookup, docstring=self.answer, names=names)


def in_parentheses(head: str, parts: Sequence[str], tail: str) -> str:
    """Write parts in parentheses after a head, on one line if they fit.

    Args:
        head: before the parentheses; the parts are indented one step more.
        parts: inside them, without commas.
        tail: after them.
    """
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(head) - len(head.lstrip()))
    return "\n".join([f"{head}(", *(f"{indent}    {part}," for part in parts), f"{indent}){tail}"])


def literal(value: object) -> str:
    """Field of a config as code."""
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
