"""From timings to a table: matrix, regret, exact threshold trees, model selection, emitted code, rules of others.

In: attribute access. Out: `fit` (a DataFrame, or evidence, to a `Table`), `check` and `module_text`, each imported on
its first use, so that the command line starts without numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normtune.heuristics.checking.offline import check
    from normtune.heuristics.fitting.api import Table, fit
    from normtune.heuristics.fitting.emit import module_text

__all__ = ["Table", "check", "fit", "module_text"]

_HOMES = {"Table": "fitting.api", "check": "checking.offline", "fit": "fitting.api", "module_text": "fitting.emit"}


def __getattr__(name: str) -> Any:
    """The function of that name, imported from its home.

    Raises:
        AttributeError: there is no such function here.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'normtune.heuristics' has no attribute {name!r}")
    return getattr(import_module(f"normtune.heuristics.{_HOMES[name]}"), name)
