"""The public function of RMSNorm's gradients, for autograd functions that others write around a norm.

In: the gradients of outputs, what was normalized, and the rstd of each row. Out: dx and dweight, by the kernels and
tables of the backward of `rms_norm`, or with the gradient of a sum of `fused_add_rms_norm`.
"""

from torch import Tensor

from normtune.kernels.calling.arguments import check_backward, check_flag, number
from normtune.kernels.fused_add_rms_norm.function import CALLS as FUSED
from normtune.kernels.rms_norm.function import CALLS as PLAIN


def rms_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float = 1e-6,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
    *,
    ds: Tensor | None = None,
    needs_dx: bool = True,
    needs_dweight: bool = True,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of RMSNorm, for an autograd function around a norm and what reads it, as a product in FP8.

    With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row, in float32:
    dx = rstd * (g - xhat * m), dweight = sum over rows of dy * xhat. These are the gradients of `rms_norm`, and with
    `ds` those of `fused_add_rms_norm`: dx + ds, the gradient of x and of the residual. After `rms_norm_quantize_fp8`
    they are straight-through: those of the norm, as if it had not been rounded. Transformer Engine's `rmsnorm_bwd` is
    this with offset 1 for `zero_centered_gamma`, its `rmsnorm_bwd_add` this with `ds`.

    Args:
        dy: the gradient of the norm, of x's shape and any floating-point dtype of 16 to 64 bits.
        x: (..., hidden), what was normalized; after a fused addition the sum that it returned.
        weight: (hidden,), the forward's; None for none.
        rstd: (...,) float32 (float64 beside a float64 x), as `rms_norm_quantize_fp8(return_rstd=True)` returns it.
        eps: of the forward. It is in rstd already; gradients of these gradients read it, and the batch-invariant mode
            beside an rstd that was copied, or made without this mode, which it computes anew.
        offset: added to the weight, in float32.
        batch_invariant: as in `rms_norm`; None for the mode of the forward that made rstd, or the one that is on. Only
            the rstd that it returned tells that, whole: pass the mode with a copy or a slice of it.
        ds: the gradient of the sum, of x's shape; None without a sum, or without a gradient.
        needs_dx: whether dx is wanted.
        needs_dweight: whether dweight is wanted.

    Returns:
        dx, of x's shape and dtype, and dweight, of weight's; None for what is not wanted, or has no weight. Both are
        contiguous and have gradients themselves.

    Raises:
        TypeError: a tensor, number or flag is something else.
        ValueError: another property is wrong; the message names the argument and its value. Nothing was launched.
    """
    calls, incoming = (PLAIN["gemma"], (dy,)) if ds is None else (FUSED["float32"], (dy, ds))
    check_backward(calls.operation, (*incoming, x, weight, rstd), "x")
    for name, flag in (("needs_dx", needs_dx), ("needs_dweight", needs_dweight)):
        check_flag(name, flag)
    check_flag("batch_invariant", batch_invariant, is_optional=True)
    needs_dweight = needs_dweight and weight is not None
    options = (number("eps", eps), number("offset", offset), batch_invariant, needs_dx, needs_dweight)
    dx, dweight = calls.backward(*incoming, x, weight, rstd, *options)
    return dx if needs_dx else None, dweight if needs_dweight else None
