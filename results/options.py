"""Options that a command and a Python function share, each declared once, as a field of a frozen dataclass.

In: these fields. Out: names of options, and the keywords of the function. `commands.with_options` creates the options
of the command line.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import Field, field, fields
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from normtune.errors import UsageError
from normtune.kernels.arguments import check, named
from normtune.kernels.key import dtype_of

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")


# The placeholder of an option whose values are joined by commas, or repeated.
LIST = "LIST"
# Texts of an option `--device` of commands that read measurements.
DEVICE_HELP = "Only measurements of this GPU, by its name; of a store, no others are read."
DEVICE_DOC = "Only measurements of this GPU, by its name, `NVIDIA H200`; of a store, no others are read. Default: all."


class Option(NamedTuple):
    """An option, declared with its field.

    Attributes:
        help: text for `--help`; empty for a keyword of the Python function alone.
        metavar: placeholder of its value there, unless it is a flag.
        name: as a parameter of the command; empty for the name of the field.
        before: the parameter that `--help` lists next; empty for the default of the command.
        read: how the command line reads a value: a type, or a function of its text, for a list of its texts; None for
            the type of the field.
        doc: text for Python's docstring; empty for that of `--help`.
    """

    help: str
    metavar: str = "NAME"
    name: str = ""
    before: str = ""
    read: Callable[[Any], Any] | None = None
    doc: str = ""


def option(*about: Any, default: object = None, **named: Any) -> Any:
    """A field with a default, a tuple if the option is repeated; other arguments as in `Option`."""
    return field(default=default, metadata={"option": Option(*about, **named)})


def keyword(doc: str, default: object = None) -> Any:
    """A field that only the Python function has, and not the command."""
    return option("", doc=doc, default=default)


def option_of(options: type[Any], name: str, **changed: Any) -> Any:
    """The field of another dataclass, for one that gives it its own type; changed arguments as in `Option`."""
    (declared,) = (one for one in fields(options) if one.name == name)
    return field(default=declared.default, metadata={"option": declared.metadata["option"]._replace(**changed)})


def parameter_of(option: "Field[Any]") -> str:
    """The name of an option as a parameter of the command."""
    return option.metadata["option"].name or option.name


def flag_of(option: "Field[Any]") -> str:
    """The name of an option on the command line: `--max-slowdown`."""
    return "--" + parameter_of(option).replace("_", "-")


def number_of(text: str) -> int | float | None:
    """The number of a text in ASCII digits; None for any other, such as `1_000` and `nan`, which Python reads."""
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        return int(text)
    is_number = re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text)
    return float(text) if is_number else None


def parse_number(kind: type[int] | type[float], flag: str, text: str) -> int | float:
    """The value of an option, as an integer or a float.

    Raises:
        UsageError: the text is no number of this kind.
    """
    value = number_of(text)
    if value is None or (kind is int and not isinstance(value, int)):
        raise UsageError(f"{flag} is {text[:80]!r}: expected {'an integer' if kind is int else 'a number'}")
    return value


def keywords_of(options: Callable[P, Options]) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """Decorator: a function of a dataclass becomes one of its fields, with their types, defaults and docstrings.

    A call with other keywords raises a TypeError that names the function.
    """
    signature = inspect.signature(options)
    declared = {one.name: one for one in fields(options)}  # type: ignore[arg-type]
    flags = {flag_of(one): name for name, one in declared.items()}
    if "store" not in declared and "data" in declared:
        flags["--store"] = "data"

    def decorated(function: Callable[[Options], Result]) -> Callable[P, Result]:
        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            for name, value in bound.arguments.items():
                check(name, value, declared[name].type)
            with named(flags):
                return function(options(*args, **kwargs))

        returned = function.__annotations__["return"]
        called.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        called.__doc__ = _documented(function.__doc__, "Args", map(declared.__getitem__, signature.parameters))
        return called

    return decorated


def documented(options: type[Options]) -> type[Options]:
    """Decorator: the docstring of a dataclass gets the texts of its fields."""
    options.__doc__ = _documented(options.__doc__, "Attributes", fields(options))  # type: ignore[arg-type]
    return options


def _documented(doc: str | None, title: str, options: "Iterable[Field[Any]]") -> str:
    about, raises, errors = inspect.cleandoc(doc or "").partition("Raises:")
    entries = "\n".join(map(_entry, options))
    return f"{about}{title}:\n{entries}\n\n{raises}{errors}"


def _entry(option: "Field[Any]") -> str:
    """The entry of an option in a docstring, with names of options as in Python."""
    about: Option = option.metadata["option"]
    text = re.sub(r"--([a-z-]+)", lambda match: f"`{match[1].replace('-', '_')}`", about.doc or about.help)
    text = f"    {option.name}: {text.replace('Repeatable.', 'One or several.')}"
    return textwrap.fill(text, 116, subsequent_indent=" " * 8, break_on_hyphens=False)


def as_names(option: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """The value of an option that the command line repeats, one name or several, as a tuple.

    Raises:
        UsageError: the value is neither.
    """
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option} is {value!r}: expected a name or a sequence of names")
    return tuple(map(dtype_of, names)) if option == "dtypes" else names
