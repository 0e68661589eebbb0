"""Checks of a caller's tensors that a call writes: outputs into inputs, dx into dy.

In: the tensors of a call. Out: whether dx may be written into dy, or an error for an input that cannot take an output.
Callers increment the version of a written tensor, so that autograd refuses it where it was saved. Whether the kernels
of a launch permit dx in dy is decided by `OperatorSpec.may_reuse_dy`; only the caller knows what else reads dy.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from normtune.kernels.calling.layout import PLAIN_TYPES, POINTER_MASK


def is_reusable(dy: Tensor, like: Tensor, others: Iterable[Tensor | None]) -> bool:
    """Whether dx, of the dtype of `like`, can be written into the memory of dy, given what else the backward reads."""
    if (
        dy.dtype != like.dtype
        or dy.requires_grad
        or type(dy) not in PLAIN_TYPES
        or not dy.is_contiguous()
        or dy.data_ptr() & POINTER_MASK  # a new tensor is aligned, and binaries are specialised on that
        or dy.is_neg()
        or dy.is_inference()
    ):
        return False
    memory = dy.untyped_storage().data_ptr()
    return memory != 0 and all(other is None or other.untyped_storage().data_ptr() != memory for other in others)


def check_written(written: Mapping[str, Tensor], read: Mapping[str, Tensor | None]) -> None:
    """Check that a call may write tensors, as torch's own in-place operations do.

    Args:
        written: the tensors that the call writes, by name.
        read: its other tensors.

    Raises:
        ValueError: the memory of a written tensor does not hold its values, or is shared with another tensor or between
            its own elements; or it is an inference tensor, whose version cannot be incremented.
    """
    others = dict(read)
    for name, tensor in reversed(list(written.items())):
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(f"{name} is an inference tensor: expected to be written in torch.inference_mode()")
        if tensor.is_neg() or tensor._is_zerotensor():
            expected = "expected one whose memory holds its values, as results are written there"
            raise ValueError(f"{name} is a negated or zero tensor without memory of its own: {expected}")
        if not _is_apart(tensor):
            expected = "expected a place in memory for each element, as results are written there"
            raise ValueError(f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: {expected}")
        for other, one in others.items():
            if one is not None and _share_memory(tensor, one):
                expected = f"expected tensors apart, as results are written into {name}"
                raise ValueError(f"{name} and {other} share memory: {expected}")
        others[name] = tensor


def span(tensor: Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last one; 0 without elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _is_apart(tensor: Tensor) -> bool:
    """Whether no two elements share memory: each stride exceeds the span of all smaller ones."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() == 0
        reach += (size - 1) * stride
    return True


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have a byte in common.

    Exact if the rows of both are one stride apart, the same in both, as in halves of a projection or alternating rows.
    Other views whose spans overlap count as sharing memory.
    """
    if not (one.numel() and other.numel() and one.data_ptr() and other.data_ptr()):
        return False
    distance = other.data_ptr() - one.data_ptr()
    (count, stride, width), (others, step, size) = _chunks(one), _chunks(other)
    if 0 not in (stride, step) and stride != step:
        (count, width), (others, size), stride = (1, span(one)), (1, span(other)), 1
    stride = max(stride, step, 1)
    # Chunk i + k of `other` begins distance + k * stride bytes after chunk i of `one`, for k from 1 - count to
    # others - 1. They have a byte in common if that is more than -size and less than width.
    least, most = (-size - distance) // stride + 1, -((distance - width) // stride) - 1
    return max(least, 1 - count) <= min(most, others - 1)


def _chunks(tensor: Tensor) -> tuple[int, int, int]:
    """A tensor as chunks of adjacent bytes: their number, the stride between them (0 for one), and the bytes of each.

    If the strides differ, its whole span counts as one chunk.
    """
    count, stride, width = 1, 0, tensor.element_size()
    for elements, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        step = elements * tensor.element_size()
        if extent == 1 or not step:
            continue
        if count == 1:
            count, stride, width = (1, 0, width * extent) if step == width else (extent, step, width)
        elif step == count * stride:
            count *= extent
        else:
            return 1, 0, span(tensor)
    return count, stride, width


def reused(dy: Tensor) -> Tensor:
    """The tensor with an incremented version, so that autograd refuses it where it was saved."""
    increment_version(dy)
    return dy
