"""Gradients of RMSNorm for autograd, of any order.

In: tensors. Out: y with a graph. First gradients are launched (`eager`); higher ones come from the formula
composed of torch's operations (`composed`).
"""

from typing import Any

import torch
from torch import Tensor

from normtune.kernels.rms_norm import composed
from normtune.kernels.rms_norm.eager import Plan, backward, forward
from normtune.kernels.rms_norm.readable import has_memory


class RMSNormFunction(torch.autograd.Function):
    """`forward` with gradients of any order; same arguments and errors, without `store_rstd`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, offset: float, batch_invariant: bool) -> Tensor:
        """Y."""
        y, rstd, plan = forward(x, weight, eps, offset, batch_invariant, True)
        ctx.save_for_backward(x, weight, rstd)
        ctx.plan = plan
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """Dx and dweight."""
        x, weight, rstd = ctx.saved_tensors
        needs_dx, needs_dweight = ctx.needs_input_grad[:2]
        # A recorded graph here means that gradients of gradients are wanted.
        function = _Backward.apply if torch.is_grad_enabled() else backward
        if function is not backward and not has_memory(dy):  # batched: no autograd function may intervene
            plan = ctx.plan
            _, factors = composed.forward(x, weight, plan.eps, plan.offset)
            found = composed.backward(dy, x, weight, factors, plan.offset)
            return found[0] if needs_dx else None, found[1] if needs_dweight else None, None, None, None
        dx, dweight = function(dy, x, weight, rstd, ctx.plan, needs_dx, needs_dweight)
        return dx, dweight, None, None, None


class _Backward(torch.autograd.Function):
    """`backward`, with the gradients of the composed formula."""

    @staticmethod
    def forward(
        ctx: Any,
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        rstd: Tensor,
        plan: Plan,
        needs_dx: bool,
        needs_dweight: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(dy, x, weight)
        ctx.plan = plan
        return backward(dy, x, weight, rstd, plan, needs_dx, needs_dweight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        plan = ctx.plan
        found = second_derivatives(ctx.saved_tensors, gradients, plan.eps, plan.offset)
        return (*found, None, None, None, None)


def second_derivatives(
    saved: tuple[Tensor, Tensor, Tensor | None], gradients: tuple[Tensor | None, ...], eps: float, offset: float
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of dy, x and weight, from those of dx and dweight; differentiable themselves.

    Args:
        saved: dy, x and weight.
        gradients: of dx and dweight; None for one without dependents.
        eps: of the forward.
        offset: of the forward.
    """
    with torch.enable_grad():
        # New leaves of the same values: dependencies between x and dy stay out of these gradients.
        leaves = [
            tensor if tensor is None else tensor.view_as(tensor) if tensor.requires_grad else tensor.detach()
            for tensor in saved
        ]
        for leaf in leaves:
            if leaf is not None and not leaf.requires_grad:
                leaf.requires_grad_()
        dy, x, weight = leaves
        assert dy is not None and x is not None
        _, rstd = composed.forward(x, weight, eps, offset)
        outputs = composed.backward(dy, x, weight, rstd, offset)
        asked = [
            (out, grad) for out, grad in zip(outputs, gradients, strict=True) if out is not None and grad is not None
        ]
    present = [leaf for leaf in leaves if leaf is not None]
    if not asked:
        return None, None, None
    computed = iter(
        torch.autograd.grad(
            *([out for out, _ in asked], present, [grad for _, grad in asked]),
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    )
    return tuple(None if leaf is None else next(computed) for leaf in leaves)  # type: ignore[return-value]
