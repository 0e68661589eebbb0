"""The public `warmup`: compiles and loads every binary that calls with any number of rows may launch.

In: an example of a call; or hidden size, dtype and GPU of `rms_norm`. Out: the binaries, compiled and loaded.
Between two thresholds of a table there is one config, and as rows grow its binary never changes back, so that bisection
finds each binary (`binaries`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from normtune.errors import NormtuneError
from normtune.kernels.alignment import alignment_of
from normtune.kernels.call import KernelCall
from normtune.kernels.calling import dispatch
from normtune.kernels.calling.dispatch import LaunchRequest, recorded_requests
from normtune.kernels.calling.launcher import binary_of, calls_of, distinct_views, load
from normtune.kernels.calling.layout import groups_of, with_rows
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.rms_norm.function import CALLS, rms_norm

# A binary that writes a transposed result also depends on whether this divides the number of rows.
_ROW_ALIGNMENT = 16


def load_all(call: Callable[[], Any]) -> int:
    """Make a call, then compile and load all that it would launch with any other number of rows.

    Args:
        call: calls functions of this package, with at least one row.

    Returns:
        Number of distinct binaries that are loaded; 0 if the call launched no kernel.
    """
    with recorded_requests() as requests:
        dispatch.forget_launches()  # a cached launch makes no request
        call()
    ready: set[Hashable] = set()
    for request in requests:
        calls, bounds, most, device = _row_calls(request)
        for kernel_call in binaries(calls, bounds, most):
            if binary_of(kernel_call) not in ready:
                load(kernel_call, device)
                ready.add(binary_of(kernel_call))
    return len(ready)


# Number of rows to kernel calls; the numbers at which the config may change; the largest number; the GPU.
_RowCalls = tuple[Callable[[int], Sequence[KernelCall]], Sequence[int], int, int | None]


def _row_calls(request: LaunchRequest) -> _RowCalls:
    spec, problem, tensors, scalars, mode, options, is_in_place = request
    there = distinct_views(tensors)
    first = next(iter(there.values()))
    alignment, of_new = dispatch.alignment_in(spec, problem, tensors), alignment_of(problem.hidden)
    # For a binary, any float32 tensor is like a workspace.
    workspace = torch.empty(1, dtype=torch.float32, device=first.device)
    groups = groups_of(first)

    def calls(rows: int) -> Sequence[KernelCall]:
        at_rows = problem._replace(rows=rows * groups)
        like = {name: with_rows(tensor, rows) for name, tensor in there.items()}
        kernel_calls: list[KernelCall] = []
        for strided in {alignment, of_new} if rows == 1 else {alignment}:  # a single row gets a new tensor's strides
            launch = dispatch.resolved(spec, at_rows, first, strided, mode, is_in_place)
            kernel_calls += calls_of(
                spec, launch, at_rows, like, workspace if launch.workspace else None, scalars, options
            )
        return kernel_calls

    bounds = dispatch.row_bounds(problem, dispatch.target_of(first), first.device.index or 0, mode)
    bounds = sorted({-(-bound // groups) for bound in bounds})
    return calls, bounds, MAX_ROWS // groups, dispatch.device_of(first)


def binaries(calls: Callable[[int], Sequence[KernelCall]], bounds: Sequence[int], most: int) -> Iterator[KernelCall]:
    """Kernel calls that together have every binary of any number of rows.

    Args:
        calls: number of rows to kernel calls.
        bounds: the numbers of rows, ascending from 1, at which the config may change.
        most: the largest number of rows.
    """
    for least, next_bound in zip(bounds, [*bounds[1:], most + 1], strict=True):
        last = min(next_bound - 1, most)
        aligned = -(-least // _ROW_ALIGNMENT), last // _ROW_ALIGNMENT
        others = least - (least - 1) // _ROW_ALIGNMENT, last - last // _ROW_ALIGNMENT
        for (start, end), rows_of in ((aligned, _aligned), (others, _unaligned)):
            if start <= end:
                for index in steps(partial(_binaries, calls, rows_of), start, end):
                    yield from calls(rows_of(index))


def _aligned(index: int) -> int:
    """The multiple number `index` of `_ROW_ALIGNMENT`, counted from 1."""
    return index * _ROW_ALIGNMENT


def _unaligned(index: int) -> int:
    """The number `index`, counted from 1, among those that `_ROW_ALIGNMENT` does not divide."""
    return index + (index - 1) // (_ROW_ALIGNMENT - 1)


def _binaries(calls: Callable[[int], Sequence[KernelCall]], rows_of: Callable[[int], int], index: int) -> Hashable:
    return tuple(map(binary_of, calls(rows_of(index))))


def steps(function: Callable[[int], Hashable], least: int, most: int) -> Iterator[int]:
    """One integer per value of a function that never returns to a value it has left."""
    first, last = function(least), function(most)
    yield least
    if first != last:
        yield from _between(function, least, first, most, last)
        yield most


def _between(
    function: Callable[[int], Hashable], low: int, at_low: Hashable, high: int, at_high: Hashable
) -> Iterator[int]:
    if high - low < 2:
        return
    middle = (low + high) // 2
    at_middle = function(middle)
    if at_low != at_middle:
        yield from _between(function, low, at_low, middle, at_middle)
        if at_middle != at_high:
            yield middle
    if at_middle != at_high:
        yield from _between(function, middle, at_middle, high, at_high)


def with_gradients(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call a function without gradients; if grad mode is on and an input needs one, call it again and compute them.

    Inputs are the tensors among the arguments and the parameters of a module. The gradients are dropped.
    """
    with torch.no_grad():
        function(*arguments, **named)
    parameters = function.parameters() if isinstance(function, torch.nn.Module) else ()
    leaves = [tensor for tensor in (*tree_leaves((arguments, named)), *parameters) if _needs_gradient(tensor)]
    if leaves and torch.is_grad_enabled():
        outputs = [output for output in tree_leaves(function(*arguments, **named)) if _needs_gradient(output)]
        torch.autograd.grad(outputs, leaves, list(map(torch.ones_like, outputs)), allow_unused=True)


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


@overload
def warmup(
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int = "cuda",
    *,
    weight_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    gradients: bool = True,
) -> int: ...


@overload
def warmup(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> int: ...


def warmup(*arguments: Any, **named: Any) -> int:  # noqa: D417  (of the overloads)
    """Compile and load all kernels that a call may launch with any number of rows.

    `warmup(normtune.rms_norm_gated, x, weight, z, group_size=64)` makes this call, then loads the kernels that the
    table has for any other number of rows (or tokens), for each launch of the call. So `warmup(model, inputs)` covers a
    whole model. The call is made without gradients, and again with gradients if an argument, or a parameter of a
    module, requires them; these gradients are dropped. Let the same tensors require gradients as in later calls: a
    backward without the weight's gradient is another binary. `warmup(4096, torch.bfloat16)` does this for `rms_norm` on
    contiguous rows of this length, with every choice of gradients.

    Later calls like the example compile and load nothing, so they may come first in a CUDA graph capture or in a
    server's first request. They may differ in the number of rows only, not in other sizes, dtypes, options (eps: only
    whether it is subnormal), in whether pointers are multiples of 16 bytes, and in the powers of two up to 16 that
    divide strides between rows. Call it again after `normtune.use_table`, which also drops kept launches.

    Args:
        function: a function of this package, a module, or any function that calls them, with tensors on a GPU.
        arguments, named: of the example, with at least one row, or two if rows are not contiguous. The function's
            writes in place are made.
        hidden: length of a row, 1 to 65536.
        dtype: of x: bfloat16, float16 or float32.
        device: a CUDA GPU.
        weight_dtype: of the weight; by default x's.
        batch_invariant: as in `rms_norm`.
        gradients: whether to include the backward.

    Returns:
        Number of distinct kernel calls that are ready.

    Raises:
        TypeError: the function raises it for the example.
        ValueError: an argument is wrong, or the example launched no kernel of this package.
        NormtuneError: torch sees no GPU.
    """
    if not arguments or not callable(arguments[0]):
        return _of_rms_norm(*arguments, **named)
    ready = load_all(partial(with_gradients, *arguments, **named))
    if not ready:
        name = getattr(arguments[0], "__name__", type(arguments[0]).__name__)
        raise ValueError(f"{name} launched no kernel of normtune: expected tensors on a GPU that its kernels take")
    return ready


def _of_rms_norm(
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int = "cuda",
    *,
    weight_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    gradients: bool = True,
) -> int:
    most, dtypes = CALLS["gemma"].operation.forward.max_hidden, CALLS["gemma"].operation.dtypes
    if not isinstance(hidden, int) or not 1 <= hidden <= most:
        raise ValueError(f"hidden is {hidden!r}: expected an integer from 1 to {most}, or the function of an example")
    if dtype not in dtypes:
        raise ValueError(f"dtype is {dtype!r}: expected {', '.join(map(str, dtypes))}")
    if weight_dtype not in (None, dtype, torch.float32):
        raise ValueError(f"weight_dtype is {weight_dtype!r}: expected {dtype} or torch.float32")
    gpu = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if gpu.type != "cuda":
        raise ValueError(f"device is {gpu}: expected a CUDA GPU")
    if not torch.cuda.is_available():
        raise NormtuneError(f"device is {gpu}, but torch sees no GPU here: `normtune doctor` says why")

    def calls() -> None:
        for is_trained in (False, True) if gradients else (False,):
            x = torch.ones(1, hidden, dtype=dtype, device=gpu, requires_grad=gradients)
            weight = torch.ones(hidden, dtype=weight_dtype or dtype, device=gpu, requires_grad=is_trained)
            with torch.set_grad_enabled(gradients):
                with_gradients(rms_norm, x, weight, batch_invariant=batch_invariant)

    return load_all(calls)
