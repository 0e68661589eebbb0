"""The switch of the batch-invariant mode, in which a row has the same bits in every batch.

In: NORMTUNE_BATCH_INVARIANT, `use_batch_invariant`, `batch_invariant`. Out: `is_batch_invariant`, for calls without an
argument of that name. In this mode `dispatch` looks up other functions of the table, and `well_aligned` copies inputs
whose layout would change the order of a sum.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from normtune.errors import UsageError
from normtune.kernels.alignment import alignment_of

VARIABLE = "NORMTUNE_BATCH_INVARIANT"
# Bytes. A pointer with less alignment is read in narrower accesses, which sum a row in another order.
_POINTER_BYTES = 16

_here: ContextVar[bool | None] = ContextVar("normtune_batch_invariant", default=None)
_process: bool | None = None
# Whether the mode was on before in this process; functions that were compiled until then need not know it.
_was_on = False
# The value of the variable once it was read; not in `_process`, so that reading it cannot undo `use_batch_invariant`.
_environment: bool | None = None


def use_batch_invariant(enabled: bool | None = True) -> None:
    """Turn the batch-invariant mode on or off for all threads of this process.

    In this mode a row of y, rstd or dx has the same bits whatever other rows are in the batch: the order in which a row
    is summed depends on the hidden size and the dtype, never on the number of rows. The weight gradient is a sum over
    all rows, so it always depends on the batch.

    Args:
        enabled: True or False; None, the initial state, for the value of NORMTUNE_BATCH_INVARIANT.

    Raises:
        TypeError: `enabled` is something else.
    """
    global _process, _environment, _was_on
    if enabled is not None:
        _check(enabled)
    _process, _environment, _was_on = enabled, None, _was_on or bool(enabled)


@contextmanager
def batch_invariant(enabled: bool = True) -> Iterator[None]:
    """Turn the batch-invariant mode on or off for calls inside of a `with`, in this thread or task only.

    A backward uses the mode of its forward, in whatever thread it runs. A forward that activation checkpointing
    recomputes runs in another thread: use the argument of `rms_norm`, or `use_batch_invariant`. `torch.compile` cannot
    trace this `with`: put it around the call of the compiled function.

    Args:
        enabled: True or False.

    Raises:
        TypeError: `enabled` is something else.
    """
    global _was_on
    _check(enabled)
    _was_on = _was_on or enabled
    token = _here.set(enabled)
    try:
        yield
    finally:
        _here.reset(token)


def is_batch_invariant() -> bool:
    """Whether the mode is on in this thread or task.

    Raises:
        UsageError: NORMTUNE_BATCH_INVARIANT decides, and is neither 0 nor 1.
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


def was_on() -> bool:
    """Whether the mode is, or was, on in any thread: compilers guard it, as they cannot guard a context variable."""
    return _was_on or _of_environment()


def well_aligned(x: Tensor) -> Tensor:
    """The tensor, or a copy if the compiler could prove less about its alignment than about that of a new tensor.

    A view may begin at any address and have any row stride. With less alignment the compiler distributes the elements
    of a row over other threads, which sum it in another order.

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


# Compilers call it instead of tracing it: the variable is read once.
_of_environment._dynamo_marked_constant = True  # type: ignore[attr-defined]
