"""What a function launches, without launching it.

In: a function that launches Triton kernels as `kernel[grid](...)`. Out: its kernel calls, in order. Triton's way into a
launch is replaced while the function runs, and put back: this is for the processes of the tool, not for those of users.
"""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from triton.runtime.jit import JITFunction, KernelInterface

from normtune.kernels.call import KernelCall

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
        if not isinstance(kernel, JITFunction) and not _is_interpreted(kernel):
            raise TypeError(
                f"it launches a {type(kernel).__name__}: expected a function of triton.jit, which the config tunes"
            )
        return partial(_keep, calls, kernel, grid)

    with _recording:
        usual = KernelInterface.__getitem__
        KernelInterface.__getitem__ = take  # type: ignore[method-assign, assignment]
        try:
            function()
        finally:
            KernelInterface.__getitem__ = usual  # type: ignore[method-assign]
    return calls


def _is_interpreted(kernel: object) -> bool:
    """Whether a kernel is run by Triton's interpreter, which is imported only where it is asked for."""
    return type(kernel).__name__ == "InterpretedFunction"


def _keep(calls: list[KernelCall], kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
    names = list(kernel.arg_names)
    if callable(grid):
        grid = grid({**dict(zip(names, args, strict=False)), **options})
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    calls.append(KernelCall(kernel, grid, args, options))


def binary_of(call: KernelCall) -> Hashable:
    """What tells the machine code of a call apart, for tensors that are aligned: kernel, constants, specialisation.

    As Triton's binder specialises: an integer is 1, a multiple of 16 or neither, and fits 32 bits or does not.
    """
    kernel = call.kernel
    named = {**dict(zip(kernel.arg_names, call.args, strict=False)), **call.options}
    parameters = {one.name: one for one in getattr(kernel, "params", ())}
    return (
        kernel.__module__,
        kernel.__name__,
        tuple((name, _kind(value, parameters.get(name))) for name, value in sorted(named.items())),
    )


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
