"""The searches there are, by name.

In: a name, as `normtune sweep --strategy` takes it. Out: the class. Imports a search only when it is wanted.
"""

from pkgutil import resolve_name

from normtune.errors import UsageError
from normtune.tuner.search.protocol import Search

SEARCHES = {
    "adaptive": "normtune.tuner.search.adaptive:Adaptive",
    "exhaustive": "normtune.tuner.search.exhaustive:Exhaustive",
}


def search(name: str) -> type[Search]:
    """The search of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in SEARCHES:
        raise UsageError(f"unknown strategy {name!r}: expected one of {', '.join(SEARCHES)}")
    found: type[Search] = resolve_name(SEARCHES[name])
    return found
