"""Switch of the batch-invariant mode, in which a row has the same bits in every batch.

In: NORMTUNE_BATCH_INVARIANT and the two functions below. Out: `is_batch_invariant`, for calls that do not set the mode
themselves. `dispatch` implements the mode by the config that it looks up, `settled` by the layout of its inputs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from normtune.errors import UsageError
from normtune.kernels.alignment import alignment_of

VARIABLE = "NORMTUNE_BATCH_INVARIANT"
# Alignment of pointers, bytes: below it accesses are narrower and a row's sum takes another order.
_POINTER_BYTES = 16

_here: ContextVar[bool | None] = ContextVar("normtune_batch_invariant", default=None)
_process: bool | None = None
# Value of the variable, once read. Apart from `_process`, so that a reader cannot undo a writer's choice.
_environment: bool | None = None


def use_batch_invariant(enabled: bool | None = True) -> None:
    """Turn the batch-invariant mode on or off for all threads of this process.

    In this mode rows of y, rstd and dx have the same bits for any number of rows and at any index: the order in which a
    row is summed depends on the hidden size and the dtype, never on the number of rows. The weight gradient is a sum
    over all rows and depends on them by nature.

    Args:
        enabled: True or False; None for the value of NORMTUNE_BATCH_INVARIANT, as at the start.

    Raises:
        TypeError: it is something else.
    """
    global _process, _environment
    if enabled is not None:
        _check(enabled)
    _process, _environment = enabled, None


@contextmanager
def batch_invariant(enabled: bool = True) -> Iterator[None]:
    """Turn the batch-invariant mode on or off for the calls inside of a `with`, in this thread or task alone.

    A backward follows its forward in any thread. A recomputed forward, as in activation checkpointing, runs in another
    thread: use the argument of `rms_norm` or `use_batch_invariant` there. `torch.compile` cannot trace this `with`: put
    it around the call of the compiled function.

    Args:
        enabled: True or False.

    Raises:
        TypeError: it is neither.
    """
    _check(enabled)
    token = _here.set(enabled)
    try:
        yield
    finally:
        _here.reset(token)


def is_batch_invariant() -> bool:
    """Whether the mode is on in this thread or task.

    Raises:
        UsageError: NORMTUNE_BATCH_INVARIANT is needed and is neither 0 nor 1.
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
    """The tensor, or a copy with the alignment of any other tensor of this hidden size.

    A view may begin at any row or have any stride between rows. If the compiler can prove less about it than about a
    new tensor, it gives elements to other threads, and a row's sum takes another order.

    Args:
        x: (..., hidden) and contiguous, or (rows, hidden) with a contiguous last dimension.
    """
    if x.data_ptr() % _POINTER_BYTES == 0:
        hidden = x.shape[-1]
        if x.is_contiguous() or alignment_of(hidden, x.stride(0)) == alignment_of(hidden):
            return x
    return x.contiguous() if not x.is_contiguous() else x.clone()


def _check(enabled: object) -> None:
    if enabled is not True and enabled is not False:
        raise TypeError(f"enabled is {enabled!r}: expected True or False")


def _of_environment() -> bool:
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise UsageError(f"{VARIABLE} is {value!r}: expected 1 for the batch-invariant mode, else 0 or nothing")
    return value == "1"
