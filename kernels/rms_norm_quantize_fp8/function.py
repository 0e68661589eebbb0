"""The public function `rms_norm_quantize_fp8`, its operations and its formula.

In: arguments. Out: `Quantized`: the norm in FP8 with its scale, and the optional outputs. `QuantizeDecomposition` is
the same in torch's operations, for tensors that the kernels do not support. `quantize` is all operations as one
function, none of which has a backward, since FP8 values have no gradient; `straight_through` is the same with a graph
of the outputs `y` and `sum`, whose gradients are those of `rms_norm_backward`. Autograd casts a gradient to the dtype
of its output, so one that arrived at q would be rounded to FP8 without a scale: q has no graph.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check_choice, check_flag, check_kind, number
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.fallback import transposed
from normtune.kernels.calling.family import OpFamily
from normtune.kernels.calling.operation import Operation
from normtune.kernels.fused_add_rms_norm.function import rms_norm_backward
from normtune.kernels.mode import Mode, Product
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.rms_norm_quantize_fp8.launch import (
    BLOCK,
    FAMILY,
    SCALINGS,
    TRANSPOSE,
    Amax,
    Norm,
    NormOutput,
    QuantizedDtype,
    QuantizeModes,
    Residual,
    RstdOutput,
    ScaleLayout,
    blocks_of,
    check_target,
    modes_of,
    padded_rows,
)
from normtune.kernels.rms_norm_quantize_fp8.operator import SPECS
from normtune.kernels.target import Target
from normtune.kernels.transpose_fp8.function import transpose_fp8

OUTPUTS = ("sum", "q", "scale", "amax", "y", "rstd", "q_t")


class QuantizeDecomposition(NamedTuple):
    """The formula of an operation in these modes."""

    modes: QuantizeModes

    def forward(self, x: Tensor, weight: Tensor | None, *arguments: Any) -> list[Tensor]:
        """The outputs in the order of `OUTPUTS`; `arguments`: residual, scale and amax where the modes have them."""
        rest = list(arguments)
        residual = rest.pop(0).reshape(-1, x.shape[-1]) if self.modes.has_residual else None
        scale = rest.pop(0) if self.modes.scaling == "static" else None
        amax = rest.pop(0) if self.modes.has_amax and self.modes.accumulates else None
        results = outputs(self.modes, x.reshape(-1, x.shape[-1]), weight, residual, scale, *rest)
        if amax is not None:
            amax.copy_(torch.maximum(amax, results.pop("amax")))
        return [
            results[name].view(x.shape) if name in ("sum", "q", "y") else results[name]
            for name in OUTPUTS
            if name in results
        ]


def outputs(
    modes: QuantizeModes,
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    scale: Tensor | None,
    eps: float,
    offset: float,
    least_amax: float = 0.0,
) -> dict[str, Tensor]:
    """`q`, and those of `sum`, `scale`, `amax`, `y`, `rstd` and `q_t` that the modes have.

    `x` and `residual` are (rows, hidden); a weight that is None leaves rows normalized; `scale` (1,) is that of the
    scaling `static`.
    """
    by_name: dict[str, Tensor] = {}
    wide = x.float().contiguous()  # torch sums in an order that depends on strides
    if residual is not None:
        wide = wide + residual.float()
        by_name["sum"] = wide.to(x.dtype)
        if modes.rounds_sum:
            wide = by_name["sum"].float()
    squares = wide.square()
    # torch divides a single row among threads and would sum it in another order than one of several rows.
    means = (squares.expand(2, -1) if squares.shape[0] == 1 else squares).mean(-1, keepdim=True)[: squares.shape[0]]
    rstd = torch.rsqrt(means + eps)
    norm = wide * rstd
    if modes.rounds_product:
        norm = norm.to(x.dtype).float()
    if weight is not None:
        norm = norm * (weight.float() + offset)
    if modes.rounds_norm:
        norm = norm.to(x.dtype).float()
    if modes.has_rstd:
        by_name["rstd"] = rstd.reshape(-1)
    if modes.has_y:
        by_name["y"] = norm.to(x.dtype)
    if modes.has_amax:
        by_name["amax"] = norm.abs().amax().reshape(1) if norm.numel() else x.new_zeros(1, dtype=torch.float32)
    blocks = norm.unsqueeze(1)
    if modes.scaling == "block":
        hidden = norm.shape[1]
        blocks = torch.nn.functional.pad(norm, (0, -hidden % BLOCK)).view(-1, blocks_of(hidden), BLOCK)
    if modes.scaling == "static":
        assert scale is not None
        wide_scale = scale
    elif modes.scaling == "tensor":
        wide_scale = by_name["scale"] = by_name["amax"].clamp(min=least_amax) / modes.largest
    else:
        wide_scale = blocks.abs().amax(2, keepdim=True).clamp(min=least_amax) / modes.largest
        by_name["scale"] = stored(modes, wide_scale.squeeze(2))
    q = (blocks * wide_scale.reciprocal()).clamp(-modes.largest, modes.largest).to(getattr(torch, modes.q_dtype))
    by_name["q"] = q.flatten(1)[:, : norm.shape[1]].contiguous()
    if modes.has_transpose:
        by_name["q_t"] = transposed(by_name["q"])
    return by_name


def stored(modes: QuantizeModes, scale: Tensor) -> Tensor:
    """Scales (rows, blocks) flattened in memory order."""
    if modes.is_column_major:
        rows = scale.shape[0]
        scale = torch.nn.functional.pad(scale.T, (0, padded_rows(rows) - rows))
    return scale.reshape(-1)


INPUTS = ("x", "weight", "residual", "scale")
_DEFAULTS = {"eps": 1e-6, "offset": 0.0, "least_amax": 1e-10}


def _without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Without a weight the kernels read ones, to which no offset is added."""
    eps, offset, *rest = scalars
    return (eps, 0.0 if tensors[1] is None else offset, *rest)


def _checks(has_residual: bool, tensors: Sequence[Any]) -> None:
    x = tensors[0]
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"x is {x.dtype}: expected bfloat16, float16 or float32")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (..., hidden), hidden at least 1")
    residual = tensors[2] if has_residual else None
    if isinstance(residual, Tensor) and residual.dtype != x.dtype:
        raise ValueError(f"residual is {residual.dtype}: expected {x.dtype}, as x")


def _is_for_target(modes: QuantizeModes, target: Target) -> bool:
    try:
        check_target(modes, target)
    except IllegalConfigError:
        return False
    return True


def _operation(scaling: str, variant: str) -> Operation:
    spec = SPECS[scaling]
    problem = spec.problem(1, 1, "float32", variant)
    modes = modes_of(problem)
    return Operation(
        name=FAMILY,
        forward=spec,
        formula=QuantizeDecomposition(modes),
        defaults={name: _DEFAULTS[name] for name in spec.scalars},
        optional=("weight",),
        scalars_of=_without_offset,
        modes=tuple(mode.of(problem) for mode in spec.modes),
        checks=partial(_checks, modes.has_residual),
        is_for_target=partial(_is_for_target, modes),
        marked=("rstd",) if modes.has_rstd else (),
    )


_OPTIONS = {"scaling": "str", "variant": "str"}
QUANTIZE = OpFamily(FAMILY, INPUTS, _DEFAULTS, _OPTIONS, _operation)
# The operations that accumulate the amax.
ACCUMULATE = OpFamily(
    name=f"{FAMILY}_amax_in_place",
    inputs=(*INPUTS, "amax"),
    scalars=_DEFAULTS,
    options=_OPTIONS,
    operation_of=_operation,
    written="amax",
    outputs=OUTPUTS,
)


def quantize(
    choices: tuple[str, ...],
    inputs: Mapping[str, Tensor | None],
    scalars: Mapping[str, float],
    batch_invariant: bool | None,
) -> dict[str, Tensor]:
    """The outputs by name of the operation with this scaling and variant; arguments as in `OpFamily.call`."""
    family = QUANTIZE if inputs["amax"] is None else ACCUMULATE
    outputs = family.call(choices, inputs, scalars, batch_invariant)
    return dict(zip(family.outputs_of(*choices), outputs, strict=True))


_GRADED = ("y", "sum")


class _StraightThrough(torch.autograd.Function):
    """`quantize`, with each input as an argument."""

    @staticmethod
    def forward(ctx: Any, choices: Any, names: Any, scalars: Any, batch_invariant: Any, *inputs: Any) -> Any:
        """The outputs, in order."""
        by_name = dict(zip(names, inputs, strict=True))
        outputs = quantize(choices, by_name, scalars, batch_invariant)
        ctx.options = (scalars["eps"], 0.0 if by_name["weight"] is None else scalars["offset"], batch_invariant)
        ctx.names, ctx.outputs = names, tuple(outputs)
        ctx.save_for_backward(outputs.get("sum", by_name["x"]), by_name["weight"], outputs["rstd"])
        ctx.mark_non_differentiable(*(tensor for name, tensor in outputs.items() if name not in _GRADED))
        ctx.set_materialize_grads(False)
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> Any:
        """The gradients of x, weight and residual."""
        arrived = dict(zip(ctx.outputs, incoming, strict=True))
        dy, ds = (arrived.get(name) for name in _GRADED)
        needs = dict(zip(ctx.names, ctx.needs_input_grad[4:], strict=True))
        needs_rows = needs["x"] or needs["residual"]
        rows, columns = ds, None
        if dy is not None:
            x, weight, rstd = ctx.saved_tensors
            rows, columns = rms_norm_backward(
                *(dy, x, weight, rstd.view(x.shape[:-1]), *ctx.options),
                ds=ds,
                needs_dx=needs_rows,
                needs_dweight=needs["weight"],
            )
        gradients = {"x": rows, "residual": rows, "weight": columns}
        return (None, None, None, None, *(gradients.get(name) if needs[name] else None for name in ctx.names))


def straight_through(
    choices: tuple[str, ...],
    inputs: Mapping[str, Tensor | None],
    scalars: Mapping[str, float],
    batch_invariant: bool | None,
) -> dict[str, Tensor]:
    """`quantize` with gradients of `y` and `sum`; the modes include the outputs `y` and `rstd`."""
    if batch_invariant is None and not torch.compiler.is_compiling():  # a copied rstd would lose the mark of the mode
        batch_invariant = is_batch_invariant()
    outputs = _StraightThrough.apply(  # type: ignore[no-untyped-call]
        choices, tuple(inputs), scalars, batch_invariant, *inputs.values()
    )
    return dict(zip(QUANTIZE.outputs_of(*choices), outputs, strict=True))


def needs_gradient(inputs: Mapping[str, Any]) -> bool:
    """Whether an input of a call needs a gradient."""
    return torch.is_grad_enabled() and any(
        getattr(inputs[name], "requires_grad", False) for name in ("x", "weight", "residual")
    )


ROUNDINGS: dict[str, tuple[Mode, ...]] = {
    "float32": (),
    "norm": (Norm.ROUNDED,),
    "product": (Norm.ROUNDED, Product.ROUNDED),
}
LAYOUTS = {"row_major": ScaleLayout.ROW_MAJOR, "column_major": ScaleLayout.COLUMN_MAJOR}
_DTYPES = {getattr(torch, member.dtype): member for member in QuantizedDtype}


class Quantized(NamedTuple):
    """A quantized norm; q * scale approximates the norm (`block`: with one scale per 128 columns).

    Attributes:
        q: of x's shape, FP8.
        scale: float32, the dequantization factor: the argument (`static`), (1,) (`tensor`), (..., 1) (`row`) or
            (..., blocks) (`block`).
        amax: (1,) float32, largest magnitude of the norm over the whole tensor, or the argument `amax`; None unless
            requested or the scaling is `tensor`.
        y: the norm in x's dtype; None unless requested.
        sum: x + residual in x's dtype; None without a residual.
        rstd: (...,) float32, the factor 1 / sqrt(mean(x^2) + eps) of each row; None unless requested.
        q_t: (hidden, rows), the transpose of q as a matrix (rows, hidden), contiguous; None unless requested.
    """

    q: Tensor
    scale: Tensor
    amax: Tensor | None = None
    y: Tensor | None = None
    sum: Tensor | None = None
    rstd: Tensor | None = None
    q_t: Tensor | None = None


def rms_norm_quantize_fp8(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    scale: Tensor | None = None,
    scaling: str = "static",
    dtype: torch.dtype = torch.float8_e4m3fn,
    *,
    residual: Tensor | None = None,
    round_sum: bool = False,
    rounding: str = "float32",
    layout: str = "row_major",
    return_amax: bool = False,
    amax: Tensor | None = None,
    return_y: bool = False,
    return_rstd: bool = False,
    return_transpose: bool = False,
    least_amax: float = 1e-10,
    batch_invariant: bool | None = None,
) -> Quantized:
    """RMSNorm over the last dimension, quantized to FP8.

    norm = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps), in float32, and
    q = clamp(norm * (1 / scale), -largest, largest) in FP8, rounded to the nearest, ties to even; `largest` is the
    largest finite value of the dtype: 448 for float8_e4m3fn, 240 for float8_e4m3fnuz, 57344 for the others. A computed
    scale is max(amax, least_amax) / largest. NaN in x gives NaN in q, amax and a computed scale; a norm that
    overflows float32 has the scale inf.

    The kernels run on GPUs with instructions for FP8 (NVIDIA from sm_89 on, AMD's gfx942), rows of up to 65536 elements
    and up to 2^30 of them. On other devices, and for longer rows, the same is composed of torch's operations. The fnuz
    dtypes, which gfx942 has, were compiled for it, but never run on one.

    Contracts of others, in these terms: vLLM's `rms_norm_static_fp8_quant` is `static` with rounding "product", and
    `fused_add_rms_norm_static_fp8_quant` is that with `round_sum`. Its `rms_norm_dynamic_per_token_quant` is `row` and
    its `rms_norm_per_block_quant` for groups of 128 is `block`, with rounding "product", without `round_sum`, and with
    least_amax 1 / 512 (for e4m3fn); both divide by the scale, which may round to the neighbouring FP8 value.
    FlashInfer's `rmsnorm_quant` and `fused_add_rmsnorm_quant` are `static`, without `round_sum`. Transformer
    Engine's forward with delayed scaling is `static` with `amax`, its scale being the reciprocal of this one, and with
    current scaling `tensor` with rounding "norm" and its `amax_epsilon` as least_amax (0 is none here: its scale of
    zeros is 1). torchao's tensorwise scaling of a norm is that with least_amax 1e-12.
    DeepGEMM's `per_token_cast_to_fp8` of a norm is `block` with rounding "norm" and least_amax 1e-4; it reads scales in
    the layout "column_major".

    Args:
        x: (..., hidden), bfloat16, float16 or float32, hidden at least 1.
        weight: (hidden,), of x's dtype or another floating-point one, on x's device; None for norm = x * rstd.
        eps: added to the mean square.
        offset: added to the weight, in float32.
        scale: (1,) or () float32, positive, on x's device, for the scaling `static`; else None.
        scaling: `static` (the argument `scale`), `row` (a computed scale for each row), `block` (for each 128 columns
            of a row, the last block possibly shorter) or `tensor` (one computed scale for all rows: x is read twice, by
            default in three launches, which clear the amax, compute it, and quantize; with zero rows the scale is
            least_amax / largest).
        dtype: of q: float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or float8_e5m2fnuz.
        residual: of x's shape and dtype; x + residual, added in float32, is normalized instead of x.
        round_sum: round that sum to x's dtype before it is normalized, as `fused_add_rms_norm` does with the rounding
            "sum"; else only the returned sum is rounded, as with "float32".
        rounding: of the norm before its amax and quantization: "float32", none; "norm", to x's dtype, as in `rms_norm`
            followed by a quantization; "product", x * rstd is rounded to x's dtype before it is multiplied by the
            weight, and the norm is rounded as well.
        layout: of the scales of `block`: "row_major", or "column_major" with strides (1, rows rounded up to 4), as
            NVIDIA's tensor memory accelerator reads them; the padding holds zeros.
        return_amax: also return the amax of the tensor, for `static` and `tensor`; the caller clears nothing.
        amax: (1,) or () float32, not negative, on x's device, only for `static`, instead of `return_amax`: updated to
            the maximum of itself and of the tensor's amax, in the launch that quantizes. An in-place change for
            autograd; it must not share memory with another tensor of the call, nor be a negated or zero tensor.
        return_y: also return the norm in x's dtype; if x, weight or residual needs a gradient, y and the sum are
            differentiable.
        return_rstd: also return 1 / sqrt(mean(x^2) + eps) of each row, from the same launch, for `rms_norm_backward`.
        return_transpose: also return q transposed, for products that reduce over rows, for `static` and `tensor`: in a
            further launch.
        least_amax: positive; the smallest amax from which a scale is computed.
        batch_invariant: give each row of q and of scales the same bits in every batch; None for the setting of
            `normtune.batch_invariant` and `normtune.use_batch_invariant`. The scale of `tensor` depends on all rows: q
            has the same bits only in batches with the same amax.

    Returns:
        `Quantized`, contiguous except for column-major scales. With `return_y`, y and the sum are differentiable in x,
        weight and residual: straight-through, with the gradients of `rms_norm` or `fused_add_rms_norm` of the
        unrounded norm, in reverse mode only: in forward mode y has no tangent, and the transforms of `torch.func` are
        not supported. The other outputs have no gradient: autograd would round a gradient of q to FP8.

    Raises:
        TypeError: an argument has the wrong type: a tensor, number, text, dtype or flag.
        ValueError: another property is wrong; the message names the argument and its value. Nothing was launched.
    """
    tensors = (x, weight, residual, scale, amax)
    if has_torch_function_variadic(*tensors):
        options: dict[str, Any] = {"eps": eps, "offset": offset, "scale": scale, "scaling": scaling, "dtype": dtype}
        options |= {"residual": residual, "round_sum": round_sum, "rounding": rounding, "layout": layout}
        options |= {"return_amax": return_amax, "amax": amax, "return_y": return_y, "return_rstd": return_rstd}
        options |= {"return_transpose": return_transpose, "least_amax": least_amax}
        options |= {"batch_invariant": batch_invariant}
        result: Quantized = handle_torch_function(rms_norm_quantize_fp8, tensors, x, weight, **options)
        return result
    read = {"x": x, "weight": weight, "residual": residual, "scale": scale, "amax": amax}
    is_graded = return_y is True and needs_gradient(read)
    returned = (return_amax, return_y, is_graded if return_rstd is False else return_rstd, return_transpose)
    choice = (scaling, dtype, rounding, layout, round_sum, *returned, residual is not None, amax is not None)
    try:
        modes, choices = _checked_settings(*choice) if torch.compiler.is_compiling() else _kept_settings(*choice)
    except TypeError:  # also of values that cannot be kept
        modes, choices = _checked_settings(*choice)
    _check_scale(modes, scale)
    if amax is not None:
        _check_one("amax", amax)
        if amax is scale or amax.requires_grad:
            problem = "is the scale, too" if amax is scale else "needs a gradient"
            raise ValueError(f"amax {problem}: expected a tensor of its own without one, as the call writes it")
    least_amax = number("least_amax", least_amax)
    if least_amax <= 0:
        raise ValueError(f"least_amax is {least_amax!r}: expected a positive number")
    read["scale"] = None if scale is None else scale.view(1)
    read["amax"] = None if amax is None else amax.view(1)
    scalars = {"eps": eps, "offset": offset, "least_amax": least_amax}
    call = straight_through if is_graded else quantize
    quantized = _quantized(modes, call(choices, read, scalars, batch_invariant), x, scale, amax)
    if return_transpose and not modes.has_transpose:
        quantized = quantized._replace(q_t=transpose_fp8(quantized.q.view(-1, x.shape[-1])))
    return quantized._replace(rstd=None) if is_graded and not return_rstd else quantized


def _checked_settings(
    scaling: str,
    dtype: torch.dtype,
    rounding: str,
    layout: str,
    round_sum: bool,
    return_amax: bool,
    return_y: bool,
    return_rstd: bool,
    return_transpose: bool,
    has_residual: bool,
    accumulates: bool,
) -> tuple[QuantizeModes, tuple[str, str]]:
    """Checked settings of a call, and its operator and variant as `quantize` takes them.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    for name, value, allowed in (
        ("scaling", scaling, SCALINGS),
        ("rounding", rounding, tuple(ROUNDINGS)),
        ("layout", layout, tuple(LAYOUTS)),
    ):
        check_choice(name, value, allowed)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r}: expected one of {', '.join(map(str, _DTYPES))}")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype}: expected one of {', '.join(map(str, _DTYPES))}")
    flags = {"round_sum": round_sum, "return_amax": return_amax}
    flags |= {"return_y": return_y, "return_rstd": return_rstd, "return_transpose": return_transpose}
    for name, flag in flags.items():
        check_flag(name, flag)
    if accumulates and scaling != "static":
        raise ValueError(f"amax is given with scaling {scaling!r}: expected 'static', other scales tell the amax")
    for name in ("return_amax", "return_transpose"):
        if flags[name] and scaling not in ("static", "tensor"):
            raise ValueError(f"{name} is True with scaling {scaling!r}: expected 'static' or 'tensor'")
    if layout != "row_major" and scaling != "block":
        raise ValueError(f"layout is {layout!r} with scaling {scaling!r}: expected 'block'")
    members = [_DTYPES[dtype], *ROUNDINGS[rounding]]
    if return_y:
        members.append(NormOutput.STORED)
    if has_residual:
        members.append(Residual.ROUNDED if round_sum else Residual.WIDE)
    if return_rstd:
        members.append(RstdOutput.STORED)
    if scaling == "static":
        members.append(Amax.IN_PLACE if accumulates else Amax.NEW if return_amax else Amax.NONE)
    if scaling == "block":
        members.append(LAYOUTS[layout])
    kind = TRANSPOSE if return_transpose and scaling == "static" else scaling
    variant = SPECS[kind].variant(*members)
    return modes_of(SPECS[kind].problem(1, 1, "float32", variant)), (kind, variant)


# Compilers call it instead of tracing it and its caches, since the result depends on strings, flags and a dtype only.
_checked_settings._dynamo_marked_constant = True  # type: ignore[attr-defined]
_kept_settings = lru_cache(typed=True)(_checked_settings)  # 1 is no flag, though equal to True


def _check_scale(modes: QuantizeModes, scale: Any) -> None:
    if modes.scaling != "static":
        if scale is not None:
            raise ValueError(f"scale is given with scaling {modes.scaling!r}, which computes scales: expected None")
        return
    if scale is None:
        raise ValueError("scale is None with scaling 'static': expected a float32 tensor (1,)")
    _check_one("scale", scale)


def _check_one(name: str, one: Any) -> None:
    check_kind(name, one)
    if one.dtype != torch.float32 or one.dim() > 1 or one.numel() != 1 or one.layout != torch.strided:
        raise ValueError(f"{name} is {one.dtype} with shape {tuple(one.shape)}: expected float32, (1,) or ()")


def _quantized(
    modes: QuantizeModes, outputs: dict[str, Tensor], x: Tensor, scale: Tensor | None, amax: Tensor | None
) -> Quantized:
    leading, hidden = x.shape[:-1], x.shape[-1]
    if modes.scaling == "row":
        outputs["scale"] = outputs["scale"].view(*leading, 1)
    elif modes.scaling == "block":
        blocks = blocks_of(hidden)
        if modes.is_column_major:
            strides = [prod(leading[index:]) for index in range(1, len(leading) + 1)]
            # A slice would make torch.export specialise on whether there is padding.
            outputs["scale"] = outputs["scale"].as_strided((*leading, blocks), (*strides, padded_rows(prod(leading))))
        else:
            outputs["scale"] = outputs["scale"].view(*leading, blocks)
    elif scale is not None:
        outputs["scale"] = scale
    if amax is not None:
        outputs["amax"] = amax
    if "rstd" in outputs:
        outputs["rstd"] = outputs["rstd"].view(leading)
    return Quantized(**outputs)
