"""What a function launches, without launching it.

In: a function that launches Triton kernels as `kernel[grid](...)`. Out: its kernel calls, in order. Triton's way into a
launch is replaced while the function runs, and put back: this is for the processes of the tool, not for those of users.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from normtune.kernels.call import KernelCall
from normtune.kernels.calling.triton_inside import is_kernel, launches_given_to, parameters

_recording = threading.RLock()
_INT32 = range(-(2**31), 2**31)


def recorded(function: Callable[[], object]) -> list[KernelCall]:
    """The kernel calls that a function makes.

    Raises:
        TypeError: it launches what is tuned or chosen anew at each launch (`triton.autotune`, `triton.heuristics`).
        Exception: whatever the function raises.
    """
    calls: list[KernelCall] = []

    def take(kernel: Any, grid: Any) -> Callable[..., None]:
        if not is_kernel(kernel):
            raise TypeError(
                f"it launches a {type(kernel).__name__}: expected a function of triton.jit, which the config tunes"
            )
        return partial(_keep, calls, kernel, grid)

    with _recording, launches_given_to(take):
        function()
    return calls


def _keep(calls: list[KernelCall], kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
    names = list(kernel.arg_names)
    if callable(grid):
        grid = grid({**dict(zip(names, args, strict=False)), **options})
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    calls.append(KernelCall(kernel, grid, args, options))


def launch_of(call: KernelCall, tensors: Mapping[str, Any]) -> Hashable:
    """The launches of a call: kernel, grid and arguments in order; of tensors the name and dtype.

    Two calls of one binary may differ here: it is not specialised on the value of every integer.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}
    given = tuple((name, _value(value, names)) for name, value in _named(call))
    return call.kernel.__module__, call.kernel.__name__, call.grid, given


def binary_of(call: KernelCall) -> Hashable:
    """What tells the machine code of a call apart, for tensors that are aligned: kernel, constants, specialisation.

    As Triton's binder specialises: an integer is 1, a multiple of 16 or neither, and fits 32 bits or does not.
    """
    kernel = call.kernel
    named = {one.name: one for one in parameters(kernel)}
    kinds = tuple((name, _kind(value, named.get(name))) for name, value in sorted(_named(call), key=itemgetter(0)))
    return kernel.__module__, kernel.__name__, kinds


def _named(call: KernelCall) -> list[tuple[str, Any]]:
    """The arguments of a call with their names, positional ones first."""
    return [*zip(call.kernel.arg_names, call.args, strict=False), *sorted(call.options.items())]


def _value(value: Any, names: Mapping[int, str]) -> Hashable:
    if hasattr(value, "data_ptr"):
        return names.get(id(value), ""), str(value.dtype)
    if isinstance(value, tuple):
        return tuple(_value(part, names) for part in value)
    # 1, 1.0 and True are equal, but not to a kernel.
    return type(value).__name__, repr(value)


def _kind(value: Any, parameter: Any) -> Hashable:
    if hasattr(value, "data_ptr"):
        return str(value.dtype).rpartition(".")[2]
    if parameter is None or parameter.is_constexpr or value is None or isinstance(value, bool):
        return (type(value).__name__, value)
    if isinstance(value, int):
        if parameter.do_not_specialize:
            return value in _INT32
        return value in _INT32, value == 1, value % 16 == 0
    return type(value).__name__
