"""Gated RMSNorm as a module, in the place of transformers' Qwen3NextRMSNormGated and MambaRMSNormGated.

In: the arguments of `rms_norm_gated`. Out: a module with their state: `weight`.
"""

import torch
from torch import Tensor

from normtune.kernels.calling.arguments import check_module
from normtune.kernels.rms_norm_gated.function import Rounding, check_group_size, check_mode, rms_norm_gated


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
            if (own := getattr(self, name)) != value:
                parts.append(f"{name}={own!r}")
        return ", ".join(parts)
