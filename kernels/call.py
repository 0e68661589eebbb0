"""One kernel call as a value, so that running, capturing and compiling ahead of time share its construction.

In: what a kernel file's `calls` builds. Out: `KernelCall`, `run` and `warmup`. Imports neither torch nor triton.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple


class KernelCall(NamedTuple):
    """A Triton kernel with its grid, positional arguments, and keyword arguments (constexprs and compiler options)."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


def run(calls: Iterable[KernelCall]) -> None:
    """Launch the calls in order on the current stream."""
    for call in calls:
        call.kernel[call.grid](*call.args, **call.options)


def warmup(calls: Iterable[KernelCall]) -> list[Any]:
    """Compile the calls for the active target without launching; returns the compiled kernels in order."""
    return [call.kernel.warmup(*call.args, grid=call.grid, **call.options) for call in calls]
