"""RMSNorm in torch's own operations: for inputs that the kernels do not take, and for higher derivatives.

In: tensors of any device, dtype float64 or shorter, rows of any length. Out: y and rstd, dx and dweight. All arithmetic
in float32, or in float64 if x is float64. Several passes over memory, where a kernel makes one. The backward is written
out, for callers without a graph; both are differentiable, in every mode of torch.
"""

import torch
from torch import Tensor

from normtune.kernels.calling.wide import wide_dtype


def forward(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """Normalized rows and the factor of each.

    Args:
        x: (..., hidden).
        weight: (hidden,); None for rows that are only normalized.
        eps: added to the mean square.
        offset: added to the weight.

    Returns:
        y = x * rstd * (weight + offset), of x's shape and dtype, and rstd = 1 / sqrt(mean(x^2) + eps), (...,).
    """
    wide = x.to(wide_dtype(x))
    (rstd,) = factors(x, weight, eps, offset)
    return (wide * rstd.unsqueeze(-1) * scale(wide, weight, offset)).to(x.dtype), rstd


def factors(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor]:
    """The rstd of `forward`, whose arguments it takes."""
    return (torch.rsqrt(x.to(wide_dtype(x)).square().mean(-1) + eps),)


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and of the weight.

    With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
        dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat

    Args:
        dy: (..., hidden), the gradient of y.
        x: (..., hidden), the forward's.
        weight: (hidden,), or None, the forward's.
        rstd: (...,), from `forward`.
        eps: of the forward, in rstd already.
        offset: added to the weight.

    Returns:
        dx, of x's shape and dtype, and dweight, of the weight's; None without a weight.
    """
    wide = x.to(wide_dtype(x))
    rstd = rstd.unsqueeze(-1)
    wide_dy, xhat = dy.to(wide.dtype), wide * rstd
    gradient = wide_dy * scale(wide, weight, offset)
    dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
    dweight = None
    if weight is not None:
        dweight = (wide_dy * xhat).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
    return dx.to(x.dtype), dweight


def scale(wide: Tensor, weight: Tensor | None, offset: float) -> Tensor | float:
    """Weight + offset in the dtype of `wide`; 1 without a weight."""
    return 1.0 if weight is None else weight.to(wide.dtype) + offset
