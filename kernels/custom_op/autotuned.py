"""The configs of kernels in `triton.autotune` as arguments of `kernel_operator`.

In: the decorated kernels. Out: a class of configs, the configs, the default.
"""

import inspect
from functools import reduce
from typing import Annotated, Any

from normtune.errors import UsageError
from normtune.kernels.calling.triton_inside import reason_against
from normtune.kernels.config import COMPILER_KNOBS, Config


def from_autotuned(*kernels: Any) -> dict[str, Any]:
    """The arguments `config`, `space` and `default` of `kernel_operator` for kernels in `triton.autotune`.

    Each name in their configs becomes a knob, a bool one with the values 0 and 1. A config without a name has the
    default of the kernel's parameter. `num_warps` is always a knob; `num_stages`, `num_ctas` and `maxnreg` are where a
    config differs from Triton's default, and `maxnreg` is 0 where Triton has None. Where one function launches several
    kernels, the space has all combinations of their configs with equal values of common names. A config that
    `early_config_prune` removes at a problem is not timed there. `key` has no counterpart: a table answers for rows,
    hidden, the dtype and the operator's `sizes`.

    Args:
        kernels: decorated with `triton.autotune`.

    Raises:
        UsageError: one is not decorated with it, or has a config with a `pre_hook`, an `ir_override`, a value that is
            neither an integer, a bool nor a name, or without a name that has no default.
    """
    if not kernels:
        raise UsageError("from_autotuned takes kernels in triton.autotune: got none")
    chosen = reduce(_combined, (_values_of(kernel) for kernel in kernels))
    if not chosen:
        raise UsageError(f"the kernels {', '.join(map(_name_of, kernels))} have no configs in common: declare a space")
    called = "".join(part.title() for part in _name_of(kernels[0]).strip("_").split("_"))
    kinds: dict[str, Any] = {name: type(value) for name, value in chosen[0].items()}
    for name, kind in kinds.items():
        if {type(values[name]) for values in chosen} != {kind}:
            raise UsageError(
                f"{name} of {_name_of(kernels[0])} is an integer in one config and text in another: expected one type"
            )
    if "maxnreg" in kinds:
        kinds["maxnreg"] = Annotated[int, "registers a thread at most; 0 for no limit, which Triton calls None."]
    config = type(f"{called}Config", (Config,), {"__annotations__": kinds, "__doc__": "As triton.autotune chooses."})
    configs = [config(**values) for values in chosen]
    return {"config": config, "space": list(dict.fromkeys(configs)), "default": configs[0]}


def _combined(left: list[dict[str, int | str]], right: list[dict[str, int | str]]) -> list[dict[str, int | str]]:
    """All combinations of the configs of two kernels in which common names have equal values."""
    pairs = [(one, other) for one in left for other in right]
    return [
        {**one, **other} for one, other in pairs if all(one[name] == other[name] for name in one.keys() & other.keys())
    ]


def _values_of(kernel: Any) -> list[dict[str, int | str]]:
    """The configs of a kernel as values by name, all with the same names."""
    while getattr(kernel, "configs", None) is None and hasattr(kernel, "fn"):
        kernel = kernel.fn
    configs = getattr(kernel, "configs", None)
    if not configs:
        raise UsageError(f"{_name_of(kernel)} is no kernel in triton.autotune: expected one")
    names = dict.fromkeys(name for config in configs for name in config.kwargs)
    options = {
        name: usual
        for name, usual in COMPILER_KNOBS.items()
        if any(getattr(one, name, usual) != usual for one in configs) or name == "num_warps"
    }
    parameters = inspect.signature(kernel.base_fn).parameters
    all_values = []
    for config in configs:
        if reason := reason_against(config):
            raise UsageError(f"a config of {_name_of(kernel)} has {reason}")
        values = {name: getattr(config, name, usual) or 0 for name, usual in options.items()}
        for name in names:
            values[name] = config.kwargs[name] if name in config.kwargs else parameters[name].default
            if values[name] is inspect.Parameter.empty:
                raise UsageError(f"a config of {_name_of(kernel)} has no {name}, and the kernel no default of it")
        all_values.append({name: _int_or_name(kernel, name, values[name]) for name in (*names, *options)})
    return all_values


def _int_or_name(kernel: Any, name: str, value: object) -> int | str:
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, str) and value.isidentifier():
        return value
    raise UsageError(f"{name} of a config of {_name_of(kernel)} is {value!r}: expected an integer, a bool or a name")


def _name_of(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", kernel))
