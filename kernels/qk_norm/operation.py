"""The operations of `qk_norm` and its backward, and their operators of torch's dispatcher.

In: the heads of a token and a variant. Out: an `Op` for each of these, without a backward, as all its tensors but qkv
have shapes of their own; `torch.ops.normtune.qk_norm`, which makes a new tensor and has gradients of any order;
`qk_norm_in_place`, which writes qkv and has none; and `qk_norm_backward`. Tables and positions have no gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from normtune.kernels.calling import cached
from normtune.kernels.calling.autograd import gradients_through
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.fallback import keeps_subnormal
from normtune.kernels.calling.layout import columns_of, readable, rows_of
from normtune.kernels.calling.op import Op
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.torch_ops import define
from normtune.kernels.mode import Dweight
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import ROWS_HIDDEN
from normtune.kernels.qk_norm.decomposition import BackwardDecomposition, ForwardDecomposition, Tensors
from normtune.kernels.qk_norm.modes import BACKWARD, FAMILY, Place, heads_of
from normtune.kernels.qk_norm.operator import qk_norm, qk_norm_backward

# Tensors that have all heads of a token.
_FUSED = "qkv", "out", "dout", "dqkv"
_COUNT = len(Tensors._fields)


class HeadsOperation(Operation):
    """An operation on rows of heads, of which it may write some in place."""

    @cached_property
    def axes(self) -> dict[str, str]:
        """The axes of fused tensors; all others have the shapes of the spec's buffers."""
        return {buffer.name: ROWS_HIDDEN if buffer.name in _FUSED else "" for buffer in self._buffers(self.forward)}

    @property
    def kernels_take(self) -> str:
        """What the kernels take, for errors."""
        return super().kernels_take.replace("rows", "heads")

    def divided(self, inputs: Mapping[str, Tensor | None]) -> tuple[dict[str, Any], dict[str, Tensor | None]]:
        """The query and key heads of qkv, which a call in place writes, and the tensors that it only reads."""
        read = dict(inputs)
        qkv, weight = read.pop("qkv"), inputs["weight_q"]
        assert qkv is not None and weight is not None
        problem = self.forward.problem(1, 1, "float32", self.variants[self.forward.name][True])
        columns = heads_of(problem).written * weight.shape[0]
        return {f"qkv[..., :{columns}]": qkv[..., :columns]}, read


@cache
def op_of(heads_q: int, heads_k: int, rotary_dim: int, heads: int, variant: str) -> Op:
    """The forward of a variant of `modes.FAMILY`; arguments as in `modes.operator_name`."""
    spec = qk_norm.at(heads_q=heads_q, heads_k=heads_k, heads=heads, rotary_dim=rotary_dim)
    layout = _layout_in_place if _is_in_place(variant) else _layout
    operation = _operation(spec, variant, heads, ForwardDecomposition(spec.key("float32", variant)), layout)

    def special(tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> tuple[Tensor, ...]:
        absent = (None,) * (_COUNT - len(tensors))
        return dispatched((*tensors, *absent), (heads_q, heads_k, rotary_dim), scalars, variant, batch_invariant)

    return Op(operation, special)


@cache
def _backward_of(
    heads_q: int, heads_k: int, rotary_dim: int, heads: int, variant: str, needs_dweight: bool
) -> HeadsOperation:
    """The backward of a variant of the forward."""
    spec = qk_norm_backward.at(heads_q=heads_q, heads_k=heads_k, heads=heads, rotary_dim=rotary_dim)
    key = qk_norm.key("float32", variant)
    shared = [mode.of(key) for mode in spec.modes if mode in qk_norm.modes]
    variant = spec.variant(Dweight.COMPUTED if needs_dweight else Dweight.NONE, *shared)
    return _operation(spec, variant, heads, BackwardDecomposition(spec.key("float32", variant)), _layout)


def _operation(
    spec: OperatorSpec, variant: str, heads: int, formula: Any, layout: Callable[..., dict[str, Tensor | None]]
) -> HeadsOperation:
    key = spec.key("float32", variant)
    return HeadsOperation(
        name=FAMILY,
        forward=spec,
        formula=formula,
        defaults={"eps": 1e-6, "offset": 0.0},
        compiler_options=keeps_subnormal,
        modes=tuple(mode.of(key) for mode in spec.modes),
        heads=heads,
        layout=layout,
    )


def _layout(tensors: Mapping[str, Tensor], batch_invariant: bool) -> dict[str, Tensor | None]:
    """Fused tensors and tables as matrices, one row for each token; the others contiguous."""
    qkv = tensors["qkv"]
    laid_out: dict[str, Tensor | None] = {}
    for name, tensor in tensors.items():
        if name in ("weight_q", "weight_k"):
            laid_out[name] = columns_of(name, tensor, qkv)
        elif name == "positions":
            laid_out[name] = tensor.reshape(-1).contiguous()
        else:
            is_taken = tensor.dtype in (qkv.dtype, torch.float32)
            laid_out[name] = rows_of(name, tensor if is_taken else tensor.float(), batch_invariant)
    return laid_out


def _layout_in_place(tensors: Mapping[str, Tensor], batch_invariant: bool) -> dict[str, Tensor | None]:
    """As `_layout`.

    Raises:
        ValueError: tokens of qkv are not one stride apart, or their elements not contiguous.
    """
    qkv = tensors["qkv"]
    try:
        is_matrix = readable("qkv", qkv).view(-1, qkv.shape[-1]).stride(1) == 1
    except RuntimeError:
        is_matrix = False
    if not is_matrix:
        expected = "expected tokens one stride apart, elements in order, or in_place=False"
        raise ValueError(f"qkv has shape {tuple(qkv.shape)} and strides {qkv.stride()}: {expected}")
    return _layout(tensors, batch_invariant)


def dispatched(
    tensors: tuple[Any, ...],
    sizes: tuple[int, int, int],
    scalars: tuple[Any, ...],
    variant: str,
    batch_invariant: bool | None,
) -> tuple[Tensor, ...]:
    """The results of an `Op`, as of its `call`, through torch's dispatcher, or by the formula in function transforms.

    Args:
        tensors: the fields of `decomposition.Tensors`.
        sizes: query heads, key heads, rotated elements of a head.
        scalars: eps and offset.
        variant: of the problem.
        batch_invariant: as in `Op.call`.
    """
    is_compiling, is_in_place = torch.compiler.is_compiling(), _is_in_place(variant)
    if batch_invariant is None and not is_compiling:  # a backward runs in another thread
        batch_invariant = is_batch_invariant()
    if not is_compiling and (torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0):
        if batch_invariant or is_in_place:
            named = "in_place" if is_in_place else "batch_invariant"
            inside = "inside of a transform of torch.func or a forward-mode derivative"
            raise ValueError(f"{named} is on {inside}: expected it off")
        op = op_of(*sizes, _heads(tensors), variant)
        return op.operation.formula.forward(*_without_none(tensors), *scalars)  # type: ignore[no-any-return]
    if is_in_place:
        in_place(*tensors, *sizes, *scalars, variant, batch_invariant)
        return ()
    return (forward(*tensors, *sizes, *scalars, variant, batch_invariant),)


def _is_in_place(variant: str) -> bool:
    # Compilers trace it: the words of a mode are found there without the mode.
    return Place.NEW.value not in variant


def _heads(tensors: Sequence[Any]) -> int:
    """Heads of a token, of the tensors of a forward."""
    return tensors[0].shape[-1] // tensors[1].shape[0]  # type: ignore[no-any-return]


def _without_none(tensors: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([tensor for tensor in tensors if tensor is not None])


def _call_forward(*arguments: Any) -> Tensor:
    return _launched(arguments)[0]


def _call_in_place(*arguments: Any) -> None:
    _launched(arguments)
    increment_version(arguments[0])  # below autograd its written part, a view, has a version of its own


def _launched(arguments: tuple[Any, ...]) -> Sequence[Any]:
    tensors, (*sizes, eps, offset, variant, mode) = arguments[:_COUNT], arguments[_COUNT:]
    mode = is_batch_invariant() if mode is None else mode
    operation = op_of(*sizes, _heads(tensors), variant).operation
    return cached.forward(operation, _without_none(tensors), (eps, offset), mode, False)


def _call_backward(dout: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors, (*sizes, eps, offset, variant, mode, needs_dweight) = arguments[:_COUNT], arguments[_COUNT:]
    mode = is_batch_invariant() if mode is None else mode
    qkv, *weights = tensors[:3]
    operation = _backward_of(*sizes, _heads(tensors), variant, needs_dweight)
    read = dout.to(qkv.dtype), *_without_none(tensors)
    dqkv, *others = cached.forward(operation, read, (eps, offset), mode, False)
    dweights = others[0] if needs_dweight else map(torch.empty_like, weights)
    dweight_q, dweight_k = (
        dweight.to(weight.dtype, copy=True) for dweight, weight in zip(dweights, weights, strict=True)
    )
    return dqkv, dweight_q, dweight_k


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
    *sizes, eps, offset, variant, _, _ = ctx.others
    tensors = ctx.saved_tensors[1:]
    formula = _backward_of(*sizes, _heads(tensors), variant, True).formula

    def gradients_of(leaves: Sequence[Tensor]) -> Sequence[Tensor]:
        dqkv, dweights = formula.forward(*leaves, *_without_none(tensors[3:]), eps, offset)
        return dqkv, *(dweight.to(weight.dtype) for dweight, weight in zip(dweights, leaves[2:], strict=True))

    inner = gradients_through(gradients_of, ctx.saved_tensors[:4], gradients)
    return (*inner, *[None] * (_COUNT - 3 + len(ctx.others)))


_TENSORS = "Tensor{} qkv, Tensor weight_q, Tensor weight_k, Tensor? cos, Tensor? sin, Tensor? positions, "
_OTHERS = "int heads_q, int heads_k, int rotary_dim, float eps, float offset, str variant, bool? batch_invariant"
_READ = _TENSORS.format("")
forward = define(FAMILY, f"({_READ}{_OTHERS}) -> Tensor", _call_forward, _forward_shapes, _gradient, _saver(_COUNT))
in_place = define(f"{FAMILY}_in_place", f"({_TENSORS.format('(a!)')}{_OTHERS}) -> ()", _call_in_place, _in_place_shapes)
backward = define(
    BACKWARD,
    f"(Tensor dout, {_READ}{_OTHERS}, bool needs_dweight) -> (Tensor, Tensor, Tensor)",
    _call_backward,
    _backward_shapes,
    _second_gradient,
    _saver(1 + _COUNT),
)
