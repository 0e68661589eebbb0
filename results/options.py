"""Options of a command, each declared once, as a field of a frozen dataclass.

In: these fields. Out: what an option is called. `commands.with_options` makes the options of the command line.
"""

from collections.abc import Callable
from dataclasses import Field, field
from typing import Any, NamedTuple


class Option(NamedTuple):
    """An option, declared with its field.

    Attributes:
        help: text for `--help`.
        metavar: stands for its value there, unless it is a flag.
        name: as a parameter of the command; empty for that of the field.
        before: the parameter that `--help` lists next; empty for that of all.
        least: the least integer; None for no bound on the command line.
        read: type of its value on the command line, or what makes it of a text; None for the type of the field.
    """

    help: str
    metavar: str = "NAME"
    name: str = ""
    before: str = ""
    least: int | None = None
    read: Callable[[Any], Any] | None = None


def option(*about: Any, default: object = None, **named: Any) -> Any:
    """A field with a default, a tuple if the option is repeated; the rest is as in `Option`."""
    return field(default=default, metadata={"option": Option(*about, **named)})


def parameter_of(option: "Field[Any]") -> str:
    """The name of an option as a parameter of the command."""
    return option.metadata["option"].name or option.name


def flag_of(option: "Field[Any]") -> str:
    """The name of an option on the command line: `--max-slowdown`."""
    return "--" + parameter_of(option).replace("_", "-")
