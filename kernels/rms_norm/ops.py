"""RMSNorm as operators of torch's dispatcher, for compilers, exporters, modes and subclasses, which intercept calls.

In: import. Out: `torch.ops.normtune.rms_norm_forward` and `rms_norm_backward`, with shapes for tensors without memory,
and with autograd. On a GPU they make the same launches as eager calls, with the same bits; on a CPU they are composed
of torch's operations. In a compiled function each call reads the batch-invariant mode.
"""

from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.rms_norm import composed, eager
from normtune.kernels.rms_norm.arguments import check
from normtune.kernels.rms_norm.autograd import second_derivatives

NAMESPACE = "normtune"
FORWARD, BACKWARD = f"{NAMESPACE}::rms_norm_forward", f"{NAMESPACE}::rms_norm_backward"

# Operators live as long as this fragment: as long as the module.
_library = torch.library.Library(NAMESPACE, "DEF")
_library.define(
    "rms_norm_forward(Tensor x, Tensor? weight, float eps, float offset, bool? batch_invariant, bool store_rstd)"
    " -> (Tensor y, Tensor rstd)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, float eps, float offset,"
    " bool? batch_invariant, bool needs_dx, bool needs_dweight) -> (Tensor dx, Tensor dweight)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _forward(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, batch_invariant: bool | None, store_rstd: bool
) -> tuple[Tensor, Tensor]:
    mode = is_batch_invariant() if batch_invariant is None else batch_invariant
    y, rstd, _ = eager.forward(x, weight, eps, offset, mode, store_rstd)
    return y, _or_nothing(rstd.view(x.shape[:-1]) if rstd is not None and store_rstd else None, x)


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    offset: float,
    batch_invariant: bool | None,
    needs_dx: bool,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor]:
    mode = eager.is_marked(rstd) or is_batch_invariant() if batch_invariant is None else batch_invariant
    plan = eager.Plan(x, weight, eps, offset, mode)
    dx, dweight = eager.backward(dy, x, weight, rstd.reshape(-1), plan, needs_dx, needs_dweight)
    return _or_nothing(dx, x), _or_nothing(dweight, x)


for _backend in ("CPU", "CUDA"):
    _library.impl("rms_norm_forward", _forward, _backend)
    _library.impl("rms_norm_backward", _backward, _backend)


@torch.library.register_fake(FORWARD, lib=_library)
def _forward_shapes(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, batch_invariant: bool | None, store_rstd: bool
) -> tuple[Tensor, Tensor]:
    check(x, weight, eps, offset)
    rstd = x.new_empty(x.shape[:-1], dtype=composed.wide_dtype(x)) if store_rstd else None
    return x.new_empty(x.shape), _or_nothing(rstd, x)


@torch.library.register_fake(BACKWARD, lib=_library)
def _backward_shapes(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    eps: float,
    offset: float,
    batch_invariant: bool | None,
    needs_dx: bool,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor]:
    dweight = None if weight is None or not needs_dweight else weight.new_empty(weight.shape)
    return x.new_empty(x.shape) if needs_dx else _or_nothing(None, x), _or_nothing(dweight, x)


def _or_nothing(tensor: Tensor | None, x: Tensor) -> Tensor:
    """The tensor; an empty one for None, as an operator must return tensors."""
    return x.new_empty(0) if tensor is None else tensor


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, *ctx.options, store_rstd = inputs
    ctx.save_for_backward(x, weight, output[1] if store_rstd else None)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _forward_gradient(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 4
    if dy is None:
        return (None, None, *nothing)
    x, weight, rstd = ctx.saved_tensors
    if rstd is None:  # traced without gradients, but called with them
        rstd = torch.ops.normtune.rms_norm_forward(x, weight, *ctx.options, True)[1]
    needs_dx, needs_dweight = ctx.needs_input_grad[:2]
    gradients = torch.ops.normtune.rms_norm_backward(dy, x, weight, rstd, *ctx.options, needs_dx, needs_dweight)
    return (gradients[0] if needs_dx else None, gradients[1] if needs_dweight else None, *nothing)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    dy, x, weight, _, ctx.eps, ctx.offset, _, ctx.needs_dx, ctx.needs_dweight = inputs
    ctx.save_for_backward(dy, x, weight)
    ctx.set_materialize_grads(False)


def _backward_gradient(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    wanted = (ctx.needs_dx, ctx.needs_dweight)
    gradients = tuple(grad if is_wanted else None for grad, is_wanted in zip(gradients, wanted, strict=True))
    return (*second_derivatives(ctx.saved_tensors, gradients, ctx.eps, ctx.offset), *(None,) * 6)


torch.library.register_autograd(FORWARD, _forward_gradient, setup_context=_save_forward, lib=_library)
torch.library.register_autograd(BACKWARD, _backward_gradient, setup_context=_save_backward, lib=_library)
