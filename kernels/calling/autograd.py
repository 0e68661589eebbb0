"""Gradients of an operation, of any order, as a `torch.autograd.Function`.

In: tensors. Out: outputs with a graph. Kernels compute first gradients (`eager`), the formula computes higher ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from normtune.kernels.calling.cached import backward
from normtune.kernels.calling.eager import CallPlan
from normtune.kernels.calling.layout import has_memory
from normtune.kernels.calling.operation import Operation

# Number of the arguments of `Function` before its tensors.
UNGRADED = 4


class Function(torch.autograd.Function):
    """A call with a graph, for eager mode."""

    @staticmethod
    def forward(
        ctx: Any, op: Any, scalars: tuple[float, ...], batch_invariant: bool, reuse_dy: bool, *tensors: Any
    ) -> Any:
        """The results of an `Op`, as of its `call`, from checked arguments."""
        outputs = op.forward(op.operation, tensors, scalars, batch_invariant, True)
        ctx.call = op, outputs[-1], reuse_dy
        ctx.save_for_backward(*op.saved(tensors + outputs))
        return outputs[op.picked]

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        """The gradients of the inputs, as of `Op.gradients`."""
        return (*(None,) * UNGRADED, *ctx.call[0].gradients(ctx, incoming))


# `Function.apply` without its support for function transforms, which do not come here: saves 2 us.
apply: Callable[..., Any] = super(torch.autograd.Function, Function).apply  # type: ignore[misc]


def differentiable(
    plan: CallPlan, incoming: tuple[Tensor, ...], saved: tuple[Any, ...], needs: tuple[bool, bool]
) -> Sequence[Tensor | None]:
    """The gradients of `cached.backward`, with a graph."""
    if all(map(has_memory, incoming)):
        return Gradients.apply(plan, needs, *incoming, *saved)  # type: ignore[no-any-return, no-untyped-call]
    # Batched gradients: vmap cannot see through an autograd function.
    operation = plan.operation
    return _by_formula(operation, incoming, saved[: len(operation.saved_inputs)], plan.scalars)


class Gradients(torch.autograd.Function):
    """The backward as a differentiable function; its own gradients are those of the formula."""

    @staticmethod
    def forward(ctx: Any, plan: Any, needs: tuple[bool, bool], *tensors: Any) -> Any:
        """The gradients of the inputs."""
        ctx.plan = plan
        ctx.save_for_backward(*tensors)
        return backward(tensors, plan, *needs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Second derivatives: gradients of what `forward` reads."""
        plan = ctx.plan
        return (None, None, *second_derivatives(plan.operation, ctx.saved_tensors, gradients, plan.scalars))


def second_derivatives(
    operation: Operation,
    saved: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    scalars: tuple[float, ...],
) -> list[Tensor | None]:
    """Gradients of the inputs of a backward, differentiable themselves.

    Args:
        operation: the declaration.
        saved: the inputs of the backward: gradients of outputs, then saved tensors. Factors are computed again.
        gradients: of the results of the backward; None for one that nothing depends on.
        scalars: of the forward.
    """
    names = (*operation.incoming, *operation.saved)
    inputs = (*operation.incoming, *operation.saved_inputs)
    count = len(operation.incoming)
    read = dict(zip(names, saved, strict=True))
    seconds = gradients_through(
        lambda leaves: _by_formula(operation, leaves[:count], leaves[count:], scalars),
        *([read[name] for name in inputs], gradients),
    )
    by_name = dict(zip(inputs, seconds, strict=True))
    return [by_name.get(name) for name in names]


def gradients_through(
    formula: Callable[[Sequence[Any]], Sequence[Tensor | None]],
    read: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of the inputs of a formula; they have a graph while grad mode is on.

    Args:
        formula: takes a sequence of tensors and uses torch's operations only.
        read: this sequence; None for a missing tensor, which has no gradient.
        gradients: of the results of the formula; None for one that nothing depends on.
    """
    with torch.enable_grad():
        # New leaves, so that no tensor counts as a function of another one.
        leaves = [
            tensor
            if tensor is None
            else tensor.view_as(tensor)
            if tensor.requires_grad
            else tensor.detach().requires_grad_()
            for tensor in read
        ]
        pairs = [
            (out, grad)
            for out, grad in zip(formula(leaves), gradients, strict=True)
            if out is not None and grad is not None
        ]
    if not pairs:
        return [None] * len(leaves)
    computed = iter(
        torch.autograd.grad(
            [out for out, _ in pairs],
            [leaf for leaf in leaves if leaf is not None],
            [grad for _, grad in pairs],
            create_graph=is_grad_enabled(),
            allow_unused=True,
        )
    )
    return [None if leaf is None else next(computed) for leaf in leaves]


def _by_formula(
    operation: Operation, incoming: Sequence[Tensor | None], saved: Sequence[Tensor | None], scalars: tuple[float, ...]
) -> Sequence[Tensor | None]:
    """The gradients, given saved tensors without the factors: these are functions of them and are computed again."""
    named = dict(zip(operation.saved_inputs, saved, strict=True))
    factors = iter(operation.formula.factors(*saved, *scalars))
    whole = [named[name] if name in named else next(factors) for name in operation.saved]
    gradients: Sequence[Tensor | None] = operation.formula.backward(*incoming, *whole, *scalars)
    return gradients
