"""Checks of the arguments of a call.

In: a user's arguments. Out: nothing, or TypeError or ValueError with the argument, its value and the expected one.
Reads properties of tensors, never their memory, so it also serves tensors without memory.
"""

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.wide import wide_dtype
from normtune.kernels.problem import HIDDEN, MAX_ROWS, ROWS, ROWS_HIDDEN

_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Characters of a value in an error.
_LONGEST = 100
_LARGEST = torch.finfo(torch.float32).max


def check(operation: Operation, tensors: Sequence[Any], scalars: Sequence[Any]) -> None:
    """Check the arguments of one call.

    Args:
        operation: that is called.
        tensors: its inputs, in order: the first (..., hidden), dense, of a floating-point dtype of 16 to 64 bits; None
            for one that may be missing.
        scalars: finite numbers.

    Raises:
        TypeError: one is not a tensor or not a number.
        ValueError: another property is wrong.
    """
    first, x = operation.inputs[0], tensors[0]
    if not operation.x_dtypes:
        check_tensor(first, x)
    else:
        check_kind(first, x)
    operation.checks(tensors)
    if x.dim() == 0:
        raise ValueError(f"{first} has no dimension: expected (..., hidden)")
    for name, tensor in zip(operation.inputs[1:], tensors[1:], strict=True):
        if tensor is None and name in operation.optional:
            continue
        if operation.axes[name] not in (ROWS_HIDDEN, HIDDEN):
            check_kind(name, tensor)
            check_device(name, tensor, first, x)
            continue
        _check_beside(operation, name, tensor, first, x)
        if name in operation.like.values() and tensor.dtype not in (x.dtype, torch.float32):
            raise ValueError(f"{name} is {tensor.dtype}: expected {x.dtype}, as {first}, or torch.float32")
    for name, value in zip(operation.defaults, scalars, strict=True):
        number(name, value)


def check_backward(operation: Operation, tensors: Sequence[Any], first: str | None = None) -> None:
    """Check the inputs of a backward.

    Args:
        operation: that it is of.
        tensors: the gradients of outputs, then saved tensors, in order; None for one that may be missing.
        first: name in errors of the first saved tensor (..., hidden), x; None for the operation's.

    Raises:
        TypeError, ValueError: as `check`; or factors are not one for each row of x.
    """
    given = dict(zip((*operation.incoming, *operation.saved), tensors, strict=True))
    source = operation.with_axes(operation.saved, ROWS_HIDDEN)[0]
    first, x = first or source, given.pop(source)
    check_tensor(first, x)
    if x.dim() == 0:
        raise ValueError(f"{first} has no dimension: expected (..., hidden)")
    for name, tensor in given.items():
        if operation.axes[name] == ROWS:
            check_tensor(name, tensor)
            # A float64 norm of a float32 sum has float64 factors.
            dtypes = {wide_dtype(x), wide_dtype(given[operation.incoming[0]])}
            if tensor.shape != x.shape[:-1] or tensor.dtype not in dtypes:
                expected = (
                    f"expected {wide_dtype(x)} with shape {tuple(x.shape[:-1])}, a factor for each row of {first}"
                )
                raise ValueError(f"{name} is {tensor.dtype} with shape {tuple(tensor.shape)}: {expected}")
            check_device(name, tensor, first, x)
        elif tensor is not None or name not in operation.optional:
            _check_beside(operation, name, tensor, first, x)


def _check_beside(operation: Operation, name: str, tensor: Any, first: str, x: Tensor) -> None:
    """Check a tensor (..., hidden), (hidden,) or (groups, hidden) beside x: its shape and its device.

    Raises:
        TypeError, ValueError: as `check`.
    """
    check_tensor(name, tensor)
    if operation.axes[name] == HIDDEN:
        if tensor.shape != x.shape[-2 if operation.is_grouped and x.dim() > 1 and tensor.dim() == 2 else -1 :]:
            expected = f"expected ({x.shape[-1]},), the last dimension of {first}"
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: {expected}")
    elif tensor.shape != x.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(x.shape)}, as {first}")
    check_device(name, tensor, first, x)


def check_device(name: str, tensor: Tensor, first: str, x: Tensor) -> None:
    """Raise ValueError for a tensor that is not on the device of x."""
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device} and {first} on {x.device}: expected one device")


def number(name: str, value: Any) -> float:
    """A finite number of float32's range as a float; a tensor is refused, as it could change later.

    Raises:
        TypeError: not a number, but a flag, say, which has this place in another library.
        ValueError: not finite; or an eps of 1 or more, which in another library's place is a size.
    """
    if isinstance(value, bool) or not isinstance(value, Real | torch.SymFloat):
        raise TypeError(f"{name} is {_one_line(value)}: expected a number")
    try:
        converted = float(value)
    except OverflowError:
        converted = float("inf")
    if not -_LARGEST <= converted <= _LARGEST:  # also refuses NaN
        raise ValueError(f"{name} is {_one_line(value)}: expected a finite number")
    if name == "eps" and converted >= 1:
        raise ValueError(f"eps is {_one_line(value)}: expected less than 1, as it is added to a mean square")
    return converted


def check_flag(name: str, value: Any, is_optional: bool = False) -> None:
    """Raise TypeError for anything but a bool, or None for an optional one."""
    if value is not True and value is not False and not (value is None and is_optional):
        raise TypeError(
            f"{name} is {_one_line(value)}: expected True{', False or None' if is_optional else ' or False'}"
        )


def check_module(eps: Any, offset: Any, batch_invariant: Any, reuse_dy: Any, device: Any, dtype: Any) -> None:
    """Check the arguments of a module as its calls would, and those of its weight.

    Raises:
        TypeError, ValueError: one is wrong.
    """
    if eps is not None:
        number("eps", eps)
    number("offset", offset)
    check_flag("batch_invariant", batch_invariant, is_optional=True)
    check_flag("reuse_dy", reuse_dy)
    if device is not None and (isinstance(device, bool) or not isinstance(device, str | int | torch.device)):
        raise TypeError(f"device is {_one_line(device)}: expected a device, such as 'cuda', or None")
    if dtype is not None and dtype not in _FLOATS:
        error = ValueError if isinstance(dtype, torch.dtype) else TypeError
        raise error(f"dtype is {_one_line(dtype)}: expected {', '.join(map(str, _FLOATS))} or None")


def shown(x: Tensor) -> str:
    """Text of a tensor for errors."""
    return f"{x.dtype} on {x.device} with shape {tuple(x.shape)}"


def _one_line(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor with shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise TypeError for anything but a text and ValueError for one that is not among the choices."""
    if isinstance(value, str) and value in choices:
        return
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f"{name} is {_one_line(value)}: expected one of {', '.join(choices)}")


def is_for_kernels(operation: Operation, x: Tensor) -> bool:
    """Whether the kernels take a checked x on a GPU, by its dtype and the length and number of its rows."""
    hidden = x.shape[-1]
    return (
        x.dtype in operation.dtypes and 1 <= hidden <= operation.forward.max_hidden and x.numel() // hidden <= MAX_ROWS
    )


def check_saved(plan: Any, given: Mapping[str, Tensor | None]) -> None:
    """Raise ValueError if hooks of saved tensors gave back others than those of a forward, an `eager.CallPlan`."""
    operation = plan.operation
    first = given[operation.incoming[0]]
    assert first is not None
    for name in operation.incoming:
        gradient = given[name]
        if gradient is not None and gradient.shape != plan.shape:
            raise ValueError(f"{name} has shape {tuple(gradient.shape)}: expected {tuple(plan.shape)}, as {name[1:]}")
    for name in operation.saved:
        tensor: Any = given[name]
        shape: Sequence[int]
        if operation.axes[name] == ROWS:
            tensor, shape, dtype = tensor.reshape(-1), (plan.rows,), None
        elif name in plan.saved:
            saved = plan.saved[name]
            if saved is None:
                continue
            shape, dtype = saved
        else:
            shape, dtype = plan.shape, None
        if (
            not isinstance(tensor, Tensor)
            or tensor.shape != shape
            or (dtype is not None and tensor.dtype != dtype)
            or tensor.device != first.device
            or tensor.layout != torch.strided
        ):
            text = shown(tensor) if isinstance(tensor, Tensor) else _one_line(tensor)
            expected = f"{name} was saved with shape {tuple(shape)} on {first.device}"
            raise ValueError(f"{expected}, and hooks of saved tensors gave back {text}")


def check_kind(name: str, tensor: Any) -> None:
    """Raise TypeError for anything but a tensor and ValueError for nested ones, whatever their type intercepts."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {_one_line(tensor)}: expected a tensor")
    # A jagged tensor knows torch's own function by its name, and would call it with other arguments.
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_nested:
            raise ValueError(f"{name} is a nested tensor: expected a dense one, pass {name}.values()")


def check_tensor(name: str, tensor: Any) -> None:
    """Raise TypeError or ValueError for anything but a dense tensor of a floating-point dtype of 16 to 64 bits."""
    check_kind(name, tensor)
    # torch.compile takes dense tensors alone, and knows no layout in the backward of an autograd function.
    if not torch.compiler.is_dynamo_compiling() and tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: expected a dense tensor, call {name}.to_dense()")
    if tensor.dtype not in _FLOATS:
        expected = "expected bfloat16, float16, float32 or float64"
        raise ValueError(f"{name} is {tensor.dtype}: {expected}")
