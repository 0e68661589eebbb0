"""fused_add_rms_norm in torch's own operations: for inputs that the kernels do not take, and for higher derivatives.

In: tensors of any device, dtype float64 or shorter, rows of any length. Out: y, s and rstd; dx, which is the gradient
of the residual, too, and dweight. The sum and all arithmetic are in float32, or in float64 if x is float64.
"""

from typing import NamedTuple

from torch import Tensor

from normtune.kernels.calling.fallback import compute_dtype
from normtune.kernels.rms_norm import decomposition


class FusedAddDecomposition(NamedTuple):
    """The formula with an order of rounding.

    Attributes:
        rounds_sum: normalize the sum as it is stored, in the dtype of the residual.
        rounds_product: round the normalized row to the dtype of x before the multiplication by the weight.
    """

    rounds_sum: bool = False
    rounds_product: bool = False

    def forward(
        self, x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The normalized sum, the sum, and the factor of each row.

        Args:
            x: (..., hidden).
            residual: of x's shape; its dtype is that of the sum.
            weight: (hidden,); None for rows that are only normalized.
            eps: added to the mean square.
            offset: added to the weight.

        Returns:
            y = s * rstd * (weight + offset), of x's dtype, s = x + residual, and rstd = 1 / sqrt(mean(s^2) + eps),
            (...,).
        """
        wide = x.to(compute_dtype(x)) + residual.to(compute_dtype(x))
        s = wide.to(residual.dtype)
        if self.rounds_sum:
            wide = s.to(compute_dtype(x))
        y, rstd = self._rms_norm().normalized(wide, weight, eps, offset, x.dtype)
        return y, s, rstd

    def factors(self, s: Tensor, weight: Tensor | None, eps: float, offset: float) -> tuple[Tensor]:
        """The rstd of a stored sum."""
        return self._rms_norm().factors(s, weight, eps, offset)

    def backward(
        self, dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor | None, rstd: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x, which is that of the residual, and of the weight: RMSNorm's at s, and ds added to dx.

        Args:
            dy: (..., hidden), the gradient of y.
            ds: (..., hidden), the gradient of s.
            s: (..., hidden), the forward's.
            weight: (hidden,), or None, the forward's.
            rstd: (...,), the forward's.
            eps: of the forward, in rstd already.
            offset: added to the weight.
        """
        dx, dweight = self._rms_norm().backward(dy, s.to(compute_dtype(s)), weight, rstd, eps, offset)
        return (dx + ds.to(dx.dtype)).to(s.dtype), dweight

    def _rms_norm(self) -> decomposition.RMSNormDecomposition:
        return decomposition.RMSNormDecomposition(rounds_product=self.rounds_product)
