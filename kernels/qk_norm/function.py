"""The public function, which normalizes and rotates the query and key heads of a fused QKV tensor.

In: arguments. Out: the fused tensor, in place or new. There is an `Operation` for each variant and numbers of heads, of
the forward and of the backward, and an operator of torch's dispatcher for all of each: `torch.ops.normtune.qk_norm`,
which makes a new tensor and has gradients of any order; `qk_norm_in_place`, which writes qkv and has none; and
`qk_norm_backward`. Tables and positions have no gradients.
"""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import (
    check_choice,
    check_device,
    check_flag,
    check_kind,
    check_tensor,
)
from normtune.kernels.calling.fallback import compute_dtype, keeps_subnormal, machine_epsilon, sum_of_rows
from normtune.kernels.calling.family import OpFamily
from normtune.kernels.calling.layout import has_memory
from normtune.kernels.calling.op import is_compiling
from normtune.kernels.calling.operation import Operation
from normtune.kernels.mode import Dweight, Mode, Product
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.qk_norm.launch import (
    BACKWARD,
    FAMILY,
    SIZES,
    Place,
    Positions,
    Rotary,
    RotationProducts,
    Tables,
    heads_of,
)
from normtune.kernels.qk_norm.operator import qk_norm as forward_spec
from normtune.kernels.qk_norm.operator import qk_norm_backward as backward_spec

RotaryStyle = Literal["neox", "gptj"]
Casting = Literal["gemma", "llama"]
Rotation = Literal["float32", "products"]
_CHOICES = {"rotary_style": get_args(RotaryStyle), "casting": get_args(Casting), "rotation": get_args(Rotation)}
_INDICES = (torch.int32, torch.int64)


class _Formula:
    """What the formulas of a forward and of its backward share.

    All arithmetic is in float32, or in float64 if qkv is float64. Differentiable, in every mode of torch.

    Args:
        problem: of the operation; its shape and dtype do not matter.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.heads = problem, heads_of(problem)
        self.is_neox, self.has_pairs = Rotary.of(problem) is Rotary.NEOX, Tables.of(problem) is Tables.PAIRS

    def divided(self, fused: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key heads (..., heads, head), and value heads, of a fused tensor."""
        # The order in which torch sums depends on strides.
        every = fused.contiguous().unflatten(-1, (-1, weight.shape[0]))
        end = self.heads.heads_q + self.heads.heads_k
        return every[..., :end, :], every[..., end:, :]

    def weights(self, weight_q: Tensor, weight_k: Tensor, dtype: torch.dtype, offset: float) -> Tensor:
        """(heads, head) weight + offset of each query and key head."""
        counts = self.heads.heads_q, self.heads.heads_k
        pairs = zip((weight_q, weight_k), counts, strict=True)
        return torch.cat([weight.to(dtype).expand(count, -1) for weight, count in pairs]) + offset

    def tables(self, qkv: Tensor, rotation: Sequence[Any], dtype: torch.dtype) -> list[Tensor]:
        """Cosines and sines (..., 1, rotary), one for each rotated element of a token.

        Args:
            qkv: (..., width).
            rotation: cosines, sines and, if the variant has them, positions.
            dtype: of the result.
        """
        tables, positions = rotation[:2], rotation[2:]
        results = []
        for table in tables:
            shape = (*qkv.shape[:-1], table.shape[-1])
            rows = table[positions[0].long()] if positions else table.view(shape)
            if self.has_pairs:
                rows = torch.cat([rows, rows], -1) if self.is_neox else rows.repeat_interleave(2, -1)
            results.append(rows.to(dtype).unsqueeze(-2))
        return results

    def partners(self, rotated: Tensor) -> Tensor:
        """The other element of each pair, negated for the first one."""
        if self.is_neox:
            first, second = rotated.chunk(2, -1)
            return torch.cat([-second, first], -1)
        first, second = rotated[..., ::2], rotated[..., 1::2]
        return torch.stack([-second, first], -1).flatten(-2)


class ForwardFormula(_Formula):
    """The formula of a forward in torch's operations."""

    def forward(self, qkv: Tensor, weight_q: Tensor, weight_k: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """Takes qkv (..., width), the weights, cosines, sines and positions if the variant has them, eps and offset.

        Returns:
            The fused tensor, contiguous, of qkv's dtype; nothing in place.
        """
        *rotation, eps, offset = others
        dtype, wide, rotary = qkv.dtype, compute_dtype(qkv), self.heads.rotary
        x, values = self.divided(qkv, weight_q)
        x = x.to(wide)
        xhat = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        if Product.of(self.problem) is Product.ROUNDED:
            xhat = xhat.to(dtype).to(wide)
        norm = (xhat * self.weights(weight_q, weight_k, wide, offset)).to(dtype)
        if rotary:
            cos, sin = self.tables(qkv, rotation, wide)
            rotated = norm[..., :rotary].to(wide)
            of_element, of_partner = rotated * cos, self.partners(rotated) * sin
            if RotationProducts.of(self.problem) is RotationProducts.ROUNDED:
                of_element, of_partner = of_element.to(dtype).to(wide), of_partner.to(dtype).to(wide)
            norm = torch.cat([(of_element + of_partner).to(dtype), norm[..., rotary:]], -1)
        if Place.of(self.problem) is Place.NEW:
            return (torch.cat([norm, values], -2).flatten(-2),)
        qkv[..., : norm.shape[-2] * norm.shape[-1]].copy_(norm.flatten(-2))
        return ()


class BackwardFormula(_Formula):
    """The formula of a backward; its gradients are those of the function without roundings."""

    def forward(
        self, dout: Tensor, qkv: Tensor, weight_q: Tensor, weight_k: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        """Takes the gradient of the fused tensor, and the arguments of the forward.

        Returns:
            The gradient of qkv and, unless the variant leaves it out, those of both weights, (2, head) in the dtype of
            the arithmetic.
        """
        *rotation, eps, offset = others
        wide, rotary = compute_dtype(qkv), self.heads.rotary
        (x, _), (dy, dvalues) = self.divided(qkv, weight_q), self.divided(dout, weight_q)
        x, dy = x.to(wide), dy.to(wide)
        if rotary:
            cos, sin = self.tables(qkv, rotation, wide)
            rotated = dy[..., :rotary]
            # The transpose of the rotation: `partners` is antisymmetric.
            dy = torch.cat([rotated * cos - self.partners(rotated * sin), dy[..., rotary:]], -1)
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        xhat = x * rstd
        gradient = dy * self.weights(weight_q, weight_k, wide, offset)
        dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
        dqkv = torch.cat([dx.to(dout.dtype), dvalues], -2).flatten(-2)
        if Dweight.of(self.problem) is Dweight.NONE:
            return (dqkv,)
        sums = sum_of_rows(dy * xhat, 2)
        return dqkv, torch.stack([part.sum(0) for part in sums.split([self.heads.heads_q, self.heads.heads_k])])


def _check_tensors(tensors: Sequence[Any]) -> None:
    """Check the tensors of a call, whose last dimensions `_options` checked."""
    qkv, weight_q, weight_k, *rotation = tensors
    for name, tensor in zip(_INPUTS[:5], tensors, strict=False):
        check_tensor(name, tensor)
        check_device(name, tensor, "qkv", qkv)
    if weight_q.dim() != 1:
        raise ValueError(f"weight_q has shape {tuple(weight_q.shape)}: expected (head,), the length of a head")
    if weight_k.shape != weight_q.shape:
        raise ValueError(f"weight_k has shape {tuple(weight_k.shape)}: expected {tuple(weight_q.shape)}, as weight_q")
    if not rotation:
        return
    cos, sin, *positions = rotation
    if cos.dim() != 2:
        raise ValueError(f"cos has shape {tuple(cos.shape)}: expected (positions, {cos.shape[-1]})")
    if sin.shape != cos.shape:
        raise ValueError(f"sin has shape {tuple(sin.shape)}: expected {tuple(cos.shape)}, as cos")
    for indices in positions:
        check_kind("positions", indices)
        if indices.dtype not in _INDICES or indices.shape != qkv.shape[:-1]:
            expected = f"expected torch.int32 or torch.int64 with shape {tuple(qkv.shape[:-1])}, one for each token"
            raise ValueError(f"positions is {indices.dtype} with shape {tuple(indices.shape)}: {expected}")
        check_device("positions", indices, "qkv", qkv)


def _operation(family: OperatorSpec, formula: type[_Formula], *options: Any, **named: Any) -> Operation:
    *sizes, variant = options
    spec = family.at(**dict(zip(SIZES, sizes, strict=True)))
    problem = spec.problem(1, spec.max_hidden, spec.dtypes[0], variant)
    return Operation(
        name=FAMILY,
        forward=spec,
        formula=formula(problem),
        defaults=_SCALARS,
        compiler_options=keeps_subnormal,
        modes=tuple(mode.of(problem) for mode in spec.modes),
        heads=dict(problem.key.sizes)["heads"],
        written_heads=heads_of(problem).written,
        **named,
    )


def _gradients(
    incoming: Mapping[str, Any], inputs: Mapping[str, Any], others: Mapping[str, Any], needs: Mapping[str, bool]
) -> dict[str, Tensor]:
    """The gradients of qkv and the weights, from the arguments of a forward; see `torch_ops.TorchOp`."""
    needs_dweight = needs["weight_q"] or needs["weight_k"]
    options = (*[others[name] for name in SIZES], _variant_of_backward(others["variant"], needs_dweight))
    dout = incoming["out"].to(inputs["qkv"].dtype)
    # vmap divides batched gradients among calls of an operator.
    call = _BACKWARD.call if has_memory(dout) else _BACKWARD.dispatched
    dqkv, *dweights = call(options, {"dout": dout, **inputs}, others, others["batch_invariant"])
    gradients = {"qkv": dqkv}
    for both in dweights:
        for name, dweight in zip(("weight_q", "weight_k"), both, strict=True):
            gradients[name] = dweight.to(inputs[name].dtype, copy=True)
    return gradients


@cache
def _variant_of_backward(variant: str, needs_dweight: bool) -> str:
    key = forward_spec.key("float32", variant)
    shared = [mode.of(key) for mode in backward_spec.modes if mode in forward_spec.modes]
    return backward_spec.variant(Dweight.COMPUTED if needs_dweight else Dweight.NONE, *shared)


_SCALARS = {"eps": 1e-6, "offset": 0.0}
_INPUTS = ("qkv", "weight_q", "weight_k", "cos", "sin", "positions")
_family = partial(OpFamily, scalars=_SCALARS, options={**dict.fromkeys(SIZES, "int"), "variant": "str"})
_BACKWARD = _family(
    BACKWARD,
    ("dout", *_INPUTS),
    operation_of=partial(_operation, backward_spec, BackwardFormula),
    outputs=("dqkv", "dweights"),
    differentiable=4,
)
_operation_of = partial(_operation, forward_spec, ForwardFormula, checks=_check_tensors)
_NEW = _family(
    FAMILY,
    _INPUTS,
    operation_of=_operation_of,
    outputs=("out",),
    differentiable=3,
    gradients=_gradients,
)
_IN_PLACE = _family(
    f"{FAMILY}_in_place",
    _INPUTS,
    operation_of=_operation_of,
    differentiable=3,
    written="qkv",
)


def qk_norm(
    qkv: Tensor,
    weight_q: Tensor,
    weight_k: Tensor,
    heads_q: int,
    heads_k: int,
    eps: float | None = 1e-6,
    offset: float = 0.0,
    *,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    rotary_style: RotaryStyle = "neox",
    casting: Casting = "gemma",
    rotation: Rotation = "float32",
    in_place: bool = False,
    batch_invariant: bool | None = None,
) -> Tensor:
    """RMSNorm of each query and key head of a fused QKV tensor, and its rotary embedding, in one launch.

    n = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) over a head, in float32, rounded to qkv's dtype;
    with tables n is rotated: y1 = n1 * cos - n2 * sin and y2 = n2 * cos + n1 * sin for each pair of elements, in
    float32, rounded once more. Value heads stay as they are. Differentiable in qkv and both weights, any number of
    times, unless it works in place; gradients are those of the function without roundings.

    The kernel takes bfloat16, float16 and float32 on a GPU, heads of 1 to 16384 elements and up to 2^30 tokens. Tokens
    that are one stride apart, as in a view of a larger tensor, are read and written where they are. A program holds
    whole heads, so a head's bits depend on nothing but the config; `batch_invariant` fixes that. All other inputs are
    composed of torch's operations, as in `rms_norm`, and so are second derivatives.

    Orders of others, in these terms: Qwen3 in Hugging Face has the casting "llama" and the rotation "products", Gemma3
    the casting "gemma", offset 1.0 and the rotation "products", both with `cos` and `sin` as the model's
    `rotary_emb` makes them. vLLM's `rms_norm` and rotary kernels are the casting "llama"; pass its `cos_sin_cache` as
    `cos, sin = cache.chunk(2, -1)`. OLMo2 normalizes all heads as one: with as many key as query heads that is a call
    with one head of each, without tables.

    Args:
        qkv: (..., heads * head), the query heads of each token, then its key heads, then any others; a dense
            floating-point tensor of 16 to 64 bits.
        weight_q: (head,), of any such dtype, on qkv's device; its length is that of a head.
        weight_k: (head,).
        heads_q: number of query heads, at least 1.
        heads_k: number of key heads, at least 1.
        eps: added to the mean square; None for the machine epsilon of float32, or of float64 if qkv is float64.
        offset: added to both weights, in float32: 1.0 for weights that are stored around zero.
        cos: cosines, (positions, rotary_dim / 2), one for each pair, or (positions, rotary_dim), one for each element;
            of any such dtype, without a gradient. None for no rotation.
        sin: sines, of the shape of `cos`.
        positions: int32 or int64, of the shape of qkv without its last dimension: each token's row of the tables, which
            must exist: nothing checks it. None for tables that have a row for each token: (tokens, columns), or
            (..., columns) as qkv or broadcast to it.
        rotary_dim: elements of a head that are rotated, its first ones; even. None for all.
        rotary_style: the pairs: "neox", the elements i and i + rotary_dim / 2, as in GPT-NeoX, Llama and Qwen; "gptj",
            2 i and 2 i + 1, as in GPT-J.
        casting: of the norm, as in `rms_norm`: "gemma", rounded once; "llama", x * rstd is rounded to qkv's dtype
            before the weight multiplies it, as in Hugging Face's Qwen3 and in vLLM.
        rotation: what is rounded in the rotation before its result: "float32", nothing; "products", both products of
            each element, as in Hugging Face.
        in_place: write the heads into qkv and return it; without gradients. Tokens that are not one stride apart are
            written through a copy. The heads may share memory neither with each other nor with another tensor of the
            call.
        batch_invariant: give each token the same bits in every batch; None for the setting of
            `normtune.batch_invariant` and `normtune.use_batch_invariant`.

    Returns:
        qkv itself, or a contiguous tensor of its shape and dtype.

    Raises:
        TypeError: a tensor is none, or a number, flag or name is something else.
        ValueError: another property is wrong; the message names the argument and its value. Nothing was launched.
    """
    inputs = (qkv, weight_q, weight_k, cos, sin, positions)
    if has_torch_function_variadic(*inputs):
        named: dict[str, Any] = {"cos": cos, "sin": sin, "positions": positions, "rotary_dim": rotary_dim}
        named |= {"rotary_style": rotary_style, "casting": casting, "rotation": rotation}
        named |= {"in_place": in_place, "batch_invariant": batch_invariant}
        return handle_torch_function(  # type: ignore[no-any-return]
            qk_norm, inputs, qkv, weight_q, weight_k, heads_q, heads_k, eps, offset, **named
        )
    try:
        widths = (
            qkv.shape[-1],
            weight_q.shape[-1],
            *[None if table is None else table.shape[-1] for table in (cos, sin)],
        )
    except (AttributeError, IndexError, RuntimeError):  # no tensors, nested ones, or without a dimension
        _check_dimensions(qkv=qkv, weight_q=weight_q, **{} if cos is sin is None else {"cos": cos, "sin": sin})
        raise
    settings: Any = (
        *widths,
        positions is not None,
        heads_q,
        heads_k,
        rotary_dim,
        rotary_style,
        casting,
        rotation,
        in_place,
    )
    try:
        options = _options(*settings) if is_compiling() else _cached_options(*settings)
    except TypeError:  # also of values that have no hash
        options = _options(*settings)
    if eps is None:
        eps = machine_epsilon(qkv)
    if in_place and torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in inputs[:3]):
        raise ValueError("qk_norm in place has no gradients: expected inputs that need none, or in_place=False")
    if cos is not None and sin is not None and positions is None:
        cos, sin = _of_tokens("cos", cos, qkv), _of_tokens("sin", sin, qkv)
    tensors = dict(zip(_INPUTS, (qkv, weight_q, weight_k, cos, sin, positions), strict=True))
    family = _IN_PLACE if in_place else _NEW
    outputs = family.call(options, tensors, {"eps": eps, "offset": offset}, batch_invariant)
    return qkv if in_place else outputs[0]


def _options(
    width: int,
    head: int,
    cos: int | None,
    sin: int | None,
    has_positions: bool,
    heads_q: Any,
    heads_k: Any,
    rotary_dim: Any,
    rotary_style: Any,
    casting: Any,
    rotation: Any,
    in_place: Any,
) -> tuple[int, int, int, int, str]:
    """The options of the operation of a call, given the last dimensions of its tensors, and its other arguments.

    Raises:
        TypeError, ValueError: an argument is wrong, or they do not fit together.
    """
    for name, value in (("rotary_style", rotary_style), ("casting", casting), ("rotation", rotation)):
        check_choice(name, value, _CHOICES[name])
    check_flag("in_place", in_place)
    for name, heads in (("heads_q", heads_q), ("heads_k", heads_k)):
        if not isinstance(heads, int) or isinstance(heads, bool):
            raise TypeError(f"{name} is {heads!r}: expected an integer")
        if heads < 1:
            raise ValueError(f"{name} is {heads}: expected at least 1")
    if head == 0:
        raise ValueError("weight_q is empty: expected (head,), the length of a head")
    if width % head or width < (heads_q + heads_k) * head:
        expected = f"expected (..., heads * {head}), with at least {heads_q} + {heads_k} heads"
        raise ValueError(f"qkv has {width} columns: {expected}")
    rotary = _rotary(head, cos, sin, has_positions, rotary_dim)
    modes: list[Mode] = [
        Place.IN_PLACE if in_place else Place.NEW,
        Product.ROUNDED if casting == "llama" else Product.FLOAT32,
    ]
    if cos is None:
        modes.append(Rotary.NONE)  # without a rotation its modes are the defaults
    else:
        modes += [
            Rotary.NEOX if rotary_style == "neox" else Rotary.GPTJ,
            Positions.GIVEN if has_positions else Positions.IN_ORDER,
            Tables.ELEMENTS if cos == rotary else Tables.PAIRS,
            RotationProducts.ROUNDED if rotation == "products" else RotationProducts.FLOAT32,
        ]
    return heads_q, heads_k, width // head, rotary, forward_spec.variant(*modes)


# Servers ask for few; so that 1 and True are different, as checks say.
_cached_options = lru_cache(1024, typed=True)(_options)


def _rotary(head: int, cos: int | None, sin: int | None, has_positions: bool, rotary_dim: Any) -> int:
    """Elements of a head that are rotated; 1 without tables. Arguments, errors: as in `_options`."""
    if cos is None or sin is None:
        positions = True if has_positions else None
        for name, value in (("cos", cos), ("sin", sin), ("positions", positions), ("rotary_dim", rotary_dim)):
            if value is not None:
                raise ValueError(f"{name} is given without {'sin' if name == 'cos' else 'cos'}: expected both or none")
        return 1
    if rotary_dim is None:
        rotary_dim = head
    if not isinstance(rotary_dim, int) or isinstance(rotary_dim, bool):
        raise TypeError(f"rotary_dim is {rotary_dim!r}: expected an integer or None")
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head:
        raise ValueError(f"rotary_dim is {rotary_dim}: expected an even number from 2 to {head}, the length of a head")
    if cos not in (rotary_dim // 2, rotary_dim):
        expected = f"expected {rotary_dim // 2} or {rotary_dim}, one for each pair or element"
        raise ValueError(f"cos has {cos} columns: {expected}")
    if sin != cos:
        raise ValueError(f"sin has {sin} columns: expected {cos}, as cos")
    return rotary_dim


def _check_dimensions(**tensors: Any) -> None:
    """Raise TypeError or ValueError unless all are tensors with a dimension."""
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        if tensor.dim() == 0:
            raise ValueError(f"{name} has no dimension: expected (..., {'heads * ' * (name == 'qkv')}head)")


def _of_tokens(name: str, table: Tensor, qkv: Tensor) -> Tensor:
    """(tokens, columns), a row for each token.

    Raises:
        TypeError, ValueError: it is no tensor, or has other rows.
    """
    check_tensor(name, table)
    leading, columns = qkv.shape[:-1], table.shape[-1]
    if table.dim() == 2 and table.shape[0] == leading.numel():
        return table
    try:
        return table.expand(*leading, columns).reshape(-1, columns)
    except RuntimeError:
        expected = f"expected a row for each token, {(*leading, columns)}, or positions"
        raise ValueError(f"{name} has shape {tuple(table.shape)}: {expected}") from None
