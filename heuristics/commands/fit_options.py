"""Options of `fit` on the command line, generated from the fields of `FitOptions`.

In: a command that takes these fields as keywords. Out: the same command with a signature for typer.
"""

import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any

import typer

from normtune.heuristics.fitting.options import FitOptions, Option, flag_of, kind_of, parameter_of


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an option for each field of `FitOptions`, besides its own parameters."""
    *own, _ = inspect.signature(command).parameters.values()
    options = fields(FitOptions)
    waiting = list(options)
    while waiting:
        option, *waiting = waiting
        about: Option = option.metadata["option"]
        index = next((index for index, parameter in enumerate(own) if parameter.name == about.before), None)
        if index is None:
            waiting.append(option)  # until that other option is inserted
        else:
            own.insert(index, _parameter(option, about))

    @wraps(command)
    def called(**given: Any) -> None:
        for option in options:
            value = given.pop(parameter_of(option))
            given[option.name] = tuple(value or ()) if kind_of(option) is tuple else value
        command(**given)

    called.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return called


def _parameter(option: "Field[Any]", about: Option) -> inspect.Parameter:
    kind, is_repeated = kind_of(option), kind_of(option) is tuple
    names = [flag_of(option)] if kind is bool else []  # without this, typer adds its opposite
    declared = typer.Option(*names, help=about.help, metavar=about.metavar, min=about.least)
    annotation = Annotated[list[str] | None if is_repeated else option.type, declared]  # type: ignore[valid-type]
    default = None if is_repeated else option.default
    return inspect.Parameter(
        parameter_of(option), inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )
