"""Tensors of a caller that a call writes: dx into dy, outputs into inputs.

In: the tensors of a call, and its launch. Out: whether a backward may write dx into dy, or an error for an input that
cannot take an output; and another version of what is written, so that autograd refuses what was saved of it. The launch
says whether its kernels may write dx into dy (`tiles.reuse`); here is the rest: dy must be memory that a new dx could
have. What else reads dy is known to the caller alone.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from normtune.kernels.calling.layout import PLAIN, POINTER_MASK


def is_reusable(dy: Tensor, like: Tensor, others: Iterable[Tensor | None]) -> bool:
    """Whether dx can take the memory of dy.

    Args:
        dy: the gradient of an output, with memory.
        like: of the dtype of dx.
        others: the other tensors that the backward reads.
    """
    if (
        dy.dtype != like.dtype
        or dy.requires_grad
        or type(dy) not in PLAIN
        or not dy.is_contiguous()
        or dy.data_ptr() & POINTER_MASK  # a new tensor is aligned, and binaries are specialised on that
        or dy.is_neg()
        or dy.is_inference()
    ):
        return False
    memory = dy.untyped_storage().data_ptr()
    return memory != 0 and all(other is None or other.untyped_storage().data_ptr() != memory for other in others)


def claim(written: Mapping[str, Tensor], read: Mapping[str, Tensor | None]) -> None:
    """Check that tensors can be written by a call, as torch does, and give them another version.

    Below autograd, where torch's dispatcher calls operators, torch's own copies leave the version as it is.

    Args:
        written: by name.
        read: the other tensors of the call.

    Raises:
        ValueError: the memory of a written tensor does not hold its values, or shares elements with itself or another
            tensor; or autograd could not tell that it was written.
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
    increment_version(written.values())


def span(tensor: Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last one; 0 without elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _is_apart(tensor: Tensor) -> bool:
    """Whether no two elements share memory: each stride exceeds the extent of all shorter ones."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return tensor.numel() == 0
        reach += (size - 1) * stride
    return True


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors with elements have a byte in common.

    Exact for rows that are one stride apart, the same in both, as halves of a projection or alternating rows are; other
    views that lie between each other count as if they had.
    """
    if not (one.numel() and other.numel() and one.data_ptr() and other.data_ptr()):
        return False
    distance = other.data_ptr() - one.data_ptr()
    (count, stride, width), (others, step, size) = _chunks(one), _chunks(other)
    if 0 not in (stride, step) and stride != step:
        (count, width), (others, size), stride = (1, span(one)), (1, span(other)), 1
    stride = max(stride, step, 1)
    # Chunk i + k of the other begins k strides and the distance behind chunk i of the one, for k from 1 - count to
    # others - 1: beyond -size, and before width, they have a byte in common.
    least, most = (-size - distance) // stride + 1, -((distance - width) // stride) - 1
    return max(least, 1 - count) <= min(most, others - 1)


def _chunks(tensor: Tensor) -> tuple[int, int, int]:
    """How many chunks of adjacent bytes a tensor has, a stride apart, the stride (0 for one), and the bytes of each.

    All that a tensor of several strides spans counts as one chunk.
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
    """The tensor with its version bumped: autograd refuses it where it was saved, as after any in-place change."""
    increment_version(dy)
    return dy
