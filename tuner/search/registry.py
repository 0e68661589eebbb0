"""The searches by name, as in `normtune.sweep(strategy=...)`; each is imported only on demand."""

from importlib import import_module
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
_SAMPLER_SEARCH = "normtune.tuner.search.sampler:SamplerSearch"
# These need more than a seed, or stop a study by themselves, which only Optuna's own loop may do.
_UNUSABLE = ("BaseGASampler", "BaseSampler", "BruteForceSampler", "GridSampler", "PartialFixedSampler")


def check_search(name: str) -> None:
    """Check that there is a search of this name, without importing it; `search` checks the name of a sampler.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in SEARCHES and not name.startswith(OPTUNA):
        names = ", ".join([*SEARCHES, f"{OPTUNA}SAMPLER"])
        raise UsageError(f"unknown strategy {name!r}: expected one of {names}, such as {OPTUNA}TPESampler")


def search(name: str) -> type[Search]:
    """The search of this name.

    Raises:
        UsageError: the name is unknown, or of a sampler that needs more than a seed.
    """
    check_search(name)
    search_class: type[Search] = resolve_name(SEARCHES.get(name, _SAMPLER_SEARCH))
    if name in SEARCHES:
        return search_class
    samplers, sampler = import_module("optuna.samplers"), name.removeprefix(OPTUNA)
    usable = sorted(one for one in samplers.__all__ if one.endswith("Sampler") and one not in _UNUSABLE)
    if sampler not in usable:
        raise UsageError(f"unknown sampler of Optuna {sampler!r}: expected one of {', '.join(usable)}")
    return type("NamedSamplerSearch", (search_class,), {"name": name, "sampler": getattr(samplers, sampler)})
