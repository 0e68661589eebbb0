"""Names that Python gives where the command line repeats an option.

In: one name, or several. Out: a tuple of names, or an error that names the option.
"""

from collections.abc import Iterable

from normtune.errors import UsageError


def named(option: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """The names, one alone or several.

    Raises:
        UsageError: they are neither.
    """
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(name, str) for name in found):
        raise UsageError(f"{option} is {given!r}: expected a name or a sequence of names")
    return found
