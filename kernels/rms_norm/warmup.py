"""Loads every binary that RMSNorm may launch at one hidden size, ahead of the first call.

In: hidden size, dtype, GPU. Out: the binaries, compiled and loaded. A table's config changes at its thresholds. Between
two of them there is one config, and as rows grow its binary changes in one direction only, so that bisection finds each
binary (`row_counts`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor

from normtune.kernels.call import KernelCall
from normtune.kernels.calling import dispatch
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.arguments import DTYPES
from normtune.kernels.rms_norm.spec import MAX_HIDDEN, rms_norm_backward, rms_norm_forward


def warmup(
    hidden: int,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | int = "cuda",
    *,
    weight_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    gradients: bool = True,
) -> int:
    """Compile and load all that `rms_norm` and its gradients may launch at one hidden size, for any number of rows.

    Later calls on contiguous tensors of this hidden size and these dtypes compile and load nothing, so they may come
    first in a CUDA graph capture or in a server's first request. Call it again after `normtune.use_table`.

    Args:
        hidden: length of a row, 1 to 65536.
        dtype: of x: bfloat16, float16 or float32.
        device: a CUDA GPU.
        weight_dtype: of the weight; by default x's.
        batch_invariant: as in `rms_norm`.
        gradients: include the backward.

    Returns:
        Number of distinct kernel calls that are ready.

    Raises:
        ValueError: an argument is wrong.
    """
    if not isinstance(hidden, int) or not 1 <= hidden <= MAX_HIDDEN:
        raise ValueError(f"hidden is {hidden!r}: expected an integer from 1 to {MAX_HIDDEN}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}: expected {', '.join(map(str, DTYPES))}")
    if weight_dtype not in (None, dtype, torch.float32):
        raise ValueError(f"weight_dtype is {weight_dtype!r}: expected {dtype} or torch.float32")
    gpu = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if gpu.type != "cuda":
        raise ValueError(f"device is {gpu}: expected a CUDA GPU")
    mode = is_batch_invariant() if batch_invariant is None else batch_invariant
    specs = (rms_norm_forward, *((rms_norm_backward,) if gradients else ()))
    ready = set()
    for spec in specs:
        for variant in spec.variants:
            problem = Problem(spec.name, 1, hidden, DTYPES[dtype], variant)
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
        if buffer.name in ("weight", "dweight"):
            dtype = weight_dtype or dtype
        tensors[buffer.name] = torch.empty(buffer.shape, dtype=dtype, device=place)
    return tensors
