"""The public function `rms_norm_quantize_fp8`, its operations and its formula.

In: arguments. Out: `Quantized`: the norm in FP8 with its scale, and the optional outputs. `QuantizeDecomposition` is
the same in torch's operations, for tensors that the kernels do not support. `quantize` is all operations as one
function, none of which has a backward, since FP8 values have no gradient; `straight_through` is the same with a graph
of the outputs `y` and `sum`, whose gradients are those of `rms_norm_backward`. Autograd casts a gradient to the dtype
of its output, so one that arrived at q would be rounded to FP8 without a scale: q has no graph.
"""

from collections.abc import Collection, Mapping, Sequence
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
from normtune.kernels.operator import operator
from normtune.kernels.problem import OUTPUT, ROWS_HIDDEN, Problem
from normtune.kernels.rms_norm_quantize_fp8.launch import (
    BLOCK,
    FAMILY,
    SCALINGS,
    TRANSPOSE,
    WORD,
    Amax,
    Norm,
    NormOutput,
    QuantizedDtype,
    Residual,
    RstdOutput,
    ScaleFormat,
    ScaleLayout,
    blocks_of,
    scaling_of,
)
from normtune.kernels.rms_norm_quantize_fp8.operator import SPECS
from normtune.kernels.transpose_fp8.function import transpose_fp8

OUTPUTS = ("sum", "q", "scale", "amax", "y", "rstd", "q_t")


class QuantizeDecomposition(NamedTuple):
    """The formula of an operation, in the modes of a problem of any shape."""

    problem: Problem

    def forward(self, *arguments: Any) -> list[Tensor]:
        """The outputs, in order; `arguments` are the inputs, then the scalars."""
        spec = operator(self.problem.operator)
        buffers = spec.buffers(self.problem)
        inputs = [buffer.name for buffer in buffers if buffer.role != OUTPUT]
        named = dict(zip((*inputs, *spec.scalars), arguments, strict=True))
        x, amax = named["x"], named.pop("amax", None)
        results = outputs(self.problem, {buffer.name for buffer in buffers}, **named)
        if amax is not None:
            amax.copy_(torch.maximum(amax, results["amax"]))
        return [
            results[buffer.name].view(x.shape) if buffer.axes == ROWS_HIDDEN else results[buffer.name]
            for buffer in buffers
            if buffer.role == OUTPUT
        ]


def outputs(
    problem: Problem,
    names: Collection[str],
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    offset: float,
    least_amax: float = 0.0,
    residual: Tensor | None = None,
    scale: Tensor | None = None,
) -> dict[str, Tensor]:
    """`q`, and those of `sum`, `scale`, `amax`, `y`, `rstd` and `q_t` that `names` has.

    `x` and `residual` are (..., hidden), the outputs matrices (rows, hidden); a weight that is None leaves rows
    normalized; `scale` (1,) is that of the scaling `static`. The problem has the modes, at any shape.
    """
    by_name: dict[str, Tensor] = {}
    scaling, fp8, hidden = scaling_of(problem), QuantizedDtype.of(problem), x.shape[-1]
    wide = x.reshape(-1, hidden).float().contiguous()  # torch sums in an order that depends on strides
    if residual is not None:
        wide = wide + residual.reshape(-1, hidden).float()
        by_name["sum"] = wide.to(x.dtype)
        if Residual.of(problem) is Residual.ROUNDED:
            wide = by_name["sum"].float()
    squares = wide.square()
    # torch divides a single row among threads and would sum it in another order than one of several rows.
    means = (squares.expand(2, -1) if squares.shape[0] == 1 else squares).mean(-1, keepdim=True)[: squares.shape[0]]
    rstd = torch.rsqrt(means + eps)
    norm = wide * rstd
    if Product.of(problem) is Product.ROUNDED:
        norm = norm.to(x.dtype).float()
    if weight is not None:
        norm = norm * (weight.float() + offset)
    if Norm.of(problem) is Norm.ROUNDED:
        norm = norm.to(x.dtype).float()
    if "rstd" in names:
        by_name["rstd"] = rstd.reshape(-1)
    if "y" in names:
        by_name["y"] = norm.to(x.dtype)
    if "amax" in names:
        by_name["amax"] = norm.abs().amax().reshape(1) if norm.numel() else x.new_zeros(1, dtype=torch.float32)
    blocks = in_blocks(norm) if scaling == "block" else norm.unsqueeze(1)
    if scale is None:
        amax = by_name["amax"] if scaling == "tensor" else blocks.abs().amax(2, keepdim=True)
        scale = amax.clamp(min=least_amax) / fp8.largest
        if ScaleFormat.of(problem) is not ScaleFormat.FLOAT32:
            scale = power_of_two(scale)
        by_name["scale"] = scale if scaling == "tensor" else stored(problem, scale.squeeze(2))
    q = (blocks * scale.reciprocal()).clamp(-fp8.largest, fp8.largest).to(getattr(torch, fp8.dtype))
    by_name["q"] = q.flatten(1)[:, :hidden].contiguous()
    if "q_t" in names:
        by_name["q_t"] = transposed(by_name["q"])
    return by_name


def in_blocks(norm: Tensor) -> Tensor:
    """Rows (rows, hidden) in their blocks (rows, blocks, 128), padded with zeros after the last column."""
    rows, hidden = norm.shape
    return torch.nn.functional.pad(norm, (0, -hidden % BLOCK)).view(rows, blocks_of(hidden), BLOCK)


def power_of_two(quotient: Tensor) -> Tensor:
    """Float32 quotients rounded up to powers of two from 2^-126 to 2^127; infinite ones and NaN become 2^127."""
    bits = quotient.view(torch.int32) & 0x7FFFFFFF
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def stored(problem: Problem, scale: Tensor) -> Tensor:
    """Scales (rows, blocks) as they are stored, flattened in memory order."""
    scale_format, is_column_major = ScaleFormat.of(problem), ScaleLayout.of(problem) is ScaleLayout.COLUMN_MAJOR
    rows, blocks = scale.shape
    if scale_format.has_bytes:
        scale = (scale.float().view(torch.int32) >> 23).to(torch.uint8)
    padding = scale_format.padded_rows(rows) - rows if is_column_major else 0
    scale = torch.nn.functional.pad(scale, (0, scale_format.padded_blocks(blocks) - blocks, 0, padding))
    words = scale.unflatten(1, (-1, WORD if scale_format is ScaleFormat.UE8M0_PACKED else 1))
    return (words.transpose(0, 1) if is_column_major else words).reshape(-1)


INPUTS = ("x", "weight", "residual", "scale")
_DEFAULTS = {"eps": 1e-6, "offset": 0.0, "least_amax": 1e-10}


def _without_offset(tensors: Sequence[Tensor | None], scalars: tuple[float, ...]) -> tuple[float, ...]:
    """Without a weight the kernels read ones, to which no offset is added."""
    eps, offset, *rest = scalars
    return (eps, 0.0 if tensors[1] is None else offset, *rest)


def _checks(mode: Residual, tensors: Sequence[Any]) -> None:
    x = tensors[0]
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"x is {x.dtype}: expected bfloat16, float16 or float32")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (..., hidden), hidden at least 1")
    residual = None if mode is Residual.NONE else tensors[2]
    if isinstance(residual, Tensor) and residual.dtype != x.dtype:
        raise ValueError(f"residual is {residual.dtype}: expected {x.dtype}, as x")


def _operation(scaling: str, variant: str) -> Operation:
    spec = SPECS[scaling]
    problem = spec.problem(1, 1, "float32", variant)
    return Operation(
        name=FAMILY,
        forward=spec,
        formula=QuantizeDecomposition(problem),
        defaults={name: _DEFAULTS[name] for name in spec.scalars},
        optional=("weight",),
        scalars_of=_without_offset,
        modes=tuple(mode.of(problem) for mode in spec.modes),
        checks=partial(_checks, Residual.of(problem)),
        is_for_target=lambda target: spec.is_legal(spec.default_config(problem, target), problem, target),
        marked=("rstd",) if RstdOutput.of(problem) is RstdOutput.STORED else (),
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
FORMATS = {member.name.lower(): member for member in ScaleFormat}
LAYOUTS = {"row_major": ScaleLayout.ROW_MAJOR, "column_major": ScaleLayout.COLUMN_MAJOR}
_DTYPES = {getattr(torch, member.dtype): member for member in QuantizedDtype}


class Quantized(NamedTuple):
    """A quantized norm; q * scale approximates the norm (`block`: with one scale per 128 columns).

    Attributes:
        q: of x's shape, FP8.
        scale: float32, the dequantization factor: the argument (`static`), (1,) (`tensor`), (..., 1) (`row`) or
            (..., blocks) (`block`). With scale_format "ue8m0_bytes" float8_e8m0fnu of that shape; with "ue8m0_packed"
            int32 (..., ceil(blocks / 4)), of `row` (..., 1).
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
    scale_format: str = "float32",
    scale_layout: str = "row_major",
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

    A UE8M0 scale is the least power of two that is not below that quotient, from 2^-126 to 2^127. q is computed with
    it. It is finite: a norm that is infinite or NaN has the scale 2^127. With that, infinity becomes `largest`, and NaN
    stays NaN. This is the formula of DeepGEMM's `ceil_to_ue8m0`. The byte of a scale is its exponent + 127, 1 to 254,
    as in the OCP Microscaling Formats (MX) Specification 1.0. The conversion of that specification rounds down.

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
    DeepGEMM's `per_token_cast_to_fp8` of a norm is `block` with rounding "norm" and least_amax 1e-4; with `use_ue8m0`
    that is scale_format "ue8m0". Its kernels read scales with scale_layout "column_major": on sm_90 float32, on sm_100
    "ue8m0_packed", as `get_mn_major_tma_aligned_packed_ue8m0_tensor` makes them. The groups of 128 of vLLM's
    `per_token_group_quant_fp8_packed_for_deepgemm` are the same with least_amax 4.48e-8, those of sglang's
    `sglang_per_token_group_quant_fp8` with `scale_ue8m0` with 1e-10. aiter's `rmsnorm_quant` with groups of 128 and
    scales of a byte is "ue8m0_bytes". In these three NaN and infinities have other scales.

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
        scale_format: of the scales of `row` and `block`: "float32"; "ue8m0", powers of two in float32; "ue8m0_bytes",
            their exponents + 127 as float8_e8m0fnu; "ue8m0_packed", the bytes of four blocks in an int32, the first one
            in its lowest bits, with zeros behind the last block.
        scale_layout: of the scales of `block`: "row_major", or "column_major" with strides (1, rows rounded up), as
            NVIDIA's tensor memory accelerator reads them. Rows are rounded up to 16 bytes: to 4, or to 16 with
            "ue8m0_bytes"; the padding holds zeros.
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
    if has_torch_function_variadic(x, weight, residual, scale, amax):
        named = dict(locals())  # the arguments, as nothing else has a name yet
        tensors = (x, weight, residual, scale, amax)
        result: Quantized = handle_torch_function(
            rms_norm_quantize_fp8, tensors, named.pop("x"), named.pop("weight"), **named
        )
        return result
    read = {"x": x, "weight": weight, "residual": residual, "scale": scale, "amax": amax}
    is_graded = return_y is True and needs_gradient(read)
    returned = (return_amax, return_y, is_graded if return_rstd is False else return_rstd, return_transpose)
    of_scales = (scale_format, scale_layout)
    choice = (scaling, dtype, rounding, *of_scales, round_sum, *returned, residual is not None, amax is not None)
    try:
        choices = _checked_choices(*choice) if torch.compiler.is_compiling() else _cached_choices(*choice)
    except TypeError:  # also of values that cannot be hashed
        choices = _checked_choices(*choice)
    _check_scale(scaling, scale)
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
    outputs = call(choices, read, scalars, batch_invariant)
    outputs["scale"] = _shaped(outputs["scale"], x, scaling, *of_scales) if scale is None else scale
    if amax is not None:
        outputs["amax"] = amax
    if "rstd" in outputs:
        outputs["rstd"] = outputs["rstd"].view(x.shape[:-1])
    quantized = Quantized(**outputs)
    if return_transpose and quantized.q_t is None:
        quantized = quantized._replace(q_t=transpose_fp8(quantized.q.view(-1, x.shape[-1])))
    return quantized._replace(rstd=None) if is_graded and not return_rstd else quantized


def _checked_choices(
    scaling: str,
    dtype: torch.dtype,
    rounding: str,
    scale_format: str,
    scale_layout: str,
    round_sum: bool,
    return_amax: bool,
    return_y: bool,
    return_rstd: bool,
    return_transpose: bool,
    has_residual: bool,
    accumulates: bool,
) -> tuple[str, str]:
    """The operator and variant of a call, as `quantize` takes them.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    check_choice("scaling", scaling, SCALINGS)
    check_choice("rounding", rounding, ROUNDINGS)
    check_choice("scale_format", scale_format, FORMATS)
    check_choice("scale_layout", scale_layout, LAYOUTS)
    if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES:
        error = ValueError if isinstance(dtype, torch.dtype) else TypeError
        raise error(f"dtype is {dtype!r}: expected one of {', '.join(map(str, _DTYPES))}")
    flags = {"round_sum": round_sum, "return_amax": return_amax}
    flags |= {"return_y": return_y, "return_rstd": return_rstd, "return_transpose": return_transpose}
    for name, flag in flags.items():
        check_flag(name, flag)
    if accumulates and scaling != "static":
        raise ValueError(f"amax is given with scaling {scaling!r}: expected 'static', other scales tell the amax")
    for name in ("return_amax", "return_transpose"):
        if flags[name] and scaling not in ("static", "tensor"):
            raise ValueError(f"{name} is True with scaling {scaling!r}: expected 'static' or 'tensor'")
    if scale_format != "float32" and scaling not in ("row", "block"):
        raise ValueError(f"scale_format is {scale_format!r} with scaling {scaling!r}: expected 'row' or 'block'")
    if scale_layout != "row_major" and scaling != "block":
        raise ValueError(f"scale_layout is {scale_layout!r} with scaling {scaling!r}: expected 'block'")
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
        members.append(LAYOUTS[scale_layout])
    if scaling in ("row", "block"):
        members.append(FORMATS[scale_format])
    kind = TRANSPOSE if return_transpose and scaling == "static" else scaling
    return kind, SPECS[kind].variant(*members)


# Compilers call it instead of tracing it and its caches, since the result depends on strings, flags and a dtype only.
_checked_choices._dynamo_marked_constant = True  # type: ignore[attr-defined]
_cached_choices = lru_cache(typed=True)(_checked_choices)  # 1 is no flag, though equal to True


def _check_scale(scaling: str, scale: Any) -> None:
    if scaling == "static" and scale is None:
        raise ValueError("scale is None with scaling 'static': expected a float32 tensor (1,)")
    if scaling == "static":
        _check_one("scale", scale)
    elif scale is not None:
        raise ValueError(f"scale is given with scaling {scaling!r}, which computes scales: expected None")


def _check_one(name: str, one: Any) -> None:
    check_kind(name, one)
    if one.dtype != torch.float32 or one.dim() > 1 or one.numel() != 1 or one.layout != torch.strided:
        raise ValueError(f"{name} is {one.dtype} with shape {tuple(one.shape)}: expected float32, (1,) or ()")


def _shaped(scale: Tensor, x: Tensor, scaling: str, scale_format: str, scale_layout: str) -> Tensor:
    """The computed scales of x's rows, in the shape and dtype that a call returns."""
    if scaling == "tensor":
        return scale
    leading, hidden = x.shape[:-1], x.shape[-1]
    columns = blocks_of(hidden) if scaling == "block" else 1
    if scale_format == "ue8m0_bytes":
        scale = scale.view(torch.float8_e8m0fnu)
    elif scale_format == "ue8m0_packed":
        scale, columns = scale.view(torch.int32), FORMATS[scale_format].padded_blocks(columns) // WORD
    if scale_layout == "row_major":
        return scale.view(*leading, columns)
    strides = [prod(leading[index:]) for index in range(1, len(leading) + 1)]
    # A slice would make torch.export specialise on whether there is padding.
    padded_rows = FORMATS[scale_format].padded_rows(prod(leading))
    return scale.as_strided((*leading, columns), (*strides, padded_rows))
