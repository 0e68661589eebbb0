"""RMSNorm in torch's own operations: for inputs that the kernels do not take, and for higher derivatives.

In: tensors of any device, dtype float64 or shorter, rows of any length. Out: y and rstd, dx and dweight. All arithmetic
in float32, or in float64 if x is float64. Several passes over memory, where a kernel makes one. The backward is written
out, for callers without a graph; both are differentiable, in every mode of torch.
"""

import torch
from torch import Tensor


def machine_epsilon(x: Tensor) -> float:
    """The default eps of torch's own RMSNorm: the machine epsilon of the dtype of its arithmetic."""
    return torch.finfo(wide_dtype(x)).eps


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the arithmetic."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


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
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    return (wide * rstd.unsqueeze(-1) * _scale(wide, weight, offset)).to(x.dtype), rstd


def backward(dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and of the weight.

    With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
        dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat

    Args:
        dy: (..., hidden), the gradient of y.
        x: (..., hidden), the forward's.
        weight: (hidden,), or None, the forward's.
        rstd: (...,), from `forward`.
        offset: added to the weight.

    Returns:
        dx, of x's shape and dtype, and dweight, of the weight's; None without a weight.
    """
    wide = x.to(wide_dtype(x))
    rstd = rstd.unsqueeze(-1)
    wide_dy, xhat = dy.to(wide.dtype), wide * rstd
    gradient = wide_dy * _scale(wide, weight, offset)
    dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
    dweight = None
    if weight is not None:
        dweight = (wide_dy * xhat).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
    return dx.to(x.dtype), dweight


def forward_in_pieces(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """As `forward`, without a graph, some rows at a time: all rows in float32 may not fit.

    Returns:
        y, contiguous, and rstd, (rows,).
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = x.new_empty(x.shape[:-1].numel(), dtype=wide_dtype(x))
    for rows, out, factors in zip(*_pieces(x, y), rstd.split(_rows_at_once(x)), strict=True):
        normalized, of_rows = forward(rows, weight, eps, offset)
        out.copy_(normalized)
        factors.copy_(of_rows)
    return y, rstd


def backward_in_pieces(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, offset: float
) -> tuple[Tensor, Tensor | None]:
    """As `backward`, without a graph, some rows at a time; rstd as (rows,)."""
    if x.numel() <= _ELEMENTS_AT_ONCE:
        return backward(dy, x, weight, rstd.view(x.shape[:-1]), offset)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = None if weight is None else weight.to(wide_dtype(x))
    total = None if wide is None else torch.zeros_like(wide)
    pieces = zip(*_pieces(dy, x, dx), rstd.reshape(-1).split(_rows_at_once(x)), strict=True)
    for dy_rows, rows, out, factors in pieces:
        of_rows, part = backward(dy_rows, rows, wide, factors, offset)
        out.copy_(of_rows)
        if total is not None and part is not None:
            total += part
    return dx, None if total is None or weight is None else total.to(weight.dtype)


# 256 MB in float32.
_ELEMENTS_AT_ONCE = 1 << 26


def _rows_at_once(x: Tensor) -> int:
    return max(1, _ELEMENTS_AT_ONCE // max(1, x.shape[-1]))


def _pieces(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Some rows of each at a time; views, if a tensor is contiguous."""
    rows = tensors[0].shape[:-1].numel()
    return [tensor.reshape(rows, tensor.shape[-1]).split(_rows_at_once(tensor)) for tensor in tensors]


def _scale(wide: Tensor, weight: Tensor | None, offset: float) -> Tensor | float:
    return 1.0 if weight is None else weight.to(wide.dtype) + offset
