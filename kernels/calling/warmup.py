"""Loads every binary that an operation may launch at one hidden size, ahead of the first call.

In: an operation, hidden size, dtype, GPU. Out: the binaries, compiled and loaded. A table's config changes at its
thresholds. Between two of them there is one config, and as rows grow its binary changes in one direction only, so that
bisection finds each binary (`row_counts`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor

from normtune.kernels.call import KernelCall
from normtune.kernels.calling import dispatch
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.operation import Operation
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem


def load(
    operation: Operation,
    hidden: int,
    dtype: torch.dtype,
    device: torch.device | str | int,
    weight_dtype: torch.dtype | None,
    batch_invariant: bool | None,
    gradients: bool,
) -> int:
    """Compile and load all that an operation and its gradients may launch at one hidden size.

    Args:
        operation: that is called.
        hidden: length of a row.
        dtype: of rows, one that the kernels take.
        device: a CUDA GPU.
        weight_dtype: of tensors that may be float32 instead; None for `dtype`.
        batch_invariant: the mode; None for the one that is on.
        gradients: include the backward.

    Returns:
        Number of distinct kernel calls that are ready.

    Raises:
        ValueError: an argument is wrong.
    """
    most = operation.forward.max_hidden
    if not isinstance(hidden, int) or not 1 <= hidden <= most:
        raise ValueError(f"hidden is {hidden!r}: expected an integer from 1 to {most}")
    if dtype not in operation.dtypes:
        raise ValueError(f"dtype is {dtype!r}: expected {', '.join(map(str, operation.dtypes))}")
    if weight_dtype not in (None, dtype, torch.float32):
        raise ValueError(f"weight_dtype is {weight_dtype!r}: expected {dtype} or torch.float32")
    gpu = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if gpu.type != "cuda":
        raise ValueError(f"device is {gpu}: expected a CUDA GPU")
    mode = is_batch_invariant() if batch_invariant is None else batch_invariant
    ready = set()
    for spec in (operation.forward, *((operation.backward,) if gradients and operation.backward else ())):
        for variant in operation.variants[spec.name]:
            problem = Problem(spec.name, 1, hidden, operation.dtypes[dtype], variant)
            tensors = _stand_ins(spec, problem, gpu, weight_dtype)
            for rows, calls in row_counts(spec, problem, tensors, mode):
                dispatch.prepared(spec, problem._replace(rows=rows), tensors, spec.scalars, mode)
                ready |= {_binary(call) for call in calls}
    return len(ready)


def row_counts(
    spec: OperatorSpec, problem: Problem, tensors: dict[str, Tensor | None], batch_invariant: bool
) -> Iterator[tuple[int, Sequence[KernelCall]]]:
    """One number of rows, with its kernel calls, per combination of binaries that any number of rows launches.

    Args:
        spec: the operator.
        problem: hidden size, dtype and variant.
        tensors: one row each, by name.
        batch_invariant: the config must not depend on the number of rows.
    """
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(there.values()))
    # Any float32 tensor has the properties of a workspace on which a binary is specialised.
    workspace = torch.empty(1, dtype=torch.float32, device=first.device)

    def calls(rows: int) -> Sequence[KernelCall]:
        launch = dispatch.resolved(spec, problem._replace(rows=rows), first, there.values(), batch_invariant)
        return spec.calls(launch, problem._replace(rows=rows), there, workspace, spec.scalars)

    bounds = dispatch.row_bounds(spec, problem, first)
    for least, beyond in zip(bounds, [*bounds[1:], MAX_ROWS + 1], strict=True):
        for rows in steps(lambda rows: tuple(map(_binary, calls(rows))), least, beyond - 1):
            yield rows, calls(rows)


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


def _binary(call: KernelCall) -> Hashable:
    return call.kernel, tuple(call.options.items())


def _stand_ins(
    spec: OperatorSpec, problem: Problem, place: torch.device, weight_dtype: torch.dtype | None
) -> dict[str, Tensor | None]:
    """Stand-ins for the tensors of a single row, valid in calls of any number of rows."""
    tensors: dict[str, Tensor | None] = {}
    for buffer in spec.buffers(problem):
        dtype = getattr(torch, buffer.dtype)
        if buffer.name in spec.wide_buffers:
            dtype = weight_dtype or dtype
        tensors[buffer.name] = torch.empty(buffer.shape, dtype=dtype, device=place)
    return tensors
