"""The public function: arguments as in `torch.nn.functional.rms_norm`, or shorter ones.

In: arguments. Out: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps), computed in float32. This module
chooses the path of a call: to a kept launch for plain tensors (`eager`), through torch's dispatcher for
compilers, modes and subclasses (`ops`), or composed of torch's operations for function transforms
(`composed`).
"""

import sys
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.rms_norm import composed, eager, ops, sharding  # noqa: F401  (registers the operators)
from normtune.kernels.rms_norm.arguments import check, check_kind, number
from normtune.kernels.rms_norm.autograd import RMSNormFunction
from normtune.kernels.rms_norm.readable import PLAIN

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_forward = eager.forward
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_is_traced = torch._C._get_tracing_state
# `Function.apply` without its work for function transforms, which take another path: 2 us.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, RMSNormFunction).apply
_INTEGERS = (Integral, torch.SymInt)


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
) -> Tensor: ...


@overload
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
) -> Tensor: ...


def rms_norm(*arguments: Any, **named: Any) -> Tensor:  # noqa: D417  (of the overloads)
    """RMSNorm over the last dimension, or over the last dimensions, differentiable in x and weight.

    Call it as `rms_norm(x, weight, eps=1e-6)`, or in place of `torch.nn.functional.rms_norm`:
    `rms_norm(input, normalized_shape, weight=None, eps=None)`.

    The kernels take bfloat16, float16 and float32 on a GPU, rows of 1 to 65536 elements and up to 2^30 rows. Rows
    without a single stride or with elements out of order are copied first, and so is a weight that is not contiguous or
    of a third dtype. All other inputs of torch's function are composed of torch's operations, in several passes:
    float64, tensors on a CPU, longer rows, forward-mode derivatives, transforms of `torch.func`, second derivatives.

    Args:
        x: (..., hidden), a dense floating-point tensor of 16 to 64 bits; also `input`.
        weight: (hidden,), or of `normalized_shape`, of any such dtype, on x's device; None for y = x * rstd.
        eps: added to the mean square; None for the machine epsilon of float32, or of float64 if x is float64.
        offset: added to the weight, in float32: 1.0 for weights that are stored around zero.
        batch_invariant: give each row of y, and of the gradient of x, the same bits in every batch; None for the
            setting of `normtune.batch_invariant` and `normtune.use_batch_invariant`. The weight gradient sums over rows
            and always depends on the batch.
        normalized_shape: x's last dimensions, over which it is normalized; the last one without it.

    Returns:
        y, of x's shape and dtype, contiguous. Autocast changes nothing: all arithmetic is in float32 anyway.

    Raises:
        TypeError: x or weight is not a tensor, or eps or offset not a number.
        ValueError: another argument is wrong; the message names it and its value. Nothing was launched.
    """
    if not named and len(arguments) > 1 and type(arguments[1]) in PLAIN:
        return _rms_norm(*arguments)
    given = (*arguments, *named.values())
    if has_torch_function(given) and any(map(_is_proxy, given)):
        return handle_torch_function(rms_norm, given, *arguments, **named)  # type: ignore[no-any-return]
    second = arguments[1] if len(arguments) > 1 else None
    if (second is None or isinstance(second, Tensor)) and "input" not in named and "normalized_shape" not in named:
        return _rms_norm(*arguments, **named)
    return _over_shape(*arguments, **named)


def _over_shape(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
) -> Tensor:
    """The form of torch's own function."""
    if isinstance(input, Tensor):
        shape = shape_of(normalized_shape)
        dims = len(shape)
        if tuple(input.shape[input.dim() - dims :]) != shape or dims > input.dim():
            raise ValueError(
                f"normalized_shape is {shape} and x has shape {tuple(input.shape)}: expected its last sizes"
            )
        if isinstance(weight, Tensor) and tuple(weight.shape) != shape:
            raise ValueError(f"weight has shape {tuple(weight.shape)}: expected {shape}, as normalized_shape")
        if dims > 1:
            rows = input.flatten(input.dim() - dims)
            columns = weight.flatten() if isinstance(weight, Tensor) else weight
            return _rms_norm(rows, columns, eps, offset, batch_invariant).view(input.shape)
    return _rms_norm(input, weight, eps, offset, batch_invariant)


def shape_of(normalized_shape: Any) -> tuple[int, ...]:
    """`normalized_shape` as a tuple of sizes.

    Raises:
        TypeError: neither an integer nor a sequence of integers.
        ValueError: empty, or with a negative size.
    """
    sizes = (normalized_shape,) if isinstance(normalized_shape, _INTEGERS) else normalized_shape
    if not isinstance(sizes, Sequence) or not all(isinstance(size, _INTEGERS) for size in sizes):
        raise TypeError(f"normalized_shape is {normalized_shape!r}: expected an integer or a sequence of integers")
    if not sizes or min(sizes) < 0:
        raise ValueError(f"normalized_shape is {normalized_shape!r}: expected one size or more, none negative")
    return tuple(sizes)


def _rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
) -> Tensor:
    """The form over the last dimension."""
    if (
        _is_compiling()
        or type(x) not in PLAIN
        or (weight is not None and type(weight) not in PLAIN)
        or has_torch_function_variadic(x, weight)
        or _modes()
        or _transforms()
        or forward_ad._current_level >= 0
        or _is_traced()
    ):
        return _seen(x, weight, eps, offset, batch_invariant)
    if eps is None:
        eps = composed.machine_epsilon(x)
    if type(eps) is not float or type(offset) is not float:
        eps, offset = number("eps", eps), number("offset", offset)
    if batch_invariant is None:
        batch_invariant = is_batch_invariant()
    elif batch_invariant is not True and batch_invariant is not False:
        raise TypeError(f"batch_invariant is {batch_invariant!r}: expected True, False or None")
    if _is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
        return _apply(x, weight, eps, offset, batch_invariant)
    return _forward(x, weight, eps, offset, batch_invariant, False)[0]


# Errors of a wrong call name the public function.
for _form in (_rms_norm, _over_shape):
    _form.__name__ = _form.__qualname__ = "rms_norm"


def _seen(x: Any, weight: Any, eps: float | None, offset: float, batch_invariant: bool | None) -> Tensor:
    """A call through torch's dispatcher, or of tensors that are more than their memory."""
    for name, tensor in (("x", x), *((("weight", weight),) if weight is not None else ())):
        if not _is_proxy(tensor):
            check_kind(name, tensor)
    if has_torch_function_variadic(x, weight):
        return handle_torch_function(  # type: ignore[no-any-return]
            rms_norm, (x, weight), x, weight, eps=eps, offset=offset, batch_invariant=batch_invariant
        )
    if eps is None:
        eps = composed.machine_epsilon(x)
    if not _is_traced():  # traced sizes are tensors; the operator checks them
        check(x, weight, eps, offset)
    if _transforms() or forward_ad._current_level >= 0:
        return _transformed(x, weight, eps, offset, batch_invariant)
    if not (_is_compiling() or _modes() or _is_traced() or any(map(_is_seeing, (x, weight)))):
        # Of a subclass that adds nothing to its memory.
        columns = None if weight is None else weight.as_subclass(Tensor)
        return _rms_norm(x.as_subclass(Tensor), columns, eps, offset, batch_invariant)
    if _is_sharded(x):
        sharding.register()
    # torch.jit.trace compares its recordings with and without gradients.
    needs = (_is_traced() or torch.is_grad_enabled()) and (
        x.requires_grad or (weight is not None and weight.requires_grad)
    )
    return torch.ops.normtune.rms_norm_forward(x, weight, eps, offset, batch_invariant, needs)[0]  # type: ignore[no-any-return]


def _transformed(x: Tensor, weight: Tensor | None, eps: float, offset: float, batch_invariant: bool | None) -> Tensor:
    if batch_invariant is None and not _is_compiling():
        batch_invariant = is_batch_invariant()
    if batch_invariant:
        raise ValueError(
            "batch_invariant is on inside of a transform of torch.func or a forward-mode derivative: expected it off"
        )
    return composed.forward(x, weight, eps, offset)[0]


def _is_seeing(tensor: Tensor | None) -> bool:
    """Whether the type of a tensor intercepts operations."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ if tensor is not None else False


def _is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, without an import of its class."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def _is_proxy(value: object) -> bool:
    """Whether it stands for a tensor, as the proxies with which `torch.fx` records calls."""
    return not isinstance(value, Tensor) and has_torch_function((value,))
