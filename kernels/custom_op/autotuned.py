"""The configs of kernels in `triton.autotune` as arguments of `kernel_operator`.

In: the decorated kernels. Out: a class of configs, the configs, the default.
"""

from functools import reduce
from typing import Any

from normtune.errors import UsageError
from normtune.kernels.config import COMPILER_KNOBS, Config


def from_autotuned(*kernels: Any) -> dict[str, Any]:
    """The arguments `config`, `space` and `default` of `kernel_operator` for kernels in `triton.autotune`.

    Each name in their configs becomes a knob, a bool one with the values 0 and 1; `num_warps` always, and `num_stages`,
    `num_ctas` and `maxnreg` where a config differs from Triton's default. Where one function launches several kernels,
    the space has all combinations of their configs with equal values of common names. A config that
    `early_config_prune` removes at a problem is not timed there. `key` has no counterpart: a table answers for rows,
    hidden, the dtype and the operator's `sizes`.

    Args:
        kernels: decorated with `triton.autotune`.

    Raises:
        UsageError: one is not decorated with it, or has a config with a `pre_hook` or a value that is neither an
            integer, a bool nor a name.
    """
    if not kernels:
        raise UsageError("from_autotuned takes kernels in triton.autotune: got none")
    chosen = reduce(_combined, (_values_of(kernel) for kernel in kernels))
    if not chosen:
        raise UsageError(f"the kernels {', '.join(map(_name_of, kernels))} have no configs in common: declare a space")
    names = list(dict.fromkeys(name for values in chosen for name in values))
    rest = {name: next(values[name] for values in chosen if name in values) for name in names}
    space = [{**rest, **values} for values in chosen]
    called = "".join(part.title() for part in _name_of(kernels[0]).strip("_").split("_"))
    kinds = {name: type(rest[name]) for name in names}
    for name in names:
        if {type(values[name]) for values in space} != {kinds[name]}:
            raise UsageError(
                f"{name} of {_name_of(kernels[0])} is an integer in one config and text in another: expected one type"
            )
    config = type(f"{called}Config", (Config,), {"__annotations__": kinds, "__doc__": "As triton.autotune chooses."})
    configs = [config(**values) for values in space]
    return {"config": config, "space": list(dict.fromkeys(configs)), "default": configs[0]}


def _combined(left: list[dict[str, int | str]], right: list[dict[str, int | str]]) -> list[dict[str, int | str]]:
    """All combinations of the configs of two kernels in which common names have equal values."""
    pairs = [(one, other) for one in left for other in right]
    return [
        {**one, **other} for one, other in pairs if all(one[name] == other[name] for name in one.keys() & other.keys())
    ]


def _values_of(kernel: Any) -> list[dict[str, int | str]]:
    while getattr(kernel, "configs", None) is None and hasattr(kernel, "fn"):
        kernel = kernel.fn
    configs = getattr(kernel, "configs", None)
    if not configs:
        raise UsageError(f"{_name_of(kernel)} is no kernel in triton.autotune: expected one")
    found = []
    for config in configs:
        if config.pre_hook:
            raise UsageError(f"a config of {_name_of(kernel)} has a pre_hook, which only triton.autotune runs")
        values = dict(config.kwargs)
        for name, usual in COMPILER_KNOBS.items():
            if any(getattr(one, name, usual) != usual for one in configs) or name == "num_warps":
                values[name] = getattr(config, name)
        found.append({name: _plain(kernel, name, value) for name, value in values.items()})
    return found


def _plain(kernel: Any, name: str, value: object) -> int | str:
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, str) and value.isidentifier():
        return value
    raise UsageError(f"{name} of a config of {_name_of(kernel)} is {value!r}: expected an integer, a bool or a name")


def _name_of(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", kernel))
