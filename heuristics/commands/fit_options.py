"""The options of `fit` on the command line, made of the fields of `FitOptions`.

In: a command that takes these fields as keywords. Out: the same command with a signature that typer reads.
"""

import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any

import typer

from normtune.heuristics.fitting.options import FitOptions, Option, flag_of, kind_of, parameter_of


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose keywords beside its own parameters are the fields of `FitOptions`, with an option for each."""
    *own, _ = inspect.signature(command).parameters.values()
    options = fields(FitOptions)
    waiting = list(options)
    while waiting:
        option, *waiting = waiting
        about: Option = option.metadata["option"]
        place = next((place for place, parameter in enumerate(own) if parameter.name == about.before), None)
        if place is None:
            waiting.append(option)  # that other option comes first
        else:
            own.insert(place, _parameter(option, about))

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
    names = [flag_of(option)] if kind is bool else []  # alone, or else typer adds its opposite
    declared = typer.Option(*names, help=about.help, metavar=about.metavar, min=about.least)
    annotation = Annotated[list[str] | None if is_repeated else option.type, declared]  # type: ignore[valid-type]
    default = None if is_repeated else option.default
    return inspect.Parameter(
        parameter_of(option), inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation
    )
