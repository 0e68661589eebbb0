"""A fused addition and RMSNorm as a module.

In: hidden size and the arguments of `fused_add_rms_norm`. Out: a module with RMSNorm's weight.
"""

import torch
from torch import Tensor

from normtune.kernels.calling.arguments import check_choice
from normtune.kernels.fused_add_rms_norm.function import ROUNDINGS, Rounding, fused_add_rms_norm
from normtune.kernels.rms_norm.module import RMSNorm


class FusedAddRMSNorm(RMSNorm):
    """RMSNorm of a sum, with a learned weight: takes x and residual, returns y and s.

    State dicts are those of `RMSNorm`, of `torch.nn.RMSNorm`, and of the norms of Llama and Qwen in Hugging Face.

    Args:
        hidden: the last dimension.
        eps: added to the mean square; None for the machine epsilon.
        device: of the weight.
        dtype: the weight's dtype.
        offset: added to the weight; the weight starts at 1 - offset.
        rounding: as in `fused_add_rms_norm`.
        batch_invariant, reuse_dy: as in `rms_norm`.

    Raises:
        TypeError: `hidden` is not an integer, or another argument not of its type.
        ValueError: `hidden` is negative, or another argument is one that calls refuse.
    """

    def __init__(
        self,
        hidden: int,
        eps: float | None = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
        rounding: Rounding = "float32",
        batch_invariant: bool | None = None,
        reuse_dy: bool = False,
    ) -> None:
        if not isinstance(hidden, int) or isinstance(hidden, bool):
            raise TypeError(f"hidden is {hidden!r}: expected an integer")
        if hidden < 0:
            raise ValueError(f"hidden is {hidden}: expected no negative number")
        check_choice("rounding", rounding, ROUNDINGS)
        self.rounding: Rounding = rounding
        super().__init__(
            *(hidden, eps, True, device, dtype), offset=offset, batch_invariant=batch_invariant, reuse_dy=reuse_dy
        )

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """y, the normalized sum, and s, the sum; see `fused_add_rms_norm`."""
        return fused_add_rms_norm(
            *(x, residual, self.weight, self.eps, self.offset, self.batch_invariant),
            rounding=self.rounding,
            reuse_dy=self.reuse_dy,
        )

    def extra_repr(self) -> str:
        """Text for `print`."""
        return f"{super().extra_repr()}, rounding={self.rounding!r}"
