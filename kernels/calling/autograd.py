"""Gradients of an operation, of any order, as a `torch.autograd.Function`.

In: tensors. Out: outputs with a graph. Kernels compute first gradients (`eager`), the formula computes higher ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.codegen import gradients_of, saving_of
from normtune.kernels.calling.layout import has_memory
from normtune.kernels.calling.operation import Operation


def function_of(
    operation: Operation,
    forward: Callable[..., tuple[Any, ...]],
    backward: Callable[..., tuple[Any, ...]],
    first: Callable[..., tuple[Any, ...]] | None = None,
) -> type[torch.autograd.Function]:
    """The autograd function, which takes the inputs and the tuple (*scalars, batch_invariant).

    `forward` and `backward` are from `codegen`; `first` is another backward, for gradients that have no graph.
    """

    class Gradients(torch.autograd.Function):
        """`backward` as a differentiable function; its own gradients are those of the formula."""

        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            """The gradients of the inputs."""
            *tensors, ctx.plan, _, _ = arguments
            ctx.save_for_backward(*tensors)
            return backward(*arguments)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            """Second derivatives: gradients of what `forward` reads."""
            seconds = second_derivatives(operation, ctx.saved_tensors, gradients, ctx.plan.scalars)
            return (*seconds, None, None, None)

    def recorded(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        """The backward while grad mode is on: gradients with a graph."""
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad
        if all(map(has_memory, incoming)):
            gradients = Gradients.apply(  # type: ignore[no-untyped-call]
                *incoming, *saved, ctx.plan, *operation.needed(needs)
            )
        else:  # batched gradients: vmap cannot see through an autograd function
            gradients = _by_formula(operation, incoming, saved[: len(operation.saved_inputs)], ctx.plan.scalars)
        return (*(gradients[index] for index in operation.gradient_of), None)

    class Function(torch.autograd.Function):
        """The forward and backward that `codegen` generates."""

    Function.forward = staticmethod(saving_of(operation, forward))  # type: ignore[method-assign]
    Function.backward = staticmethod(gradients_of(operation, first or backward, recorded))  # type: ignore[method-assign]
    return Function


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
            create_graph=torch.is_grad_enabled(),
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
