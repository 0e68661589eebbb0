"""The fixed text of an emitted module: written by `emit`, recognised by `parse`.

In: nothing. Out: texts. Light, because dispatch reads tables at the first launch.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from textwrap import fill
from typing import NamedTuple

from normtune.kernels.config import Knob
from normtune.kernels.problem import AXES

# The default of black and of ruff. Longer statements have one part per line with a trailing comma, which formatters
# keep at every width.
WIDTH = 88
# The name of the class of configs in a table with one class.
ONE_CLASS = "Config"
# The type of a config of one of several classes.
ANY_CLASS = "tuple[int | str, ...]"
# The description of a knob whose operator gives none.
_UNSAID = "as the operator defines it."

_OPENING = '''
"""{docstring}"""

from collections.abc import Callable
{imports}from typing import NamedTuple'''

_CLASS = '''class {name}(NamedTuple):
    """How a kernel is launched.

    Attributes:
{knobs}
    """

{fields}'''

# In tables of operators with named integers: unmeasured integers get the function of the nearest ones.
_IMPORTS = "from fractions import Fraction\n"
_NEAREST = '''def _sizes(operator: str) -> dict[str, int]:
    """The named integers of an operator: {"heads": 8} of `norm.heads=8:no_rstd`."""
    pairs = (part.partition("=") for part in operator.partition(":")[0].split(".")[1:])
    return {name: int(value) for name, _, value in pairs if value.isdecimal()}


def _nearest(operator: str, dtype: str) -> str:
    """The operator with the nearest named integers that has a table, in the same variant.

    The nearest ones have the least product of ratios, then the smaller integers.
    """
    family, sizes = operator.partition(".")[0], _sizes(operator)
    name, colon, variant = operator.partition(":")
    ratios: dict[str, list[Fraction]] = {}
    for known in {key.partition(":")[0] for key, of in TABLES if of == dtype}:
        own = _sizes(known)
        if known.partition(".")[0] != family or own.keys() != sizes.keys():
            continue
        if 0 in (*own.values(), *sizes.values()):
            continue
        ratio = Fraction(1)
        for size, value in own.items():
            ratio *= Fraction(max(value, sizes[size]), min(value, sizes[size]))
        ratios[known] = [ratio, *map(Fraction, own.values())]
    near = min(ratios, key=ratios.__getitem__) if sizes and ratios else name
    return near + colon + variant


'''

_CLOSING = '''{lookup}
    """{docstring}

    Beyond the sizes in `MEASURED` the answers are those of the outermost regions.

    Raises:
        ValueError: there is no table for this operator and dtype.
    """
    try:
        table = TABLES[{operator}, dtype]
    except KeyError:
        known = ", ".join(" ".join(key) for key in TABLES)
        raise ValueError(
            f"no table for {{operator!r}} in {{dtype!r}}: expected one of {{known}}",
        ) from None
    return table({names})
'''


# The names of the list of functions, and of their measured sizes.
LIST = "TABLES"
MEASURED = "MEASURED"
# The beginning of the statement with the measured sizes.
SIZES = f"{MEASURED}: dict[tuple[str, str], dict[str, tuple[int, int]]] ="
# The classes of configs of a table: the knobs of each, by its name.
Classes = Mapping[str, Sequence[Knob]]


class Form(NamedTuple):
    """The text that all tables share whose functions take the same sizes.

    Attributes:
        sizes: arguments of every function.
        docstring: of the module.
        answer: first line of the docstring of `lookup`.
    """

    sizes: tuple[str, ...]
    docstring: str
    answer: str

    def code(
        self,
        functions: Sequence[str],
        entries: Sequence[str],
        boxes: Sequence[str],
        classes: "Classes",
        configs: Sequence[str],
        has_sizes: bool = False,
    ) -> str:
        """The code of a table, which opens with its decision.

        Args:
            functions: each a text.
            entries: lines of the list of functions.
            boxes: lines of the measured sizes.
            classes: the classes of configs.
            configs: the statements that name configs.
            has_sizes: whether an operator has named integers.
        """
        parts = [
            self.opening(has_sizes),
            *functions,
            "\n".join([f"{self.tables(classes)} {{", *entries, "}"]),
            "\n".join([f"{SIZES} {{", *boxes, "}"]),
            *class_texts(classes),
            "\n".join(configs),
            self.closing(classes, has_sizes),
        ]
        return "\n\n\n".join(parts)

    def opening(self, has_sizes: bool = False) -> str:
        """Everything above the functions; `has_sizes`: whether an operator has named integers."""
        return _OPENING.format(docstring=self.docstring, imports=_IMPORTS if has_sizes else "")

    def function(self, name: str, answer: str = f'"{ONE_CLASS}"') -> str:
        """First lines of a function that returns configs of the type `answer`, as of `any_of`."""
        return _typed(name, self.sizes, answer)

    def tables(self, classes: "Classes") -> str:
        """Beginning of the statement that lists the functions."""
        kinds = ", ".join("int" for _ in self.sizes)
        return f"{LIST}: dict[tuple[str, str], Callable[[{kinds}], {any_of(classes)}]] ="

    def closing(self, classes: "Classes", has_sizes: bool = False) -> str:
        """Everything below the configs."""
        lookup = _typed("lookup", ("operator: str", "dtype: str", *self.sizes), any_of(classes))
        names = ", ".join(size.partition(":")[0] for size in self.sizes)
        operator = "_nearest(operator, dtype)" if has_sizes else "operator"
        closing = _CLOSING.format(lookup=lookup, docstring=self.answer, names=names, operator=operator)
        return (_NEAREST + closing) if has_sizes else closing


def in_parentheses(head: str, parts: Sequence[str], tail: str) -> str:
    """`head(parts)tail` on one line if it fits, else with one part per line."""
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(head) - len(head.lstrip()))
    return "\n".join([f"{head}(", *(f"{indent}    {part}," for part in parts), f"{indent}){tail}"])


def literal(value: object) -> str:
    """The value of a knob as code."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def any_of(classes: Classes) -> str:
    """The type of a config of any of these classes, in quotes, as the classes are defined below the functions."""
    return f'"{next(iter(classes)) if len(classes) == 1 else ANY_CLASS}"'


def _typed(name: str, arguments: Sequence[str], answer: str) -> str:
    return in_parentheses(f"def {name}", arguments, f" -> {answer}:")


def class_texts(classes: Classes) -> list[str]:
    """The statements that define the classes of configs."""
    return [_class(name, knobs) for name, knobs in classes.items()]


def _class(name: str, knobs: Sequence[Knob]) -> str:
    meanings = [
        fill(f"{knob.name}: {knob.meaning or _UNSAID}", WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for knob in knobs
    ]
    fields = "\n".join(f"    {_field(knob)}" for knob in knobs)
    return _CLASS.format(name=name, knobs="\n".join(meanings), fields=fields)


def _field(knob: Knob) -> str:
    default = "" if knob.default is None else f" = {literal(knob.default)}"
    return f"{knob.name}: {knob.kind.__name__}{default}"


@cache
def of_axes(axes: tuple[str, ...]) -> Form:
    """The form of a table whose functions take the sizes `axes`."""
    sizes = tuple(f"{axis}: int" for axis in axes)
    if axes == AXES:
        return Form(
            sizes,
            "Launch configs by operator, dtype, rows and hidden; `lookup` finds one.",
            "The config for `rows` rows of `hidden` elements.",
        )
    named = ", ".join(f"`{axis}`" for axis in axes)
    return Form(sizes, "Launch configs by operator, dtype and shape; `lookup` finds one.", f"The config at {named}.")
