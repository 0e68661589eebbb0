"""Tensors in the layout of the kernels, copied only where that is necessary.

In: a user's tensors. Out: matrices and weights for the kernels, and the properties on which launches depend. For
operations on groups the matrices are views (outer, inner, groups, hidden) of equal extents, contiguous in the last
dimension only.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, overload

import torch
import triton
from torch import Tensor

from normtune.kernels.alignment import alignment_of
from normtune.kernels.calling.arguments import is_for_kernels, tensor_text
from normtune.kernels.calling.batch_invariant import well_aligned
from normtune.kernels.calling.dispatch import target_of
from normtune.kernels.calling.operation import Operation
from normtune.kernels.problem import HIDDEN, ROWS, ROWS_HIDDEN

# Interpreted kernels read the memory of CPUs.
INTERPRETED: bool = triton.knobs.runtime.interpret
# Types of tensors that intercept nothing.
PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
# Binaries are specialised on pointers that are multiples of 16 bytes.
POINTER_MASK = 15


def has_memory(tensor: Tensor) -> bool:
    """Whether the tensor has a pointer; batched gradients, for example, have none."""
    try:
        tensor.data_ptr()
    except RuntimeError:
        return False
    return True


def takes_kernels(operation: Operation, x: Tensor) -> bool:
    """Whether the kernels run on the device of a checked x and take its dtype, hidden size and number of rows."""
    has_kernels = x.is_cuda or (INTERPRETED and x.device.type == "cpu")
    return has_kernels and is_for_kernels(operation, x) and operation.is_for_target(target_of(x))


def check_invariant(name: str, x: Tensor, kernels_take: str) -> None:
    """Raise ValueError if x needs kernels in the batch-invariant mode: on a CPU the formula keeps the bits, too."""
    if x.device.type != "cpu" and not x.is_meta:
        raise ValueError(f"{name} is {tensor_text(x)}: the batch-invariant mode has {kernels_take}")


def is_uncopied(tensor: Tensor | None, launched: Tensor | None) -> bool:
    """Whether a launched tensor is the caller's memory, not a copy or the ones that replace a missing tensor."""
    if tensor is None or launched is None:
        return launched is tensor
    return launched.data_ptr() == tensor.data_ptr()


def copies_of(
    operation: Operation,
    tensors: Mapping[str, Tensor | None],
    launched: Mapping[str, Tensor | None],
    must_match: bool,
) -> tuple[int, ...] | None:
    """The indices of tensors that were copied for their strides alone; None if others differ, or any if `must_match`.

    Tensors of groups share a layout, so that whether one is copied depends on the others.
    """
    copies = []
    for index, (name, tensor) in enumerate(tensors.items()):
        copy = launched[name]
        if is_uncopied(tensor, copy):
            continue
        if must_match or operation.is_grouped or tensor is None or copy is None:
            return None
        if tensor.is_contiguous() or tensor.dtype != copy.dtype:
            return None
        copies.append(index)
    return tuple(copies)


@overload
def new_like(tensor: Tensor) -> Tensor: ...


@overload
def new_like(tensor: Tensor | None) -> Tensor | None: ...


def new_like(tensor: Tensor | None) -> Tensor | None:
    """An empty contiguous tensor of the same shape, dtype and device; None for None."""
    return None if tensor is None else torch.empty_like(tensor, memory_format=torch.contiguous_format)


def as_rows(tensor: Tensor | None) -> Tensor | None:
    """(rows, hidden) of contiguous (..., hidden); a tensor of one dimension and None are returned unchanged."""
    return tensor if tensor is None or tensor.dim() == 1 else tensor.view(-1, tensor.shape[-1])


def traits(tensor: Tensor | None) -> Any:
    """The properties of a tensor, besides the problem, on which a binary and its scalars depend."""
    if tensor is None:
        return None
    return tensor.stride(), tensor.dtype, tensor.get_device(), tensor.data_ptr() & POINTER_MASK


def laid_out(
    operation: Operation, tensors: Mapping[str, Tensor | None], x: Tensor, batch_invariant: bool
) -> dict[str, Tensor | None]:
    """The tensors in the layout of the kernels; a missing one is replaced by ones."""
    converted: dict[str, Tensor | None] = {}
    if operation.is_grouped:
        converted = dict.fromkeys(tensors) | grouped_rows(operation, tensors, batch_invariant)
    for name, tensor in tensors.items():
        axes = operation.axes[name]
        if tensor is None:
            converted[name] = x.new_ones(x.shape[-1])
        elif axes == HIDDEN:
            converted[name] = columns_of(name, tensor, x)
        elif axes == ROWS_HIDDEN:
            converted[name] = converted.get(name) if operation.is_grouped else rows_of(name, tensor, batch_invariant)
        elif axes == ROWS:
            flat = tensor.reshape(-1)
            converted[name] = (flat.to(torch.float32) if flat.is_floating_point() else flat).contiguous()
        elif tensor.dim() > 1:
            is_taken = tensor.dtype in (x.dtype, torch.float32)
            converted[name] = rows_of(name, tensor if is_taken else tensor.float(), batch_invariant)
        else:
            converted[name] = readable(name, tensor)
    return converted


def rows_of(name: str, tensor: Tensor, batch_invariant: bool) -> Tensor:
    """(rows, hidden) of (..., hidden); a copy if rows have no single stride, or their elements are not contiguous."""
    tensor = readable(name, tensor)
    hidden = tensor.shape[-1]
    if tensor.is_contiguous():  # gives a single row, whose stride may be anything, that of a new tensor
        tensor = tensor.view(-1).view(-1, hidden)
    else:
        tensor = tensor.reshape(-1, hidden)
        if hidden > 1 and tensor.stride(1) != 1:
            tensor = tensor.contiguous()
    return well_aligned(tensor) if batch_invariant else tensor


def columns_of(name: str, tensor: Tensor, x: Tensor) -> Tensor:
    """A tensor (hidden,) made contiguous, and float32 unless it has the dtype of x."""
    tensor = readable(name, tensor)
    return (tensor if tensor.dtype in (x.dtype, torch.float32) else tensor.float()).contiguous()


def readable(name: str, tensor: Tensor) -> Tensor:
    """The tensor, or a copy if its memory does not hold its values (lazy negation, zero tensors).

    Raises:
        ValueError: its memory was freed.
    """
    if tensor._is_zerotensor():
        return torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    tensor = tensor.resolve_neg()
    if tensor.numel() and not tensor.data_ptr():
        raise ValueError(f"{name} has no memory: its storage was resized to nothing, as by FSDP after a forward")
    return tensor


def grouped_rows(
    operation: Operation, by_name: Mapping[str, Tensor | None], batch_invariant: bool
) -> dict[str, Tensor | None]:
    """The tensors with rows, which have equal shapes, as (outer, inner, groups, hidden).

    In the batch-invariant mode those with less alignment than new tensors are copied.
    """
    has_groups = any(
        tensor is not None and operation.axes[name] == HIDDEN and tensor.dim() > 1 for name, tensor in by_name.items()
    )
    tensors = {
        name: _contiguous_last(readable(name, tensor))
        for name, tensor in by_name.items()
        if tensor is not None and operation.axes[name] == ROWS_HIDDEN
    }
    leading = next(iter(tensors.values())).shape[: -2 if has_groups else -1]
    # The dimension at which the stride between rows changes, which it may do once.
    split = next((max(breaks) for tensor in tensors.values() if (breaks := _breaks(tensor, leading))), 0)
    views: dict[str, Tensor | None] = {}
    for name, tensor in tensors.items():
        if not _breaks(tensor, leading) <= {split}:
            tensor = tensor.contiguous()
        view = _as_groups(tensor, leading, split, has_groups)
        if batch_invariant and not _is_well_aligned(view):
            copy = tensor.clone() if tensor.is_contiguous() else tensor.contiguous()
            view = _as_groups(copy, leading, split, has_groups)
        views[name] = view
    return views


def groups_of(tensor: Tensor) -> int:
    """Number of groups in a row of a tensor for the kernels."""
    return tensor.shape[2] if tensor.dim() == 4 else 1


def with_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor for the kernels that claims another number of rows, by repeating one; it must not be read."""
    return tensor[:1, :1].expand(1, rows, -1, -1) if tensor.dim() == 4 else tensor


def _contiguous_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _breaks(tensor: Tensor, leading: Sequence[int]) -> set[int]:
    """The leading dimensions at which the stride between rows changes."""
    dimensions = [(index, size) for index, size in enumerate(leading) if size > 1]
    return {
        index
        for (before, _), (index, size) in pairwise(dimensions)
        if tensor.stride(before) != size * tensor.stride(index)
    }


def _as_groups(tensor: Tensor, leading: Sequence[int], split: int, has_groups: bool) -> Tensor:
    hidden = tensor.shape[-1]
    groups, of_group = (tensor.shape[-2], tensor.stride(-2)) if has_groups else (1, hidden)

    def stride(first: int, last: int) -> int:
        """The stride of the last dimension with several elements; that of a new tensor if there is none."""
        strides = [tensor.stride(index) for index in range(first, last) if leading[index] > 1]
        return strides[-1] if strides else groups * hidden

    extents = (prod(leading[:split]), prod(leading[split:]), groups, hidden)
    strides = (stride(0, split), stride(split, len(leading)), of_group, 1)
    return tensor.as_strided(extents, strides)


def _is_well_aligned(view: Tensor) -> bool:
    """Whether the compiler can prove as much about the alignment of a view as about that of a new tensor."""
    hidden = view.shape[-1]
    return not view.data_ptr() & POINTER_MASK and alignment_of(hidden, *view.stride()[:-1]) == alignment_of(hidden)
