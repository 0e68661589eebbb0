"""Gated RMSNorm in torch's own operations: for inputs that the kernels do not take, and for higher derivatives.

In: tensors of any device, dtype float64 or shorter, rows of any length, groups as the last dimension but one. Out: y
and rstd, dx, dz and dweight. All arithmetic in float32, or in float64 if x is float64. Differentiable, in every mode of
torch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from normtune.kernels.calling.fallback import compute_dtype, sum_of_rows


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
