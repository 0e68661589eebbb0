"""RMSNorm as people call it: a function with gradients and a module.

In: tensors. Out: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) over the last dimension, computed
in float32. Checks arguments and allocates; what is launched how is for `dispatch`.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from normtune.kernels.dispatch import launch
from normtune.kernels.problem import ITEMSIZE, MAX_ROWS, Problem
from normtune.kernels.rms_norm_spec import MAX_HIDDEN, rms_norm_backward, rms_norm_forward

_DTYPES = {getattr(torch, name): name for name in ITEMSIZE}


@torch.compiler.disable
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, offset: float = 0.0) -> Tensor:
    """RMSNorm over the last dimension, differentiable in x and weight.

    Args:
        x: (..., hidden), bfloat16, float16 or float32, on a CUDA GPU, last dimension contiguous, hidden 1 to 65536,
            any number of rows, 0 included.
        weight: (hidden,), contiguous, of x's dtype or float32, on the same GPU.
        eps: added to the mean square.
        offset: added to the weight, in float32: 1.0 for weights that are stored around zero.

    Returns:
        y, of x's shape and dtype, contiguous.

    Raises:
        ValueError: an argument is not as above; the text names it and its value.
    """
    _check(x, weight)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _RMSNorm.apply(x, weight, eps, offset)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(x, weight, eps, offset, store_rstd=False)[0].view(x.shape)


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension with a learned weight.

    Args:
        hidden: length of the last dimension, 1 to 65536.
        eps: added to the mean square.
        offset: added to the weight; the weight starts at 1 - offset, so that the module starts as plain RMSNorm.
        device: where the weight is made.
        dtype: the weight's dtype.
    """

    def __init__(
        self,
        hidden: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(hidden, int) or not 1 <= hidden <= MAX_HIDDEN:
            raise ValueError(f"hidden is {hidden!r}: expected an integer from 1 to {MAX_HIDDEN}")
        self.hidden, self.eps, self.offset = hidden, eps, offset
        self.weight = torch.nn.Parameter(torch.full((hidden,), 1.0 - offset, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` (..., hidden); see `rms_norm`."""
        return rms_norm(x, self.weight, self.eps, self.offset)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.hidden}, eps={self.eps}, offset={self.offset}"


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        y, rows, rstd = _forward(x, weight, eps, offset, store_rstd=True)
        ctx.save_for_backward(rows, weight, rstd)
        ctx.eps, ctx.offset = eps, offset
        return y.view(x.shape)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, rstd = ctx.saved_tensors
        dx, dweight = _backward(dy, x, weight, rstd, ctx.eps, ctx.offset, ctx.needs_input_grad[1])
        return (dx.view(dy.shape) if ctx.needs_input_grad[0] else None), dweight, None, None


def _forward(
    x: Tensor, weight: Tensor, eps: float, offset: float, store_rstd: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Y (rows, hidden), x as it was read (rows, hidden), and rstd (rows,) float32 if it is stored."""
    hidden = x.shape[-1]
    x = x.reshape(-1, hidden)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device) if store_rstd else None
    if x.shape[0]:
        tensors = {"x": x, "weight": weight, "y": y}
        if rstd is not None:
            tensors["rstd"] = rstd
        variant = "" if store_rstd else "no_rstd"
        problem = Problem(rms_norm_forward.name, x.shape[0], hidden, _DTYPES[x.dtype], variant)
        launch(rms_norm_forward, problem, tensors, eps, offset)
    return y, x, rstd


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, eps: float, offset: float, needs_dweight: bool
) -> tuple[Tensor, Tensor | None]:
    """Dx (rows, hidden) and, if wanted, dweight (hidden,) in the weight's dtype."""
    rows, hidden = x.shape
    dy = dy.reshape(rows, hidden)
    if dy.stride(1) != 1 and hidden > 1:
        dy = dy.contiguous()
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(weight) if needs_dweight else None
    tensors = {"dy": dy, "x": x, "weight": weight, "rstd": rstd, "dx": dx}
    if needs_dweight:
        tensors["dweight"] = torch.empty_like(weight)
    variant = "" if needs_dweight else "no_dweight"
    problem = Problem(rms_norm_backward.name, rows, hidden, _DTYPES[x.dtype], variant)
    launch(rms_norm_backward, problem, tensors, eps, offset)
    return dx, tensors.get("dweight")


def _check(x: Tensor, weight: Tensor) -> None:
    """Raise ValueError for what the kernels cannot take."""
    if x.dtype not in _DTYPES:
        raise ValueError(f"x is {x.dtype}: expected bfloat16, float16 or float32")
    if not x.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError(f"x is on {x.device}: normtune's kernels run on CUDA GPUs, move it with x.cuda()")
    if x.dim() == 0:
        raise ValueError("x has no dimension: expected (..., hidden)")
    hidden = x.shape[-1]
    if not 1 <= hidden <= MAX_HIDDEN:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected a last dimension of 1 to {MAX_HIDDEN}")
    if x.stride(-1) != 1 and hidden > 1 and x.numel():
        raise ValueError(f"x has strides {x.stride()}: expected a contiguous last dimension, call x.contiguous()")
    if x.numel() // hidden > MAX_ROWS:
        raise ValueError(f"x has {x.numel() // hidden} rows: expected at most {MAX_ROWS}")
    if weight.shape != (hidden,):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected ({hidden},), the last dimension of x")
    if weight.dtype not in (x.dtype, torch.float32):
        raise ValueError(f"weight is {weight.dtype}: expected {x.dtype}, as x, or torch.float32")
    if weight.device != x.device:
        raise ValueError(f"weight is on {weight.device} and x on {x.device}: expected one device")
    if not weight.is_contiguous():
        raise ValueError(f"weight has strides {weight.stride()}: expected a contiguous tensor")
