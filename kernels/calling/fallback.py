"""The formula of an operation, for tensors that the kernels do not take.

In: tensors on any device, of at most 64 bits. Out: outputs or gradients without a graph. Rows are computed some at a
time, since all of them in float32 may not fit into memory. In the batch-invariant mode each row is computed alone and
contiguous: torch divides a single long row among a CPU's threads, and its vector and scalar instructions round silu
differently.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.operation import Operation
from normtune.kernels.problem import HIDDEN, ROWS, ROWS_HIDDEN

# 256 MB in float32.
_ELEMENTS_AT_ONCE = 1 << 26


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a formula computes: float64 for a float64 x, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def machine_epsilon(x: Tensor) -> float:
    """The machine epsilon of the compute dtype, as in torch's own normalizations."""
    return torch.finfo(compute_dtype(x)).eps


def sum_of_rows(terms: Tensor, dims: int) -> Tensor:
    """The sum over all dimensions but the last ones, which may be empty."""
    return terms.reshape(prod(terms.shape[:-dims]), *terms.shape[-dims:]).sum(0)


def transposed(x: Tensor) -> Tensor:
    """The transpose of a matrix of 8-bit elements, as a copy."""
    return x.view(torch.uint8).t().clone(memory_format=torch.contiguous_format).view(x.dtype)


def keeps_subnormal(scalars: Mapping[str, float]) -> Mapping[str, Any] | None:
    """Compiler options of kernels whose `eps` may be subnormal: Triton flushes such numbers to zero by default."""
    is_subnormal = scalars["eps"] < torch.finfo(torch.float32).tiny
    return {"enable_reflect_ftz": False} if is_subnormal and not torch.version.hip else None


def forward(
    operation: Operation, tensors: Sequence[Tensor | None], scalars: Sequence[float], batch_invariant: bool
) -> list[Tensor]:
    """The outputs by the formula; with a backward (..., hidden) contiguous, and factors (rows,)."""
    outputs: list[Tensor] = []
    if not operation.backward:  # of all rows at once, since an output may depend on them all
        with torch.no_grad():
            return [*operation.formula.forward(*tensors, *scalars)]
    x = tensors[0]
    assert x is not None
    dims = _dims(operation, operation.inputs, tensors)
    for rows, pieces in _pieces(operation, operation.inputs, tensors, x, dims, batch_invariant):
        _write(outputs, operation.formula.forward(*pieces, *scalars), rows, x.shape[:-dims])
    return [
        out.view(x.shape if operation.axes[name] == ROWS_HIDDEN else -1)
        for name, out in zip(operation.outputs, outputs, strict=True)
    ]


def backward(
    operation: Operation,
    gradients: Sequence[Tensor],
    saved: Sequence[Tensor | None],
    scalars: Sequence[float],
    batch_invariant: bool,
) -> list[Tensor | None]:
    """The gradients by the formula: (..., hidden) contiguous, those of weights in their dtype; factors are (rows,)."""
    x = gradients[0]
    names = (*operation.incoming, *operation.saved)
    columns = dict(zip(names, (*gradients, *saved), strict=True))
    wide = [_widened(operation, name, tensor, x) for name, tensor in columns.items()]
    axes = [operation.axes[name] for name in operation.gradients]
    of_rows: list[Tensor] = []
    sums: dict[int, Tensor | None] = {}
    dims = _dims(operation, names, wide)
    for rows, pieces in _pieces(operation, names, wide, x, dims, batch_invariant):
        parts = operation.formula.backward(*pieces, *scalars)
        _write(of_rows, [part for part, of in zip(parts, axes, strict=True) if of != HIDDEN], rows, x.shape[:-dims])
        for index, (part, of) in enumerate(zip(parts, axes, strict=True)):
            if of == HIDDEN:
                before = sums.get(index)
                sums[index] = part if before is None or part is None else before + part
    row_gradients = iter(of_rows)
    results: list[Tensor | None] = []
    for index, name in enumerate(operation.gradients):
        total, source = sums.get(index), columns.get(name[1:])
        if axes[index] != HIDDEN:
            results.append(next(row_gradients).view(x.shape))
        else:
            results.append(None if total is None or source is None else total.to(source.dtype))
    return results


def _widened(operation: Operation, name: str, tensor: Tensor | None, x: Tensor) -> Tensor | None:
    """A weight in the compute dtype, so that the sum of its gradient over pieces is rounded once."""
    return tensor.to(compute_dtype(x)) if tensor is not None and operation.axes[name] == HIDDEN else tensor


def _dims(operation: Operation, names: Sequence[str], tensors: Sequence[Tensor | None]) -> int:
    """Number of last dimensions that are not divided: hidden, and groups if each group has a weight of its own."""
    return max(
        tensor.dim() if tensor is not None and operation.axes[name] == HIDDEN else 1
        for name, tensor in zip(names, tensors, strict=True)
    )


def _pieces(
    operation: Operation,
    names: Sequence[str],
    tensors: Sequence[Tensor | None],
    x: Tensor,
    dims: int,
    batch_invariant: bool,
) -> Iterator[tuple[slice, list[Tensor | None]]]:
    """Slices of rows, and the tensors for each: these rows, and whole weights. One empty slice if there are no rows."""
    rows, row = x.shape[:-dims].numel(), x.shape[-dims:]
    shapes = {ROWS_HIDDEN: (rows, *row), ROWS: (rows, *row[:-1])}
    flat = [
        tensor if tensor is None or operation.axes[name] == HIDDEN else tensor.reshape(shapes[operation.axes[name]])
        for name, tensor in zip(names, tensors, strict=True)
    ]
    if batch_invariant:
        flat = [tensor if tensor is None else tensor.contiguous() for tensor in flat]
    at_once = 1 if batch_invariant else max(1, _ELEMENTS_AT_ONCE // max(1, row.numel()))
    for first in range(0, max(1, rows), at_once):
        part = slice(first, min(first + at_once, rows))
        yield (
            part,
            [
                tensor if tensor is None or operation.axes[name] == HIDDEN else tensor[part]
                for name, tensor in zip(names, flat, strict=True)
            ],
        )


def _write(outputs: list[Tensor], parts: Sequence[Tensor | None], rows: slice, shape: torch.Size) -> None:
    """Write the rows of a piece into the outputs, which the first piece creates."""
    present = [part for part in parts if part is not None]
    if not outputs:
        outputs += [part.new_empty((shape.numel(), *part.shape[1:])) for part in present]
    for out, part in zip(outputs, present, strict=True):
        out[rows] = part
