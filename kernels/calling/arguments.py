"""Checks of the arguments of a call.

In: a user's arguments. Out: TypeError or ValueError that names the argument, its value and what was expected. Only
properties of tensors are read, so tensors without memory can be checked, too.
"""

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.fallback import compute_dtype
from normtune.kernels.calling.operation import Operation
from normtune.kernels.problem import HIDDEN, MAX_ROWS, ROWS, ROWS_HIDDEN

_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Most characters of a value in an error.
_LONGEST = 100
_LARGEST = torch.finfo(torch.float32).max


def check(operation: Operation, tensors: Sequence[Any], scalars: Sequence[Any]) -> None:
    """Check the arguments of one call.

    Args:
        operation: the called operation.
        tensors: its inputs, in order; the first is (..., hidden), dense, of a floating-point dtype of 16 to 64 bits.
            An optional one may be None.
        scalars: finite numbers.

    Raises:
        TypeError: an argument is not a tensor, or not a number.
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
        operation: whose backward it is.
        tensors: the gradients of outputs, then saved tensors, in order; an optional one may be None.
        first: what errors call the first saved tensor (..., hidden), x here; None for its name in the operation.

    Raises:
        TypeError, ValueError: as `check`; or there is not one factor for each row of x.
    """
    by_name = dict(zip((*operation.incoming, *operation.saved), tensors, strict=True))
    source = operation.with_axes(operation.saved, ROWS_HIDDEN)[0]
    first, x = first or source, by_name.pop(source)
    check_tensor(first, x)
    if x.dim() == 0:
        raise ValueError(f"{first} has no dimension: expected (..., hidden)")
    for name, tensor in by_name.items():
        if operation.axes[name] == ROWS:
            check_tensor(name, tensor)
            # A float64 norm of a float32 sum has float64 factors.
            dtypes = {compute_dtype(x), compute_dtype(by_name[operation.incoming[0]])}
            if tensor.shape != x.shape[:-1] or tensor.dtype not in dtypes:
                expected = (
                    f"expected {compute_dtype(x)} with shape {tuple(x.shape[:-1])}, a factor for each row of {first}"
                )
                raise ValueError(f"{name} is {tensor.dtype} with shape {tuple(tensor.shape)}: {expected}")
            check_device(name, tensor, first, x)
        elif tensor is not None or name not in operation.optional:
            _check_beside(operation, name, tensor, first, x)


def _check_beside(operation: Operation, name: str, tensor: Any, first: str, x: Tensor) -> None:
    """Compare shape and device of a tensor (..., hidden), (hidden,) or (groups, hidden) with those of x.

    Raises:
        TypeError, ValueError: as `check`.
    """
    check_tensor(name, tensor)
    if operation.axes[name] == HIDDEN:
        has_groups = operation.is_grouped and x.dim() > 1 and tensor.dim() == 2
        if tensor.shape != (x.shape[-2:] if has_groups else (x.shape[-1] // operation.heads,)):
            expected = f"expected ({x.shape[-1]},), the last dimension of {first}"
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: {expected}")
    elif tensor.shape != x.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(x.shape)}, as {first}")
    check_device(name, tensor, first, x)


def check_device(name: str, tensor: Tensor, first: str, x: Tensor) -> None:
    """Raise ValueError unless a tensor is on the device of x."""
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device} and {first} on {x.device}: expected one device")


def number(name: str, value: Any) -> float:
    """A finite number in the range of float32, as a float. A tensor is refused, since it could change later.

    Raises:
        TypeError: it is no number; a bool, too, because other libraries have a flag at this place.
        ValueError: it is not finite; or it is an eps of at least 1, because other libraries have a size at this place.
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
    """Raise TypeError unless a value is a bool, or None if it is optional."""
    if value is not True and value is not False and not (value is None and is_optional):
        raise TypeError(
            f"{name} is {_one_line(value)}: expected True{', False or None' if is_optional else ' or False'}"
        )


def check_module(eps: Any, offset: Any, batch_invariant: Any, reuse_dy: Any, device: Any, dtype: Any) -> None:
    """Check the arguments of a module: those of its calls, and device and dtype of its weight.

    Raises:
        TypeError, ValueError: an argument is wrong.
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


def tensor_text(x: Tensor) -> str:
    """A tensor, as errors describe it."""
    return f"{x.dtype} on {x.device} with shape {tuple(x.shape)}"


def _one_line(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor with shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise TypeError unless a value is a string, and ValueError unless it is one of the choices."""
    if isinstance(value, str) and value in choices:
        return
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f"{name} is {_one_line(value)}: expected one of {', '.join(choices)}")


def is_for_kernels(operation: Operation, x: Tensor) -> bool:
    """Whether the kernels take the dtype, the hidden size and the number of rows of a checked x."""
    hidden = x.shape[-1] // operation.heads
    is_short = 1 <= hidden <= operation.forward.max_hidden
    return x.dtype in operation.dtypes and is_short and x.shape[:-1].numel() <= MAX_ROWS


def check_saved(plan: Any, tensors: Mapping[str, Tensor | None]) -> None:
    """Raise ValueError unless saved tensors, which hooks may replace, have the properties that the forward's had.

    Args:
        plan: the `eager.CallPlan` of the forward.
        tensors: gradients of outputs and saved tensors, by name.
    """
    operation = plan.operation
    first = tensors[operation.incoming[0]]
    assert first is not None
    for name in operation.incoming:
        gradient = tensors[name]
        if gradient is not None and gradient.shape != plan.shape:
            raise ValueError(f"{name} has shape {tuple(gradient.shape)}: expected {tuple(plan.shape)}, as {name[1:]}")
    for name in operation.saved:
        tensor: Any = tensors[name]
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
            text = tensor_text(tensor) if isinstance(tensor, Tensor) else _one_line(tensor)
            expected = f"{name} was saved with shape {tuple(shape)} on {first.device}"
            raise ValueError(f"{expected}, and hooks of saved tensors gave back {text}")


def check_kind(name: str, tensor: Any) -> None:
    """Raise TypeError unless a value is a tensor, and ValueError if it is a nested one."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {_one_line(tensor)}: expected a tensor")
    # A jagged tensor would intercept the property.
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.is_nested:
            raise ValueError(f"{name} is a nested tensor: expected a dense one, pass {name}.values()")


def check_tensor(name: str, tensor: Any) -> None:
    """Raise TypeError or ValueError unless a value is a dense floating-point tensor of 16 to 64 bits."""
    check_kind(name, tensor)
    # torch.compile accepts only dense tensors, and cannot read the layout in the backward of an autograd function.
    if not torch.compiler.is_dynamo_compiling() and tensor.layout != torch.strided:
        raise ValueError(f"{name} has the layout {tensor.layout}: expected a dense tensor, call {name}.to_dense()")
    if tensor.dtype not in _FLOATS:
        expected = "expected bfloat16, float16, float32 or float64"
        raise ValueError(f"{name} is {tensor.dtype}: {expected}")
