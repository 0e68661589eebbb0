"""What every emitted module is made of, whatever was fitted: for `emit` to write and for `regions` to recognise.

In: nothing. Out: texts, in two forms: of a table of one GPU, and of a table for any GPU, whose functions take the GPU's
multiprocessors and L2 cache besides. Light, as dispatch reads tables at the first launch.
"""

import json
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import NamedTuple

from normtune.kernels.config import Knob

# The default of black and of ruff. What is longer is one part a line with a trailing comma, which keeps it so at every
# width.
WIDTH = 88
# The name of the class of configs where a table has one class alone.
ONE_CLASS = "Config"
# What the docstring says of a knob whose operator says nothing.
_UNSAID = "as the operator defines it."

_OPENING = '''
"""{docstring}"""

from collections.abc import Callable
from typing import NamedTuple


'''

_CLASS = '''class {name}(NamedTuple):
    """How a kernel is launched.

    Attributes:
{knobs}
    """

{fields}'''

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


# The classes of configs of a table: the knobs of each, by its name.
Classes = Mapping[str, Sequence[Knob]]


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

    def opening(self, classes: "Classes") -> str:
        """All that stands above the configs; `classes` are those of the configs, by name."""
        defined = "\n\n\n".join(_class(name, knobs) for name, knobs in classes.items())
        return _OPENING.format(docstring=self.docstring) + defined

    def function(self, name: str, answer: str = ONE_CLASS) -> str:
        """The first lines of a function whose configs are of the class `answer`."""
        return _typed(name, self.sizes, answer)

    def tables(self, classes: "Classes") -> str:
        """The beginning of the statement that lists the functions."""
        kinds = ", ".join("int" for _ in self.sizes)
        return f"TABLES: dict[tuple[str, str], Callable[[{kinds}], {_any_of(classes)}]] ="

    def closing(self, classes: "Classes") -> str:
        """All that stands below that list."""
        lookup = _typed("lookup", ("operator: str", "dtype: str", *self.sizes), _any_of(classes))
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


def _any_of(classes: Classes) -> str:
    """The type of a config of any of these classes."""
    return next(iter(classes)) if len(classes) == 1 else "tuple[int | str, ...]"


def _typed(name: str, arguments: Sequence[str], answer: str) -> str:
    return in_parentheses(f"def {name}", arguments, f" -> {answer}:")


def _class(name: str, knobs: Sequence[Knob]) -> str:
    """The definition of a class of configs."""
    meanings = [
        fill(f"{knob.name}: {knob.meaning or _UNSAID}", WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for knob in knobs
    ]
    fields = "\n".join(f"    {_field(knob)}" for knob in knobs)
    return _CLASS.format(name=name, knobs="\n".join(meanings), fields=fields)


def _field(knob: Knob) -> str:
    default = "" if knob.default is None else f" = {literal(knob.default)}"
    return f"{knob.name}: {knob.kind.__name__}{default}"


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
