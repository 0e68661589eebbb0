"""`qk_norm` as operators of torch's dispatcher, with gradients: for autograd, compilers, modes and subclasses.

In: tensors. Out: `torch.ops.normtune.qk_norm`, which makes a new tensor and has gradients of any order;
`qk_norm_in_place`, which writes qkv and has none; and `qk_norm_backward`. Tables and positions have no gradients.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.qk_norm import composed
from normtune.kernels.qk_norm.calls import Asked, gradients_of, result_of
from normtune.kernels.qk_norm.composed import Tensors
from normtune.kernels.qk_norm.variants import BACKWARD, FAMILY

_library = torch.library.Library("normtune", "FRAGMENT")
_TENSORS = "Tensor{} qkv, Tensor weight_q, Tensor weight_k, Tensor? cos, Tensor? sin, Tensor? positions, "
_OTHERS = "int heads_q, int heads_k, int rotary_dim, float eps, float offset, str variant, bool? batch_invariant"
_SCHEMAS = {
    FAMILY: f"({_TENSORS.format('')}{_OTHERS}) -> Tensor",
    f"{FAMILY}_in_place": f"({_TENSORS.format('(a!)')}{_OTHERS}) -> ()",
    BACKWARD: f"(Tensor dout, {_TENSORS.format('')}{_OTHERS}, bool needs_dweight) -> (Tensor, Tensor, Tensor)",
}
_COUNT = len(Tensors._fields)


def _read(arguments: tuple[Any, ...]) -> tuple[Tensors, Asked]:
    *others, mode = arguments[_COUNT:]
    return Tensors(*arguments[:_COUNT]), Asked._make((*others, is_batch_invariant() if mode is None else mode))


def _forward(*arguments: Any) -> Tensor:
    return result_of(*_read(arguments))


def _in_place(*arguments: Any) -> None:
    result_of(*_read(arguments))


def _backward(dout: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *read, needs_dweight = arguments
    return gradients_of(dout, *_read(tuple(read)), needs_dweight)


def _forward_shapes(qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _in_place_shapes(*_: Any) -> None:
    return None


def _backward_shapes(dout: Tensor, qkv: Tensor, weight_q: Tensor, weight_k: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in (qkv, weight_q, weight_k))


def _saver(tensors: int) -> Callable[..., None]:
    """Saves the first arguments, which are tensors or None, and the others."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.others = inputs[tensors:]

    return save


def _gradient(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    needs_dweight = any(ctx.needs_input_grad[1:3])
    found = backward(dout, *ctx.saved_tensors, *ctx.others, needs_dweight)
    return (*found, *[None] * (_COUNT - 3 + len(ctx.others)))


def _second_gradient(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients of what the backward read, from those of what it wrote, by the formula."""
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        # New leaves of the same values: dependencies between them stay out of these gradients.
        leaves = [
            tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()
            for tensor in ctx.saved_tensors[:4]
        ]
        dout, *read = leaves
        tensors, asked = _read((*read, *ctx.saved_tensors[4:], *ctx.others[:-1]))
        outputs = composed.backward(asked.work(tensors), dout, tensors, asked.eps, asked.offset)
        asked_for = [(out, grad) for out, grad in zip(outputs, gradients, strict=True) if grad is not None]
    found = torch.autograd.grad(
        *([out for out, _ in asked_for], leaves, [grad for _, grad in asked_for]),
        create_graph=is_recorded,
        allow_unused=True,
    )
    return (*found, *[None] * (_COUNT - 3 + len(ctx.others)))


def _define(name: str, calls: Any, shapes: Any) -> Any:
    _library.define(name + _SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
    for backend in ("CPU", "CUDA"):
        _library.impl(name, calls, backend)
    torch.library.register_fake(f"normtune::{name}", shapes, lib=_library)
    return getattr(torch.ops.normtune, name)


forward = _define(FAMILY, _forward, _forward_shapes)
in_place = _define(f"{FAMILY}_in_place", _in_place, _in_place_shapes)
backward = _define(BACKWARD, _backward, _backward_shapes)
torch.library.register_autograd(f"normtune::{FAMILY}", _gradient, setup_context=_saver(_COUNT), lib=_library)
torch.library.register_autograd(
    f"normtune::{BACKWARD}", _second_gradient, setup_context=_saver(1 + _COUNT), lib=_library
)
