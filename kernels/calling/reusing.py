"""Gradients in the memory of the gradient that they are of: whether a call of a backward may write dx into dy.

In: the tensors of a call, and its launch. Out: yes or no. The launch says whether its kernels may (`tiles.reuse`); here
is the rest: dy must be memory that a new dx could have. What else reads dy is known to the caller alone.
"""

from collections.abc import Iterable

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


def reused(dy: Tensor) -> Tensor:
    """The tensor, with another version: what saved it for a backward then refuses it, as after any change in place."""
    increment_version(dy)
    return dy
