"""Rows of any two strides, and groups of them, in the layout of kernels that read them where they are.

In: a user's tensors (..., hidden), or (..., groups, hidden). Out: views (outer, inner, groups, hidden) with a
contiguous last dimension, all with the same extents; copies as a last resort.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

from torch import Tensor

from normtune.kernels.alignment import alignment_of
from normtune.kernels.calling.layout import POINTER_MASK, readable
from normtune.kernels.calling.operation import COLUMNS, ROWS, Operation


def grouped_rows(
    operation: Operation, given: Mapping[str, Tensor | None], batch_invariant: bool
) -> dict[str, Tensor | None]:
    """The tensors with rows as (outer, inner, groups, hidden).

    Args:
        operation: that is called.
        given: its tensors by name; those with rows have one shape.
        batch_invariant: copy tensors with less alignment than new ones.
    """
    has_groups = any(
        tensor is not None and operation.kinds[name] == COLUMNS and tensor.dim() > 1 for name, tensor in given.items()
    )
    tensors = {
        name: _contiguous_last(readable(name, tensor))
        for name, tensor in given.items()
        if tensor is not None and operation.kinds[name] == ROWS
    }
    leading = next(iter(tensors.values())).shape[: -2 if has_groups else -1]
    # Rows that are a stride apart up to one dimension, and another stride from there on.
    split = next((max(breaks) for tensor in tensors.values() if (breaks := _breaks(tensor, leading))), 0)
    found: dict[str, Tensor | None] = {}
    for name, tensor in tensors.items():
        if not _breaks(tensor, leading) <= {split}:
            tensor = tensor.contiguous()
        view = _as_groups(tensor, leading, split, has_groups)
        if batch_invariant and not _is_settled(view):
            copy = tensor.clone() if tensor.is_contiguous() else tensor.contiguous()
            view = _as_groups(copy, leading, split, has_groups)
        found[name] = view
    return found


def groups_of(tensor: Tensor) -> int:
    """Groups of a row of a tensor for the kernels."""
    return tensor.shape[2] if tensor.dim() == 4 else 1


def with_rows(tensor: Tensor, rows: int) -> Tensor:
    """A tensor for the kernels with another number of rows, if it says how many it has: repeated, never to be read."""
    return tensor[:1, :1].expand(1, rows, -1, -1) if tensor.dim() == 4 else tensor


def _contiguous_last(tensor: Tensor) -> Tensor:
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _breaks(tensor: Tensor, leading: Sequence[int]) -> set[int]:
    """The leading dimensions that begin a new stride."""
    known = [(index, size) for index, size in enumerate(leading) if size > 1]
    return {
        index for (before, _), (index, size) in pairwise(known) if tensor.stride(before) != size * tensor.stride(index)
    }


def _as_groups(tensor: Tensor, leading: Sequence[int], split: int, has_groups: bool) -> Tensor:
    hidden = tensor.shape[-1]
    groups, of_group = (tensor.shape[-2], tensor.stride(-2)) if has_groups else (1, hidden)

    def stride(first: int, last: int) -> int:
        """Of the last dimension that has one; of a new tensor where none has."""
        known = [tensor.stride(index) for index in range(first, last) if leading[index] > 1]
        return known[-1] if known else groups * hidden

    extents = (prod(leading[:split]), prod(leading[split:]), groups, hidden)
    strides = (stride(0, split), stride(split, len(leading)), of_group, 1)
    return tensor.as_strided(extents, strides)


def _is_settled(view: Tensor) -> bool:
    """Whether the compiler can prove as much of its alignment as of a new tensor's."""
    hidden = view.shape[-1]
    return not view.data_ptr() & POINTER_MASK and alignment_of(hidden, *view.stride()[:-1]) == alignment_of(hidden)
