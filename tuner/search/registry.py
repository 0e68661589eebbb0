"""The searches by name, as in `normtune sweep --strategy`; each is imported only on demand."""

from pkgutil import resolve_name

from normtune.errors import UsageError
from normtune.tuner.search.protocol import Search

SEARCHES = {
    "adaptive": "normtune.tuner.search.adaptive:Adaptive",
    "exhaustive": "normtune.tuner.search.exhaustive:Exhaustive",
    "plane": "normtune.tuner.search.plane.plane:Plane",
    "race": "normtune.tuner.search.race:Racing",
    "tpe": "normtune.tuner.search.sampling.sampled:TPE",
}


def check_search(name: str) -> None:
    """Check that there is a search of this name, without importing it.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in SEARCHES:
        raise UsageError(f"unknown strategy {name!r}: expected one of {', '.join(SEARCHES)}")


def search(name: str) -> type[Search]:
    """The search of this name.

    Raises:
        UsageError: the name is unknown.
    """
    check_search(name)
    search_class: type[Search] = resolve_name(SEARCHES[name])
    return search_class
