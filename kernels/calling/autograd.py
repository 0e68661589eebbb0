"""Gradients of an operation for autograd, of any order.

In: tensors. Out: outputs with a graph. First gradients are launched (`eager`); higher ones come from the formula.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.layout import has_memory
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.written_out import gradients_of, saving_of


def function_of(
    operation: Operation,
    forward: Callable[..., tuple[Any, ...]],
    backward: Callable[..., tuple[Any, ...]],
    first: Callable[..., tuple[Any, ...]] | None = None,
) -> type[torch.autograd.Function]:
    """The autograd function of inputs and a tuple of scalars and batch_invariant.

    Args:
        operation: that it computes.
        forward: of `written_out.forward_of`.
        backward: of `written_out.backward_of`.
        first: the same, for gradients that need none of their own; `backward` unless it is given.
    """

    class Gradients(torch.autograd.Function):
        """`backward`, with the gradients of the formula."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            """Gradients."""
            *tensors, ctx.plan, _, _ = arguments
            ctx.save_for_backward(*tensors)
            return backward(*arguments)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            """Gradients of the gradients of outputs and of the saved tensors."""
            found = second_derivatives(operation, ctx.saved_tensors, gradients, ctx.plan.scalars)
            return (*found, None, None, None)

    def recorded(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients with a graph."""
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad
        if all(map(has_memory, incoming)):
            found = Gradients.apply(  # type: ignore[no-untyped-call]
                *incoming, *saved, ctx.plan, *operation.needed(needs)
            )
        else:  # batched: no autograd function may intervene
            found = _composed(operation, incoming, saved[: len(operation.saved_inputs)], ctx.plan.scalars)
        return (*(found[index] for index in operation.gradient_of), None)

    class Function(torch.autograd.Function):
        """`forward` with gradients of any order."""

    Function.forward = staticmethod(saving_of(operation, forward))  # type: ignore[method-assign]
    Function.backward = staticmethod(gradients_of(operation, first or backward, recorded))  # type: ignore[method-assign]
    return Function


def second_derivatives(
    operation: Operation,
    saved: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    scalars: tuple[float, ...],
) -> list[Tensor | None]:
    """Gradients of a backward's inputs, from those of its outputs; differentiable themselves.

    Args:
        operation: whose backward it is.
        saved: the gradients of outputs, then the saved tensors, of which factors are computed again.
        gradients: of the backward's results; None for one without dependents.
        scalars: of the forward.
    """
    names = (*operation.incoming, *operation.saved)
    inputs = (*operation.incoming, *operation.saved_inputs)
    count = len(operation.incoming)
    read = dict(zip(names, saved, strict=True))
    found = gradients_through(
        lambda leaves: _composed(operation, leaves[:count], leaves[count:], scalars),
        *([read[name] for name in inputs], gradients),
    )
    by_name = dict(zip(inputs, found, strict=True))
    return [by_name.get(name) for name in names]


def gradients_through(
    formula: Callable[[Sequence[Any]], Sequence[Tensor | None]],
    read: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of a formula's inputs, from those of its outputs; with a graph where grad mode is on.

    Args:
        formula: in torch's operations, of a sequence of tensors.
        read: this sequence; None for a missing tensor, which has no gradient.
        gradients: of the formula's results; None for one without dependents.
    """
    with torch.enable_grad():
        # New leaves of the same values: dependencies between them stay out of these gradients.
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
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    )
    return [None if leaf is None else next(computed) for leaf in leaves]


def _composed(
    operation: Operation, incoming: Sequence[Tensor | None], saved: Sequence[Tensor | None], scalars: tuple[float, ...]
) -> Sequence[Tensor | None]:
    """The gradients by the formula, of the saved tensors without factors, on which these depend."""
    named = dict(zip(operation.saved_inputs, saved, strict=True))
    factors = iter(operation.formula.factors(*saved, *scalars))
    whole = [named[name] if name in named else next(factors) for name in operation.saved]
    found: Sequence[Tensor | None] = operation.formula.backward(*incoming, *whole, *scalars)
    return found
