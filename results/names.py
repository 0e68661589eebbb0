"""Arguments of Python functions for options that the command line repeats: one name, or several."""

from collections.abc import Iterable

from normtune.errors import UsageError


def named(option: str, value: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several as a tuple.

    Raises:
        UsageError: the value of the option is neither.
    """
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option} is {value!r}: expected a name or a sequence of names")
    return names
