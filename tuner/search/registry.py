"""The searches by name, as in `normtune sweep --strategy`; each is imported only on demand."""

from pkgutil import resolve_name

from normtune.errors import UsageError
from normtune.tuner.search.protocol import Search

SEARCHES = {
    "adaptive": "normtune.tuner.search.adaptive:Adaptive",
    "exhaustive": "normtune.tuner.search.exhaustive:Exhaustive",
    "plane": "normtune.tuner.search.plane.plane:Plane",
}
# A search by a sampler of Optuna is named by this and the class of the sampler.
OPTUNA = "optuna:"
_SAMPLER = "normtune.tuner.search.sampler:search_of_sampler"


def check_search(name: str) -> None:
    """Check that there is a search of this name, without importing it; `search` checks the name of a sampler.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in SEARCHES and not name.startswith(OPTUNA):
        known = ", ".join([*SEARCHES, f"{OPTUNA}SAMPLER"])
        raise UsageError(f"unknown strategy {name!r}: expected one of {known}, such as {OPTUNA}TPESampler")


def search(name: str) -> type[Search]:
    """The search of this name.

    Raises:
        UsageError: the name is unknown.
    """
    check_search(name)
    if name.startswith(OPTUNA):
        return resolve_name(_SAMPLER)(name, name.removeprefix(OPTUNA))
    search_class: type[Search] = resolve_name(SEARCHES[name])
    return search_class
