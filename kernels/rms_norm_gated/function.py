"""The public function of gated RMSNorm, and the module in place of Qwen3NextRMSNormGated and MambaRMSNormGated.

In: arguments. Out: y = norm(x) * (weight + offset) * silu(z), or norm(x * silu(z)) * (weight + offset). There is an
`Operation` for each combination of modes. `GatedDecomposition` is the same in torch's operations: for inputs that the
kernels do not take, and for higher derivatives.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check_choice, check_flag, check_kind, check_module
from normtune.kernels.calling.cached import forward_of_three, forward_of_two
from normtune.kernels.calling.fallback import compute_dtype, keeps_subnormal, machine_epsilon, sum_of_rows
from normtune.kernels.calling.op import BackwardOp
from normtune.kernels.calling.operation import Operation
from normtune.kernels.rms_norm.function import rms_norm
from normtune.kernels.rms_norm_gated.launch import Gate, Order, Roundings
from normtune.kernels.rms_norm_gated.operator import rms_norm_gated_backward, rms_norm_gated_forward


class GatedDecomposition:
    """The formula of one mode; inputs are x, z if there is a gate, and weight.

    Args:
        norm_before_gate: y is norm(x) * weight * silu(z), else norm(x * silu(z)) * weight.
        has_gate: there is a z.
        rounds_once: all arithmetic is in float32; else the normalized values are rounded to x's dtype, and their
            product with the weight to the dtype of both.
    """

    def __init__(self, norm_before_gate: bool, has_gate: bool, rounds_once: bool) -> None:
        self._is_norm_first, self._has_gate, self._rounds_once = norm_before_gate, has_gate, rounds_once

    def forward(self, *arguments: Tensor | float) -> tuple[Tensor, Tensor]:
        """Outputs y, of x's shape and dtype, and rstd (..., 1 less), of the inputs, eps and offset."""
        x, z, weight, eps, offset = self._named(arguments)
        u = self._normalized(x, z)
        rstd = torch.rsqrt(u.square().mean(-1) + eps)
        xhat = u * rstd.unsqueeze(-1)
        y = xhat * (weight.to(u.dtype) + offset) if self._rounds_once else (xhat.to(x.dtype) * weight).to(u.dtype)
        if z is not None and self._is_norm_first:
            y = y * torch.nn.functional.silu(z.to(u.dtype))
        return y.to(x.dtype), rstd

    def factors(self, *arguments: Tensor | float) -> tuple[Tensor]:
        """The rstd of `forward`, whose arguments it takes."""
        x, z, _, eps, _ = self._named(arguments)
        return (torch.rsqrt(self._normalized(x, z).square().mean(-1) + eps),)

    def backward(self, dy: Tensor, *arguments: Tensor | float) -> Sequence[Tensor]:
        """Gradients of the inputs, of the gradient of y, the inputs, rstd, eps and offset; see `backward`'s kernels."""
        *inputs, rstd, eps, offset = arguments
        x, z, weight, _, offset = self._named((*inputs, eps, offset))
        assert isinstance(rstd, Tensor)
        rstd = rstd.unsqueeze(-1)
        u = self._normalized(x, z)
        xhat, product = u * rstd, dy.to(u.dtype)
        scale = weight.to(u.dtype) + offset
        wide_z = None if z is None else z.to(u.dtype)
        if wide_z is not None and self._is_norm_first:
            product = product * torch.nn.functional.silu(wide_z)
        gradient = product * scale
        dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
        dweight = sum_of_rows(product * xhat, weight.dim()).to(weight.dtype)
        if z is None or wide_z is None:
            return dx.to(x.dtype), dweight
        sigmoid = torch.sigmoid(wide_z)
        derivative = sigmoid * (1 + wide_z * (1 - sigmoid))
        if self._is_norm_first:
            dz = dy.to(u.dtype) * xhat * scale * derivative
        else:
            dx, dz = dx * torch.nn.functional.silu(wide_z), dx * x.to(u.dtype) * derivative
        return dx.to(x.dtype), dz.to(z.dtype), dweight

    def _named(self, arguments: Sequence[Tensor | float]) -> tuple[Tensor, Tensor | None, Tensor, float, float]:
        x, *gate, weight, eps, offset = arguments
        return x, gate[0] if gate else None, weight, eps, offset  # type: ignore[return-value]

    def _normalized(self, x: Tensor, z: Tensor | None) -> Tensor:
        """The values that are normalized, in the wide dtype."""
        wide = x.to(compute_dtype(x))
        return wide if z is None or self._is_norm_first else wide * torch.nn.functional.silu(z.to(wide.dtype))


Rounding = Literal["float32", "hugging_face"]
_ROUNDINGS = get_args(Rounding)


def _entry(norm_before_gate: bool, has_gate: bool, rounds_once: bool) -> BackwardOp:
    modes = (
        Order.NORM_FIRST if norm_before_gate else Order.GATE_FIRST,
        Gate.PRESENT if has_gate else Gate.NONE,
        Roundings.ONCE if rounds_once else Roundings.HUGGING_FACE,
    )
    operation = Operation(
        name="_".join(("rms_norm_gated", *(word for mode in modes for word in mode.words))),
        forward=rms_norm_gated_forward,
        backward=rms_norm_gated_backward,
        formula=GatedDecomposition(norm_before_gate, has_gate, rounds_once),
        defaults={"eps": 1e-6, "offset": 0.0},
        derived={"eps": machine_epsilon},
        compiler_options=keeps_subnormal,
        modes=modes,
        is_grouped=True,
    )
    return BackwardOp(operation, forward=forward_of_three if has_gate else forward_of_two)


# By (norm_before_gate, has_gate, rounds_once); without a gate there is no order of norm and gate.
CALLS = {mode: _entry(*mode) for mode in product((True, False), (True, False), (True, False)) if mode[0] or mode[1]}


def rms_norm_gated(
    x: Tensor,
    weight: Tensor,
    z: Tensor | None = None,
    eps: float | None = 1e-6,
    offset: float = 0.0,
    *,
    norm_before_gate: bool = True,
    group_size: int | None = None,
    rounding: Rounding = "float32",
    batch_invariant: bool | None = None,
    reuse_dy: bool = False,
) -> Tensor:
    """RMSNorm over the last dimension, or over groups of it, gated by silu(z) = z * sigmoid(z).

    With norm(u) = u / sqrt(mean(u^2) + eps), y is norm(x) * (weight + offset) * silu(z), as at the end of a Gated
    DeltaNet layer (Qwen3-Next), or, with `norm_before_gate=False`, norm(x * silu(z)) * (weight + offset), as in Mamba2.
    Differentiable in x, weight and z, any number of times.

    The kernels take bfloat16, float16 and float32 on a GPU, groups of 1 to 65536 elements and up to 2^30 of them. x and
    z are read where they are if the last dimension is contiguous and the others have at most two strides, as heads of a
    larger projection; else they are copied. All other inputs are composed of torch's operations, as in `rms_norm`.
    Without z, groups and roundings this is `rms_norm`.

    Args:
        x: (..., hidden), a dense floating-point tensor of 16 to 64 bits.
        weight: (hidden,), of any such dtype, on x's device.
        z: of x's shape, of any such dtype; None for no gate.
        eps: added to the mean square; None for the machine epsilon of float32, or of float64 if x is float64.
        offset: added to the weight, in float32; 0 with the rounding `hugging_face`.
        norm_before_gate: gate the normalized values, rather than normalize the gated ones.
        group_size: elements of a group, each of which has a mean square of its own; it divides hidden. None for the
            whole row. The weight is (hidden,) nonetheless.
        rounding: `float32`: all arithmetic is in float32 and y is rounded once. `hugging_face`: the normalized values
            are rounded to x's dtype and their product with the weight to the dtype of both, as in transformers'
            Qwen3NextRMSNormGated and, with `norm_before_gate=False`, MambaRMSNormGated. Gradients are those of the
            function without roundings in either case.
        batch_invariant: as in `rms_norm`.
        reuse_dy: as in `rms_norm`.

    Returns:
        y, of x's shape and dtype, contiguous.

    Raises:
        TypeError: x, weight or z is not a tensor, or another argument not of its type.
        ValueError: an argument is wrong; the message names it and its value. Nothing was launched.
    """
    if has_torch_function_variadic(x, weight, z):
        options: dict[str, Any] = {"norm_before_gate": norm_before_gate, "group_size": group_size}
        options |= {"rounding": rounding, "batch_invariant": batch_invariant, "reuse_dy": reuse_dy}
        return handle_torch_function(  # type: ignore[no-any-return]
            rms_norm_gated, (x, weight, z), x, weight, z, eps, offset, **options
        )
    rounds_once = rounding == "float32"
    if not rounds_once or (norm_before_gate is not True and norm_before_gate is not False):
        check_mode(norm_before_gate, rounding, offset)
    mode = norm_before_gate or z is None, z is not None, rounds_once
    call, scalars = CALLS[mode].call, (eps, offset)
    if group_size is not None and (groups := _groups(x, weight, z, group_size)) > 1:
        shape = (groups, group_size)
        x, weight = x.unflatten(-1, shape), weight.unflatten(-1, shape)
        tensors = (x, weight) if z is None else (x, z.unflatten(-1, shape), weight)
        return call(tensors, scalars, batch_invariant, reuse_dy).flatten(-2)  # type: ignore[no-any-return]
    if mode == (True, False, True) and weight is not None:
        return rms_norm(x, weight, eps, offset, batch_invariant, reuse_dy=reuse_dy)
    if isinstance(weight, Tensor) and weight.dim() != 1:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected one dimension, the last one of x")
    return call((x, weight) if z is None else (x, z, weight), scalars, batch_invariant, reuse_dy)  # type: ignore[no-any-return]


def check_mode(norm_before_gate: Any, rounding: Any, offset: Any) -> None:
    """Raise TypeError or ValueError for an invalid mode."""
    check_flag("norm_before_gate", norm_before_gate)
    check_choice("rounding", rounding, _ROUNDINGS)
    if rounding != "float32" and offset != 0:
        raise ValueError(f"offset is {offset!r} with the rounding 'hugging_face', whose weights have none: expected 0")


def check_group_size(group_size: Any, hidden: int, named: str) -> None:
    """Raise TypeError or ValueError unless it is a divisor of `hidden`, which errors call `named`."""
    if not isinstance(group_size, int) or isinstance(group_size, bool):
        raise TypeError(f"group_size is {group_size!r}: expected an integer or None")
    if group_size < 1 or hidden % group_size:
        raise ValueError(f"group_size is {group_size}: expected a divisor of {hidden}, {named}")


def _groups(x: Tensor, weight: Tensor, z: Tensor | None, group_size: int) -> int:
    """Number of groups in a row; raises TypeError or ValueError unless the shapes of the tensors match."""
    for name, tensor in (("x", x), ("weight", weight), *(() if z is None else (("z", z),))):
        check_kind(name, tensor)
    if x.dim() == 0:
        raise ValueError("x has no dimension: expected (..., hidden)")
    hidden = x.shape[-1]
    check_group_size(group_size, hidden, "the last dimension of x")
    if tuple(weight.shape) != (hidden,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected ({hidden},), the last dimension of x")
    if z is not None and z.shape != x.shape:
        raise ValueError(f"z has shape {tuple(z.shape)}: expected {tuple(x.shape)}, as x")
    return hidden // group_size


class RMSNormGated(torch.nn.Module):
    """RMSNorm over the last dimension, or groups of it, gated by silu(z); see `rms_norm_gated`.

    State dicts are those of transformers' Qwen3NextRMSNormGated and MambaRMSNormGated, and interchangeable with them;
    with `rounding="hugging_face"` so are the roundings.

    Args:
        hidden_size: the last dimension.
        eps: added to the mean square; None for the machine epsilon.
        device: of the weight.
        dtype: the weight's dtype.
        offset: added to the weight; the weight starts at 1 - offset.
        norm_before_gate, group_size, rounding, batch_invariant, reuse_dy: as in `rms_norm_gated`.

    Raises:
        TypeError: an argument is not of its type.
        ValueError: `hidden_size` is no positive integer, `group_size` does not divide it, or another argument is one
            that calls refuse.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float | None = 1e-6,
        *,
        offset: float = 0.0,
        norm_before_gate: bool = True,
        group_size: int | None = None,
        rounding: Rounding = "float32",
        batch_invariant: bool | None = None,
        reuse_dy: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(hidden_size, int) or isinstance(hidden_size, bool) or hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size!r}: expected a positive integer")
        check_module(eps, offset, batch_invariant, reuse_dy, device, dtype)
        check_mode(norm_before_gate, rounding, offset)
        if group_size is not None:
            check_group_size(group_size, hidden_size, "the hidden_size")
        self.hidden_size, self.eps, self.offset = hidden_size, eps, offset
        self.norm_before_gate, self.group_size = norm_before_gate, group_size
        self.rounding: Rounding = rounding
        self.batch_invariant, self.reuse_dy = batch_invariant, reuse_dy
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to 1 - offset."""
        torch.nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Normalize `x` (..., hidden_size), gated by `z` of its shape; see `rms_norm_gated`."""
        return rms_norm_gated(
            *(x, self.weight, z, self.eps, self.offset),
            norm_before_gate=self.norm_before_gate,
            group_size=self.group_size,
            rounding=self.rounding,
            batch_invariant=self.batch_invariant,
            reuse_dy=self.reuse_dy,
        )

    def extra_repr(self) -> str:
        """Text for `print`."""
        parts = [f"{self.hidden_size}, eps={self.eps}"]
        usual = {"offset": 0.0, "norm_before_gate": True, "group_size": None, "rounding": "float32"}
        for name, value in {**usual, "batch_invariant": None, "reuse_dy": False}.items():
            if (current := getattr(self, name)) != value:
                parts.append(f"{name}={current!r}")
        return ", ".join(parts)
