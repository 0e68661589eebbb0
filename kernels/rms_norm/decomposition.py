"""RMSNorm in torch's own operations: for inputs that the kernels do not take, and for higher derivatives.

In: tensors of at most 64 bits, on any device, with rows of any length. Out: y and rstd, dx and dweight. All arithmetic
is in float32, or in float64 if x is float64. Forward and backward are differentiable, in every mode of torch.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from normtune.kernels.calling.fallback import compute_dtype, sum_of_rows


class RMSNormDecomposition(NamedTuple):
    """The formula, with a choice of what is rounded to the dtype of x on the way.

    Attributes:
        rounds_product: round the normalized row, and the terms of the weight gradient.
        rounds_statistics: round squares, eps, weight + offset and rstd.
    """

    rounds_product: bool = False
    rounds_statistics: bool = False

    def forward(self, x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor, Tensor]:
        """Normalized rows, and the factor of each row.

        Args:
            x: (..., hidden).
            weight: (hidden,); None for rows that are only normalized.
            eps: added to the mean square.
            offset: added to the weight.

        Returns:
            y = x * rstd * (weight + offset), of x's shape and dtype, and rstd = 1 / sqrt(mean(x^2) + eps), (...,).
        """
        y, rstd = self.normalized(x.to(compute_dtype(x)), weight, eps, offset, x.dtype)
        return y, _rounded(rstd, x.dtype) if self.rounds_statistics else rstd

    def normalized(
        self, wide: Tensor, weight: Tensor | None, eps: float, offset: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The rows y in `dtype`, and rstd before it is rounded, given rows in the compute dtype."""
        rstd = self._rstd(wide, eps, dtype)
        xhat = wide * rstd.unsqueeze(-1)
        if self.rounds_product:
            xhat = _rounded(xhat, dtype)
        if weight is not None:
            xhat = xhat * self._scale(weight.to(wide.dtype), offset, dtype)
        return xhat.to(dtype), rstd

    def factors(self, x: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor]:
        """The rstd of `forward`, from the same arguments."""
        rstd = self._rstd(x.to(compute_dtype(x)), eps, x.dtype)
        return (_rounded(rstd, x.dtype) if self.rounds_statistics else rstd,)

    def backward(
        self, dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and of the weight.

        With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
            dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat

        Args:
            dy: (..., hidden), the gradient of y.
            x: (..., hidden), of the forward.
            weight: (hidden,) or None, of the forward.
            rstd: (...,), from `forward`.
            eps: of the forward; not read, as rstd includes it.
            offset: added to the weight.

        Returns:
            dx, of x's shape and dtype, and dweight, of the weight's; None without a weight.
        """
        wide = x.to(compute_dtype(x))
        rstd = rstd.unsqueeze(-1)
        wide_dy, xhat = dy.to(wide.dtype), wide * rstd
        gradient = wide_dy if weight is None else wide_dy * (weight.to(wide.dtype) + offset)
        dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
        dweight = None
        if weight is not None:
            terms = wide_dy * xhat
            if self.rounds_product:
                terms = _rounded(wide_dy * _rounded(xhat, dy.dtype), dy.dtype)
            dweight = sum_of_rows(terms, 1).to(weight.dtype)
        return dx.to(x.dtype), dweight

    def _rstd(self, wide: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        if self.rounds_statistics:
            return torch.rsqrt(_rounded(wide.square(), dtype).mean(-1) + _rounded(wide.new_tensor(eps), dtype))
        return torch.rsqrt(wide.square().mean(-1) + eps)

    def _scale(self, wide: Tensor, offset: float, dtype: torch.dtype) -> Tensor:
        if self.rounds_statistics:
            return _rounded(wide + _rounded(wide.new_tensor(offset), dtype), dtype)
        return wide + offset


def _rounded(wide: Tensor, dtype: torch.dtype) -> Tensor:
    return wide.to(dtype).to(wide.dtype)
