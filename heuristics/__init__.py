"""From timings to a table: matrix, regret, exact threshold trees, model selection, emitted code, rules of others.

In: attribute access. Out: the public functions of this room, each imported on its first use, so that the command line
starts without numpy. `normtune` has them, too, but for `module_text`, which emits a `Fit`.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normtune.heuristics.api.any_gpu import AnyGpuTable, fit_any_gpu
    from normtune.heuristics.api.check import check, check_on_device
    from normtune.heuristics.api.diff import diff
    from normtune.heuristics.api.fit import Table, fit
    from normtune.heuristics.api.installing import uninstall
    from normtune.heuristics.api.maps import show_flips, show_map
    from normtune.heuristics.api.show import show
    from normtune.heuristics.fitted.emit import module_text
    from normtune.heuristics.fitted.options import FitOptions
    from normtune.heuristics.tablefile.locate import load_table

_HOMES = {
    "AnyGpuTable": "api.any_gpu",
    "FitOptions": "fitted.options",
    "Table": "api.fit",
    "check": "api.check",
    "check_on_device": "api.check",
    "diff": "api.diff",
    "fit": "api.fit",
    "fit_any_gpu": "api.any_gpu",
    "load_table": "tablefile.locate",
    "module_text": "fitted.emit",
    "show": "api.show",
    "show_flips": "api.maps",
    "show_map": "api.maps",
    "uninstall": "api.installing",
}

__all__ = [
    "AnyGpuTable",
    "FitOptions",
    "Table",
    "check",
    "check_on_device",
    "diff",
    "fit",
    "fit_any_gpu",
    "load_table",
    "module_text",
    "show",
    "show_flips",
    "show_map",
    "uninstall",
]


if not TYPE_CHECKING:  # or else a type checker takes any name

    def __getattr__(name: str) -> Any:
        """The public object of that name, imported from its home and kept.

        Raises:
            AttributeError: there is no such name here.
        """
        if name not in _HOMES:
            raise AttributeError(f"module 'normtune.heuristics' has no attribute {name!r}")
        value = globals()[name] = resolve_name(f"normtune.heuristics.{_HOMES[name]}:{name}")
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
