"""Tensors of a caller that a call writes: dx into dy, outputs into inputs.

In: the tensors of a call, and its launch. Out: whether a backward may write dx into dy, or an error for an input that
cannot take an output; and another version of what is written, so that autograd refuses what was saved of it. The launch
says whether its kernels may write dx into dy (`tiles.reuse`); here is the rest: dy must be memory that a new dx could
have. What else reads dy is known to the caller alone.
"""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from normtune.kernels.calling.layout import PLAIN, POINTER_MASK

# Steps of numpy's search for a common byte, some ms; it finds an answer at once for views that have a stride in common.
_MOST_WORK = 100_000


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
        ValueError: elements share memory, of one of the written tensors or of one of them and another tensor; or
            autograd could not tell that it was written.
    """
    others = dict(read)
    for name, tensor in reversed(written.items()):
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(f"{name} is an inference tensor: expected to be written in torch.inference_mode()")
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
    """Whether each element has a place of its own: each stride is beyond all that the shorter ones reach."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have a byte in common; views of one tensor, as its halves, may lie between each other."""
    start, begin = one.data_ptr(), other.data_ptr()
    has_memory = start and begin
    if not has_memory or start >= begin + span(other) or begin >= start + span(one):
        return False
    import numpy as np

    def described(tensor: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.void]]":
        """An array at the same addresses, also of a GPU: never read."""
        size = tensor.element_size()
        strides = tuple(size * stride for stride in tensor.stride())
        interface = {"data": (tensor.data_ptr(), True), "shape": tuple(tensor.shape), "strides": strides}
        return np.asarray(SimpleNamespace(__array_interface__={**interface, "typestr": f"|V{size}", "version": 3}))

    try:
        return bool(np.shares_memory(described(one), described(other), max_work=_MOST_WORK))
    except np.exceptions.TooHardError:
        return True


def reused(dy: Tensor) -> Tensor:
    """The tensor, with another version: what saved it for a backward then refuses it, as after any change in place."""
    increment_version(dy)
    return dy
