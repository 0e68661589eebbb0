"""Arguments of public functions: checked by their annotations, and named as Python names them.

In: a function, or the types of its arguments. Out: `UsageError`s of one line that name the argument and its value. The
command line has types of its own, and its messages name its options, `--operator` for `operators`.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from normtune.errors import UsageError

P = ParamSpec("P")
Result = TypeVar("Result")

# Whether a command calls, whose user knows options and no arguments.
_is_typed: ContextVar[bool] = ContextVar("is_typed", default=False)
# What is accepted for a type, NumPy's numbers included, and its name in a message.
_KINDS: dict[Any, tuple[Any, str]] = {
    str: (str, "text"),
    os.PathLike: (os.PathLike, "a path"),
    bool: (bool, "True or False"),
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    Iterable: (Iterable, "a sequence"),
    Sequence: (Iterable, "a sequence"),
    NoneType: (NoneType, "None"),
}


def check(name: str, value: object, annotation: object) -> None:
    """Refuse a value of another type than its annotation; one of any other class than these basic ones is accepted.

    Raises:
        UsageError: the value has another type.
    """
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [_KINDS.get(get_origin(member) or member) for member in members]
    if None in kinds:
        return
    accepted = [kind for kind in kinds if kind]
    # bool is an Integral.
    if any(isinstance(value, kind) and (not isinstance(value, bool) or kind is bool) for kind, _ in accepted):
        return
    words = [word for _, word in accepted if word != "None"]
    words = [word for word in words if word != "text"] if "a path" in words else words
    raise UsageError(f"{name} is {value!r:.80}: expected {' or '.join(words)}")


@contextmanager
def typed() -> Iterator[None]:
    """Keep the names of options in this block, as the command line does."""
    token = _is_typed.set(True)
    try:
        yield
    finally:
        _is_typed.reset(token)


@contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Give the options in the text of a `UsageError` other names; a command in backticks stays as it is typed.

    Not below the command line, whose options these are.
    """
    if _is_typed.get():
        yield
        return
    try:
        yield
    except UsageError as error:
        text = re.sub(r"`[^`]*`|--[a-z][a-z-]*", lambda match: names.get(match[0], match[0]), str(error))
        error.args = (text,)
        raise


def checked(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorator: a function checks the types of its arguments, and its errors name them as Python does."""
    signature = inspect.signature(function)
    flags = [(f"--{name.replace('_', '-')}", name) for name in signature.parameters]
    names = dict(flags) | {flag.removesuffix("s"): name for flag, name in flags}
    if store := next((name for name in ("store", "data", "url") if name in names.values()), ""):
        names["--store"] = store

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check(name, value, signature.parameters[name].annotation)
        with named(names):
            return function(*args, **kwargs)

    return called
