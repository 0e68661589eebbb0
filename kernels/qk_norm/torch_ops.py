"""`qk_norm` as operators of torch's dispatcher, with gradients: for autograd, compilers, modes and subclasses.

In: tensors. Out: `torch.ops.normtune.qk_norm`, which makes a new tensor and has gradients of any order;
`qk_norm_in_place`, which writes qkv and has none; and `qk_norm_backward`. Tables and positions have no gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from normtune.kernels.calling.autograd import gradients_through
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.torch_ops import define
from normtune.kernels.qk_norm import decomposition
from normtune.kernels.qk_norm.calls import CallArguments, gradients_of, result_of
from normtune.kernels.qk_norm.decomposition import Tensors
from normtune.kernels.qk_norm.modes import BACKWARD, FAMILY

_TENSORS = "Tensor{} qkv, Tensor weight_q, Tensor weight_k, Tensor? cos, Tensor? sin, Tensor? positions, "
_OTHERS = "int heads_q, int heads_k, int rotary_dim, float eps, float offset, str variant, bool? batch_invariant"
_COUNT = len(Tensors._fields)


def _read(arguments: tuple[Any, ...]) -> tuple[Tensors, CallArguments]:
    *others, mode = arguments[_COUNT:]
    return Tensors(*arguments[:_COUNT]), CallArguments._make((*others, is_batch_invariant() if mode is None else mode))


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
    """Saves the first arguments, which are tensors or None, and keeps the others in `ctx.others`."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensors])
        ctx.others = inputs[tensors:]

    return save


def _gradient(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    needs_dweight = any(ctx.needs_input_grad[1:3])
    gradients = backward(dout, *ctx.saved_tensors, *ctx.others, needs_dweight)
    return (*gradients, *[None] * (_COUNT - 3 + len(ctx.others)))


def _second_gradient(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Second derivatives by the formula: gradients of the backward's inputs from those of its outputs."""

    def formula(leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        dout, *read = leaves
        tensors, call = _read((*read, *ctx.saved_tensors[4:], *ctx.others[:-1]))
        return decomposition.backward(call.problem(tensors)[1], dout, tensors, call.eps, call.offset)

    inner = gradients_through(formula, ctx.saved_tensors[:4], gradients)
    return (*inner, *[None] * (_COUNT - 3 + len(ctx.others)))


_READ = _TENSORS.format("")
forward = define(FAMILY, f"({_READ}{_OTHERS}) -> Tensor", _forward, _forward_shapes, _gradient, _saver(_COUNT))
in_place = define(f"{FAMILY}_in_place", f"({_TENSORS.format('(a!)')}{_OTHERS}) -> ()", _in_place, _in_place_shapes)
backward = define(
    BACKWARD,
    f"(Tensor dout, {_READ}{_OTHERS}, bool needs_dweight) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_shapes,
    _second_gradient,
    _saver(1 + _COUNT),
)
