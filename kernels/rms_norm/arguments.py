"""Checks of RMSNorm's arguments.

In: a user's arguments. Out: nothing, or TypeError or ValueError with the argument, its value and the expected one.
Reads properties of tensors, never their memory, so it also serves tensors without memory.
"""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.problem import ITEMSIZE, MAX_ROWS
from normtune.kernels.rms_norm.spec import MAX_HIDDEN

DTYPES = {getattr(torch, name): name for name in ITEMSIZE}
_FLOATS = (*DTYPES, torch.float64)
_LARGEST = torch.finfo(torch.float32).max


def check(x: Any, weight: Any, eps: Any, offset: Any) -> None:
    """Check the arguments of one call.

    Args:
        x: (..., hidden), dense, of a floating-point dtype of 16 to 64 bits.
        weight: (hidden,) of such a dtype on x's device, or None.
        eps: a finite number.
        offset: a finite number.

    Raises:
        TypeError: x or weight is not a tensor, or eps or offset not a number.
        ValueError: another property is wrong.
    """
    _check_tensor("x", x)
    if x.dim() == 0:
        raise ValueError("x has no dimension: expected (..., hidden)")
    hidden = x.shape[-1]
    if weight is not None:
        _check_tensor("weight", weight)
        if weight.dim() != 1 or weight.shape[0] != hidden:
            raise ValueError(f"weight has shape {tuple(weight.shape)}: expected ({hidden},), the last dimension of x")
        if weight.device != x.device:
            raise ValueError(f"weight is on {weight.device} and x on {x.device}: expected one device")
    number("eps", eps)
    number("offset", offset)


def number(name: str, value: Any) -> float:
    """A finite number of float32's range as a float; a tensor is refused, as it could change later.

    Raises:
        TypeError: not a number.
        ValueError: not finite.
    """
    if not isinstance(value, Real | torch.SymFloat):
        raise TypeError(f"{name} is {value!r}: expected a number")
    try:
        converted = float(value)
    except OverflowError:
        converted = float("inf")
    if not -_LARGEST <= converted <= _LARGEST:  # also refuses NaN
        raise ValueError(f"{name} is {value!r}: expected a finite number")
    return converted


def is_for_kernels(x: Tensor) -> bool:
    """Whether the kernels take a checked x on a GPU, by its dtype and the length and number of its rows."""
    hidden = x.shape[-1]
    return x.dtype in DTYPES and 1 <= hidden <= MAX_HIDDEN and x.numel() // hidden <= MAX_ROWS


def check_kind(name: str, tensor: Any) -> None:
    """Raise TypeError for anything but a tensor and ValueError for nested ones, whatever their type intercepts."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {tensor!r}: expected a tensor")
    # A jagged tensor knows torch's own function by its name, and would call it with other arguments.
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_nested:
            raise ValueError(f"{name} is a nested tensor: expected a dense one, pass {name}.values()")


def _check_tensor(name: str, tensor: Any) -> None:
    check_kind(name, tensor)
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: expected a dense tensor, call {name}.to_dense()")
    if tensor.dtype not in _FLOATS:
        expected = "expected bfloat16, float16, float32 or float64"
        raise ValueError(f"{name} is {tensor.dtype}: {expected}")
