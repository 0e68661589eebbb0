"""Whether a row shall have the same bits in every batch: the switch of the batch-invariant mode.

In: NORMTUNE_BATCH_INVARIANT and the two functions below. Out: `is_batch_invariant`, asked at each call that does not
say it itself. What the mode does is for `dispatch`, which looks configs up without rows, and for `settled`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from normtune.errors import UsageError
from normtune.kernels.alignment import alignment_of

VARIABLE = "NORMTUNE_BATCH_INVARIANT"
# Pointers are multiples of this many bytes, or accesses are narrower and a row's sum takes another order.
_POINTER_BYTES = 16

_here: ContextVar[bool | None] = ContextVar("normtune_batch_invariant", default=None)
_process: bool | None = None
# What the variable says, once it was asked. Apart from `_process`, so that who asks cannot undo who turns the mode on.
_environment: bool | None = None


def use_batch_invariant(enabled: bool | None = True) -> None:
    """Turn the batch-invariant mode on or off for all threads of this process.

    In this mode rows of y, rstd and dx have the same bits whatever the number of rows and wherever a row stands: the
    launch config depends on the hidden size and the dtype, never on the number of rows. The weight gradient is a sum
    over all rows and depends on them by nature.

    Args:
        enabled: True or False; None for what NORMTUNE_BATCH_INVARIANT says, as at the start.
    """
    global _process, _environment
    _process, _environment = enabled, None


@contextmanager
def batch_invariant(enabled: bool = True) -> Iterator[None]:
    """Turn the batch-invariant mode on or off for the calls inside of a `with`, in this thread or task alone.

    A backward follows its forward, wherever it runs. What a backward computes anew, as activation checkpointing does,
    runs in another thread: use the argument of `rms_norm` or `use_batch_invariant` there. `torch.compile` cannot trace
    this `with`: put it around the call of the compiled function.

    Args:
        enabled: as in `use_batch_invariant`.
    """
    token = _here.set(enabled)
    try:
        yield
    finally:
        _here.reset(token)


def is_batch_invariant() -> bool:
    """Whether the mode is on here.

    Raises:
        UsageError: NORMTUNE_BATCH_INVARIANT is asked and is neither 0 nor 1.
    """
    global _environment
    here = _here.get()
    if here is not None:
        return here
    if _process is not None:
        return _process
    if _environment is None:
        _environment = _of_environment()
    return _environment


def settled(x: Tensor) -> Tensor:
    """The tensor, or a copy of it whose rows lie as those of any other tensor of this hidden size may.

    A view may begin at any row or have any stride between rows. Where the compiler cannot prove as much of them as of a
    tensor that was just made, it gives elements to other threads, and a row's sum takes another order.

    Args:
        x: (..., hidden) and contiguous, or (rows, hidden) with a contiguous last dimension.
    """
    if x.data_ptr() % _POINTER_BYTES == 0:
        hidden = x.shape[-1]
        if x.is_contiguous() or alignment_of(hidden, x.stride(0)) == alignment_of(hidden):
            return x
    return x.contiguous() if not x.is_contiguous() else x.clone()


def _of_environment() -> bool:
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise UsageError(f"{VARIABLE} is {value!r}: expected 1 for the batch-invariant mode, else 0 or nothing")
    return value == "1"
