"""RMSNorm as a module, in the place of `torch.nn.RMSNorm`.

In: the arguments of torch's module and those of `rms_norm`. Out: a module whose state is torch's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.arguments import check_choice, check_flag, check_module
from normtune.kernels.rms_norm.function import CALLS, Casting, rms_norm, shape_of


class RMSNorm(torch.nn.RMSNorm):
    """RMSNorm over the last dimensions with a learned weight: a `torch.nn.RMSNorm` that launches normtune's kernels.

    State dicts are those of torch's module and interchangeable with it. `torch.compile`, `torch.export`,
    `torch.jit.trace` and `torch.fx` take it; `torch.jit.script` does not.

    Args:
        normalized_shape: the last dimensions, an integer for the last one alone.
        eps: added to the mean square; None for the machine epsilon, as in torch's module.
        elementwise_affine: have a weight.
        device: of the weight.
        dtype: the weight's dtype.
        offset: added to the weight; the weight starts at 1 - offset, so that the module starts as plain RMSNorm.
        batch_invariant: as in `rms_norm`.
        casting, reuse_dy: as in `rms_norm`.

    Raises:
        TypeError: `normalized_shape` is neither an integer nor a sequence of integers, or another argument is none of
            its type.
        ValueError: `normalized_shape` is empty, or has a negative size; `casting` is unknown; or another argument is
            one that calls refuse.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
        batch_invariant: bool | None = None,
        casting: Casting = "gemma",
        reuse_dy: bool = False,
    ) -> None:
        check_choice("casting", casting, CALLS)
        check_flag("elementwise_affine", elementwise_affine)
        check_module(eps, offset, batch_invariant, reuse_dy, device, dtype)
        self.offset, self.batch_invariant, self.casting, self.reuse_dy = offset, batch_invariant, casting, reuse_dy
        super().__init__(list(shape_of(normalized_shape)), eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Set the weight to 1 - offset, which makes the module plain RMSNorm."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x`, whose last dimensions are `normalized_shape`; see `rms_norm`."""
        if self.weight is not None and len(self.normalized_shape) == 1:  # then the weight's length is checked
            if self.casting == "gemma" and not self.reuse_dy:
                return rms_norm(x, self.weight, self.eps, self.offset, self.batch_invariant)
            return rms_norm(
                *(x, self.weight, self.eps, self.offset, self.batch_invariant),
                casting=self.casting,
                reuse_dy=self.reuse_dy,
            )
        return rms_norm(
            *(x, self.normalized_shape, self.weight, self.eps, self.offset, self.batch_invariant),
            casting=self.casting,
            reuse_dy=self.reuse_dy,
        )

    def extra_repr(self) -> str:
        """Text for `print`."""
        parts = [super().extra_repr()]
        if self.offset:
            parts.append(f"offset={self.offset}")
        if self.casting != "gemma":
            parts.append(f"casting={self.casting!r}")
        if self.batch_invariant is not None:
            parts.append(f"batch_invariant={self.batch_invariant}")
        if self.reuse_dy:
            parts.append("reuse_dy=True")
        return ", ".join(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also accept the state of a pickled module of torch."""
        missing = {"offset": 0.0, "batch_invariant": None, "casting": "gemma", "reuse_dy": False}
        super().__setstate__(missing | state)  # type: ignore[no-untyped-call]
