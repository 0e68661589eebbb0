"""The public function and module of a fused addition and RMSNorm, and the public `rms_norm_backward`.

In: arguments. Out: y and s, with gradients. There is an `Operation` for each rounding. `FusedAddDecomposition` is the
same in torch's operations: for inputs that the kernels do not take, and for higher derivatives. `rms_norm_backward` is
for autograd functions that others write around a norm, with or without a fused addition.
"""

from functools import partial, update_wrapper
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.overrides import has_torch_function_variadic

from normtune.kernels.calling.arguments import check_backward, check_choice, check_flag, number
from normtune.kernels.calling.autograd import apply
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.cached import forward_of_three
from normtune.kernels.calling.fallback import compute_dtype, machine_epsilon
from normtune.kernels.calling.layout import PLAIN_TYPES
from normtune.kernels.calling.op import BackwardOp, is_compiling, is_traced, modes, transforms
from normtune.kernels.fused_add_rms_norm.operator import fused_add_rms_norm_backward, fused_add_rms_norm_forward
from normtune.kernels.mode import Product, Sum
from normtune.kernels.rms_norm.function import CALLS as RMS_NORM
from normtune.kernels.rms_norm.function import RMSNorm, RMSNormDecomposition, normalizing


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

    def _rms_norm(self) -> RMSNormDecomposition:
        return RMSNormDecomposition(rounds_product=self.rounds_product)


Rounding = Literal["float32", "sum", "llama"]
ROUNDINGS = get_args(Rounding)
_operation = partial(
    normalizing,
    forward=fused_add_rms_norm_forward,
    backward=fused_add_rms_norm_backward,
    like={"s": "residual", "dx": "s"},
    in_place={"y": "x", "s": "residual"},
    shared={"residual": "dx"},
)
_op = partial(BackwardOp, forward=forward_of_three)
CALLS: dict[Rounding, BackwardOp] = {
    "float32": _op(_operation(name="fused_add_rms_norm", formula=FusedAddDecomposition())),
    "sum": _op(
        _operation(name="fused_add_rms_norm_rounded_sum", modes=(Sum.ROUNDED,), formula=FusedAddDecomposition(True))
    ),
    "llama": _op(
        _operation(
            name="fused_add_rms_norm_llama",
            modes=(Sum.ROUNDED, Product.ROUNDED),
            formula=FusedAddDecomposition(True, True),
        )
    ),
}


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = 1e-6,
    offset: float = 0.0,
    batch_invariant: bool | None = None,
    *,
    rounding: Rounding = "float32",
    in_place: bool = False,
    reuse_dy: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sum of two tensors and its RMSNorm, in one launch, differentiable in x, residual and weight.

    s = x + residual, added in float32 and rounded once to residual's dtype; y = s * rstd * (weight + offset) with
    rstd = 1 / sqrt(mean(s^2) + eps) over the last dimension. The kernels take what those of `rms_norm` take; all other
    inputs are composed of torch's operations.

    Args:
        x: (..., hidden), bfloat16, float16, float32 or float64.
        residual: of x's shape, of x's dtype or float32.
        weight: (hidden,), on x's device; None for y = s * rstd.
        eps: added to the mean square; None for the machine epsilon of float32, or of float64 if x is float64.
        offset: added to the weight, in float32: 1.0 for weights that are stored around zero.
        batch_invariant: as in `rms_norm`.
        rounding: what is rounded to the dtype on the way, where others round: `float32`, nothing, as in FlashInfer and
            quack; `sum`, y is computed from the stored s, as in Liger-Kernel's mode `gemma`; `llama`, the same, and
            s * rstd is rounded to x's dtype before the multiplication, as in vLLM and in Hugging Face's Llama and Qwen.
            Bits are theirs but where another order of the sum of squares moves a value across a boundary of rounding.
        in_place: write y into x and s into residual, and return these; without gradients. Neither may share memory
            with another tensor of the call, nor its rows with each other.
        reuse_dy: as in `rms_norm`; only where y's gradient has the dtype of residual.

    Returns:
        y, of x's shape and dtype, and s, of x's shape and residual's dtype, both contiguous.

    Raises:
        TypeError: x, residual or weight is not a tensor, eps or offset not a number, or a flag not a bool.
        ValueError: another argument is wrong; the message names it and its value. Nothing was launched.
    """
    if rounding not in ROUNDINGS:
        check_choice("rounding", rounding, ROUNDINGS)
    calls = CALLS[rounding]
    if in_place is not False:
        check_flag("in_place", in_place)
        calls.call_in_place((x, residual, weight), (eps, offset), batch_invariant)
        return x, residual
    if (
        is_compiling()
        or type(x) not in PLAIN_TYPES
        or type(residual) not in PLAIN_TYPES
        or (weight is not None and type(weight) not in PLAIN_TYPES)
        or (type(eps) is not float and eps is not None)
        or type(offset) is not float
        or reuse_dy is not False
        or (batch_invariant is not None and batch_invariant is not True and batch_invariant is not False)
        or has_torch_function_variadic(x, residual, weight)
        or modes()
        or transforms()
        or forward_ad._current_level >= 0
        or is_traced()
    ):
        return calls.call((x, residual, weight), (eps, offset), batch_invariant, reuse_dy)  # type: ignore[no-any-return]
    if eps is None:
        eps = machine_epsilon(x)
    mode = is_batch_invariant() if batch_invariant is None else batch_invariant
    if is_grad_enabled() and (
        x.requires_grad or residual.requires_grad or (weight is not None and weight.requires_grad)
    ):
        return apply(calls, (eps, offset), mode, False, x, residual, weight)  # type: ignore[no-any-return]
    y, s, _, _ = forward_of_three(calls.operation, (x, residual, weight), (eps, offset), mode, False)
    return y, s


for _rounding, _calls in CALLS.items():
    _calls.public = update_wrapper(partial(fused_add_rms_norm, rounding=_rounding), fused_add_rms_norm)


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
    calls, incoming = (RMS_NORM["gemma"], (dy,)) if ds is None else (CALLS["float32"], (dy, ds))
    check_backward(calls.operation, (*incoming, x, weight, rstd), "x")
    for name, flag in (("needs_dx", needs_dx), ("needs_dweight", needs_dweight)):
        check_flag(name, flag)
    check_flag("batch_invariant", batch_invariant, is_optional=True)
    needs_dweight = needs_dweight and weight is not None
    options = (number("eps", eps), number("offset", offset), batch_invariant, needs_dx, needs_dweight)
    dx, dweight = calls.call_backward(*incoming, x, weight, rstd, *options)
    return dx if needs_dx else None, dweight if needs_dweight else None
