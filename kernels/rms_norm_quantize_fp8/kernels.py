"""Quantized RMSNorm: q = clamp(norm / scale), norm = x * rstd * (weight + offset), in float32.

The scale is the float32 dequantization factor: an argument (`static`), or max(amax, least_amax) / largest value of the
FP8 dtype, for each row (`row`), 128 columns of a row (`block`) or all rows (`tensor`). The formats UE8M0 round it up to
a power of two from 2^-126 to 2^127; infinity and NaN become 2^127. `tensor` takes two passes over x: the kernel first
computes only the amax (`result`), then normalizes again and quantizes. Magnitudes are compared by their bits as
integers: the order is the same, and NaN, which a maximum of floats may lose, is the greatest.

A perfect kernel reads rows x hidden of x and hidden of weight, and writes rows x hidden bytes and the scales.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall, arguments
from normtune.kernels.mode import Product, names_of
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm_quantize_fp8.launch import (
    BLOCK,
    Amax,
    Norm,
    NormOutput,
    QuantizedDtype,
    Residual,
    RstdOutput,
    ScaleFormat,
    ScaleLayout,
    TransposingLaunch,
    scaling_of,
)
from normtune.kernels.tiles.launch import MAX_HELD_BYTES, MAX_READ_AGAIN_BYTES, MAX_SUM_BYTES, Launch
from normtune.kernels.tiles.tile import as_column, columns, elements, extent, load_weight, row_block, store_tile
from normtune.kernels.tiles.walk import At, walk
from normtune.kernels.transpose_fp8.kernels import call as transpose_call

# The modes of a problem that the kernel reads. Beside them `result` is what a pass over x computes: `q`, the `amax` of
# the tensor, or `both`; `holds_norm`, whether the norm of a row in chunks stays in registers until its scale is known;
# `group`, columns of a scale; `padding`, of which the rows of column-major scales are a multiple.
_MODES = (Product, Norm, NormOutput, Residual, RstdOutput, ScaleLayout, ScaleFormat)
# Integer arguments on which the kernels are not specialised.
RUNTIME = ["rows", "hidden", "x_stride", "residual_stride", "sum_stride", "q_stride", "y_stride", "scale_rows"]


@triton.jit
def magnitude(b_value):
    """The bits of the absolute value, int32."""
    return b_value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def norm(b_x, b_rstd, b_weight, DTYPE: tl.constexpr, MODES: tl.constexpr):
    """The norm before quantization, float32; the arguments broadcast."""
    b_product = b_x * b_rstd
    if MODES.product == "ROUNDED":
        b_product = b_product.to(DTYPE).to(tl.float32)
    b_norm = b_product * b_weight
    if MODES.norm == "ROUNDED":
        b_norm = b_norm.to(DTYPE).to(tl.float32)
    return b_norm


@triton.jit
def exponent(b_scale):
    """The biased exponent of powers of two, int32."""
    return magnitude(b_scale) >> 23


@triton.jit
def scale_of(args, b_bits, MODES: tl.constexpr):
    """Scales, float32, from the bits of the maxima."""
    b_amax = b_bits.to(tl.float32, bitcast=True)
    b_amax = tl.maximum(b_amax, args.least_amax, propagate_nan=tl.PropagateNan.ALL)
    b_scale = tl.div_rn(b_amax, MODES.largest)
    if MODES.scale_format != "FLOAT32":
        b_exponent = exponent(b_scale) + ((magnitude(b_scale) & 0x7FFFFF) != 0).to(tl.int32)
        b_scale = (tl.minimum(tl.maximum(b_exponent, 1), 254) << 23).to(tl.float32, bitcast=True)
    return b_scale


@triton.jit
def scale_of_all(args, MODES: tl.constexpr):
    """The one scale of all rows: the argument, or computed from the amax; program 0 also writes a computed one."""
    if MODES.scaling == "static":
        b_scale = tl.load(args.scale_ptr)
    else:
        b_scale = scale_of(args, tl.load(args.amax_ptr).to(tl.int32, bitcast=True), MODES)
        if tl.program_id(0) == 0:
            tl.store(args.scale_ptr, b_scale)
    return b_scale


@triton.jit
def quantized(b_norm, b_scale, Q_DTYPE: tl.constexpr, LARGEST: tl.constexpr):
    """The quantized norm, multiplied by the reciprocal scale: divisions take several times as long."""
    b_scaled = b_norm * tl.div_rn(1.0, b_scale)
    return tl.clamp(b_scaled, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL).to(Q_DTYPE)


@triton.jit
def store_row_scales(args, b_scale, o_row, m_row, MODES: tl.constexpr):
    """Write the scales of rows: float32, a byte, or a word of a byte and three zeros."""
    if MODES.scale_format == "UE8M0_BYTES":
        tl.store(args.scale_ptr + o_row, exponent(b_scale).to(tl.uint8), mask=m_row)
    elif MODES.scale_format == "UE8M0_PACKED":
        p_word = args.scale_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        tl.store(p_word + o_row, exponent(b_scale), mask=m_row)
    else:
        tl.store(args.scale_ptr + o_row, b_scale, mask=m_row)


@triton.jit
def store_blocks(args, b_scale, i_first, o_row, m_row, COUNT: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    """Write (rows, COUNT) scales from block `i_first` on; in column-major order also zeros behind the last row."""
    blocks = tl.cdiv(extent(args.hidden, TILE.alignment), MODES.group)
    o_block = i_first + tl.arange(0, COUNT).to(tl.int64)
    m_block = o_block < blocks
    mask = m_row[:, None] & m_block[None, :]
    p_scale = args.scale_ptr
    o_column = o_block
    if MODES.scale_format == "UE8M0_PACKED":
        _store_words(args, b_scale, i_first, o_row, m_row, blocks, COUNT, MODES)
        p_scale = args.scale_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        o_column = o_block // 4
    else:
        if MODES.scale_format == "UE8M0_BYTES":
            b_scale = exponent(b_scale).to(tl.uint8)
        if MODES.scale_layout == "COLUMN_MAJOR":
            tl.store(args.scale_ptr + o_block[None, :] * args.scale_rows + o_row[:, None], b_scale, mask=mask)
        else:
            tl.store(args.scale_ptr + o_row[:, None] * blocks + o_block[None, :], b_scale, mask=mask)
    if MODES.scale_layout == "COLUMN_MAJOR":
        o_pad = args.rows + tl.arange(0, MODES.padding)
        is_last = tl.max(((o_row == args.rows - 1) & m_row).to(tl.int32), axis=0) > 0
        m_pad = (o_pad < args.scale_rows)[:, None] & m_block[None, :] & is_last
        tl.store(p_scale + o_column[None, :] * args.scale_rows + o_pad[:, None], 0, mask=m_pad)


@triton.jit
def _store_words(args, b_scale, i_first, o_row, m_row, blocks, COUNT: tl.constexpr, MODES: tl.constexpr):
    """Write scales as bytes of words of four blocks, as a program may have less than a word; zeros fill the last."""
    words = tl.cdiv(blocks, 4)
    s_row, s_word = words, 1
    if MODES.scale_layout == "COLUMN_MAJOR":
        s_row, s_word = 1, args.scale_rows
    p_row = args.scale_ptr + o_row[:, None] * s_row * 4
    o_block = i_first + tl.arange(0, COUNT).to(tl.int64)
    p_byte = p_row + (o_block // 4 * s_word * 4 + o_block % 4)[None, :]
    tl.store(p_byte, exponent(b_scale).to(tl.uint8), mask=m_row[:, None] & (o_block < blocks)[None, :])
    o_rest = blocks + tl.arange(0, 4).to(tl.int64)
    m_rest = (o_rest < words * 4) & (i_first < blocks) & (blocks <= i_first + COUNT)
    p_rest = p_row + (o_rest // 4 * s_word * 4 + o_rest % 4)[None, :]
    tl.store(p_rest, 0, mask=m_row[:, None] & m_rest[None, :])


@triton.jit
def end_amax(amax_ptr, b_bits):
    """Make the output the maximum of itself and of a program's maximum, by an atomic operation."""
    tl.atomic_max(amax_ptr.to(tl.pointer_type(tl.int32), bitcast=True), b_bits, sem="relaxed")


# The three functions of `tiles.walk`.


@triton.jit
def _load_input(args, at, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    """The input: x in its dtype, or x + residual, float32 unless rounded, which the first load stores."""
    EVICTION: tl.constexpr = "evict_last" if PASS == "first" or PASS == "last" else ""
    p_x = elements(args.x_ptr, extent(args.x_stride, TILE.alignment), at.o_row, at.o_col)
    b_x = tl.load(p_x, mask=at.mask, other=0.0, eviction_policy=EVICTION)
    if MODES.residual != "NONE":
        p_residual = elements(args.residual_ptr, extent(args.residual_stride, TILE.alignment), at.o_row, at.o_col)
        b_residual = tl.load(p_residual, mask=at.mask, other=0.0, eviction_policy=EVICTION)
        b_x = b_x.to(tl.float32) + b_residual.to(tl.float32)
        if MODES.residual == "ROUNDED":
            b_x = b_x.to(args.x_ptr.dtype.element_ty)
        if PASS != "last" and PASS != "sum" and MODES.result != "amax":
            store_tile(args.sum_ptr, extent(args.sum_stride, TILE.alignment), at.o_row, at.o_col, at.mask, b_x)
    return b_x, b_x


@triton.jit
def _norm_of_chunk(args, at, t_x, b_rstd, i_chunk: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    """The norm of a chunk, or of a whole row, from registers or loaded again."""
    n_col = extent(args.hidden, TILE.alignment)
    IS_LAST: tl.constexpr = i_chunk + 1 >= TILE.chunks
    o_col, m_col = columns(i_chunk * TILE.cols, n_col, TILE.cols, TILE.has_column_mask and IS_LAST)
    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
    if TILE.is_held or TILE.chunks == 0:
        b_x = t_x[i_chunk]
    else:
        b_x, _ = _load_input(args, At(at.o_row, at.m_row, o_col, m_col, i_chunk), "last", TILE, MODES)
    return norm(b_x.to(tl.float32), as_column(b_rstd), b_weight, args.x_ptr.dtype.element_ty, MODES)


@triton.jit
def _compute_scale(
    args, at, t_x, b_weight, b_rstd, is_first, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr
):
    """The scale of whole rows, or of all; and the norm of the chunks of a row, if it is held.

    A row scale takes a third pass over the chunks: over the norm if that stays in registers, else over x.
    """
    if MODES.rstd_output == "STORED" and is_first:
        tl.store(args.rstd_ptr + at.o_row, b_rstd, mask=at.m_row)
    b_scale = b_rstd
    if MODES.scaling == "row":
        if PASS == "last":
            CHUNKS: tl.constexpr = TILE.chunks
            COLS: tl.constexpr = TILE.cols
            b_most = tl.zeros([COLS], dtype=tl.int32)
            t_norm = ()  # Triton adds tuples, but does not unpack them
            for i_chunk in tl.static_range(CHUNKS):
                b_norm = _norm_of_chunk(args, at, t_x, b_rstd, i_chunk, TILE, MODES)
                b_most = tl.maximum(b_most, magnitude(b_norm))
                t_norm = t_norm + (b_norm,)  # noqa: RUF005
            if MODES.holds_norm:
                t_x = t_norm
            b_bits = tl.max(b_most, axis=0)
        elif PASS == "once":
            b_norm = norm(t_x[0], as_column(b_rstd), b_weight, args.x_ptr.dtype.element_ty, MODES)
            b_bits = tl.max(magnitude(b_norm), axis=1)
        else:  # of a whole row, of which a program stores a part
            b_bits = tl.max(magnitude(_norm_of_chunk(args, at, t_x, b_rstd, 0, TILE, MODES)), axis=1)
        b_scale = scale_of(args, b_bits, MODES)
        if is_first:
            store_row_scales(args, b_scale, at.o_row, at.m_row, MODES)
    elif MODES.scaling != "block" and MODES.result != "amax" and PASS == "last":
        b_scale = scale_of_all(args, MODES)
    return (b_rstd, b_scale), t_x


@triton.jit
def _store_quantized(
    args, at, b_x, b_beside, b_weight, factors, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr
):
    """Write q, the norm and the scales of blocks; returns the bits of the largest magnitudes, int32.

    These are of each row, or of each column of a chunk.
    """
    Q_DTYPE: tl.constexpr = args.q_ptr.dtype.element_ty
    b_rstd, b_scale = factors
    b_norm = b_x
    if PASS != "last" or not MODES.holds_norm:
        b_norm = norm(b_x, as_column(b_rstd), b_weight, args.x_ptr.dtype.element_ty, MODES)
    if MODES.norm_output == "STORED":
        store_tile(args.y_ptr, extent(args.y_stride, TILE.alignment), at.o_row, at.o_col, at.mask, b_norm)
    b_bits = magnitude(b_norm)
    if PASS == "once":
        b_bits = tl.max(b_bits, axis=1)
    if MODES.scaling == "block":
        ROWS: tl.constexpr = TILE.rows if PASS == "once" else 1
        COUNT: tl.constexpr = at.o_col.shape[0] // MODES.group
        b_groups = tl.reshape(b_norm, [ROWS, COUNT, MODES.group])
        b_scale = scale_of(args, tl.max(magnitude(b_groups), axis=2), MODES)
        o_row, m_row = at.o_row, at.m_row
        if PASS == "last":
            o_row, m_row = row_block(tl.program_id(0), args.rows, 1)
        store_blocks(args, b_scale, at.number * COUNT, o_row, m_row, COUNT, TILE, MODES)
        b_q = tl.reshape(quantized(b_groups, b_scale[:, :, None], Q_DTYPE, MODES.largest), b_norm.shape)
    elif MODES.result != "amax":
        if MODES.scaling != "row" and PASS != "last":  # in a loop, behind the norm: it has a branch
            b_scale = scale_of_all(args, MODES)
        b_q = quantized(b_norm, as_column(b_scale), Q_DTYPE, MODES.largest)
    if PASS == "once":
        b_bits = tl.where(at.m_row, b_bits, 0)
    if MODES.result != "amax":
        store_tile(args.q_ptr, extent(args.q_stride, TILE.alignment), at.o_row, at.o_col, at.mask, b_q)
    if PASS == "part":
        b_bits = tl.max(b_bits, axis=1)
    return b_bits


# The runtime arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "x_ptr residual_ptr weight_ptr scale_ptr sum_ptr q_ptr y_ptr amax_ptr rstd_ptr rows hidden "
    "x_stride residual_stride sum_stride q_stride y_stride scale_rows eps offset least_amax",
)


@triton.jit
def _clear_amax_kernel(amax_ptr):
    tl.store(amax_ptr, 0.0)


@triton.jit(do_not_specialize=RUNTIME)
def _quantize_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    scale_ptr,
    sum_ptr,
    q_ptr,
    y_ptr,
    amax_ptr,
    rstd_ptr,
    rows,
    hidden,
    x_stride,
    residual_stride,
    sum_stride,
    q_stride,
    y_stride,
    scale_rows,
    eps,
    offset,
    least_amax,
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    args = Arguments(
        *(x_ptr, residual_ptr, weight_ptr, scale_ptr, sum_ptr, q_ptr, y_ptr, amax_ptr, rstd_ptr, rows, hidden),
        *(x_stride, residual_stride, sum_stride, q_stride, y_stride, scale_rows, eps, offset, least_amax),
    )
    HAS_AMAX: tl.constexpr = MODES.result != "q"
    i_first, step = tl.program_id(0), tl.num_programs(0)
    b_most = walk(args, i_first, step, _load_input, _compute_scale, _store_quantized, None, HAS_AMAX, TILE, MODES)
    if HAS_AMAX:
        end_amax(amax_ptr, tl.max(b_most, axis=0))


def calls(
    launch: Launch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    eps: float,
    offset: float,
    least_amax: float = 0.0,
) -> tuple[KernelCall, ...]:
    """The kernel calls of one problem.

    Programs end in an atomic maximum of the output `amax`, whose result is independent of their order. A call before
    clears it, unless it accumulates. With the scaling `tensor` the call that quantizes comes last.

    Args:
        launch: from `resolve`.
        problem: rows, hidden, dtype and variant.
        tensors: as `buffers` of the spec lists them; last dimension contiguous, row strides of `x`, `residual`, `sum`,
            `q` and `y` free. Scales are contiguous.
        workspace: not read.
        eps: added to the mean square.
        offset: added to the weight, in float32.
        least_amax: smallest amax from which a scale is computed, so that rows of zeros have a positive scale.
    """
    numbers = {"rows": problem.rows, "hidden": problem.hidden, "eps": eps, "offset": offset, "least_amax": least_amax}
    numbers["scale_rows"] = ScaleFormat.of(problem).padded_rows(problem.rows)
    # A number, so that these stay arguments of the compiled kernels.
    unread = {f"{name}_stride": 0 for name in ("residual", "sum", "y") if tensors.get(name) is None}
    args = arguments(_quantize_kernel, tensors, **numbers, **unread)
    scaling, amax = scaling_of(problem), tensors.get("amax")
    row, itemsize, residual = launch.chunks * launch.block_col, ITEMSIZE[problem.dtype], Residual.of(problem)
    is_held = row * itemsize > MAX_READ_AGAIN_BYTES
    if residual is not Residual.NONE:
        is_held = 0 < row * (itemsize if residual is Residual.ROUNDED else 4) <= MAX_SUM_BYTES
    holds_norm = scaling == "row" and 0 < 4 * row <= MAX_HELD_BYTES
    modes = names_of(
        _MODES,
        problem.variant,
        scaling=scaling,
        result="q" if amax is None else "both",
        holds_norm=holds_norm,
        group=min(BLOCK, launch.block_col),
        padding=ScaleFormat.of(problem).padding,
        largest=QuantizedDtype.of(problem).largest,
    )
    tile = launch.tile._replace(is_held=is_held or holds_norm)
    grid = launch.programs(problem.hidden)

    def main(modes: Any) -> KernelCall:
        return KernelCall(_quantize_kernel, grid, args, {"TILE": tile, "MODES": modes, "num_warps": launch.num_warps})

    if amax is None or Amax.of(problem) is Amax.IN_PLACE:
        return (main(modes),)
    clearing = KernelCall(_clear_amax_kernel, (1,), (amax,), {"num_warps": 1})
    if scaling != "tensor":
        return (clearing, main(modes))
    measuring = modes._replace(result="amax", norm_output="NONE", rstd_output="NONE")
    return (clearing, main(measuring), main(modes._replace(result="q")))


def transposing_calls(
    launch: TransposingLaunch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    eps: float,
    offset: float,
) -> tuple[KernelCall, ...]:
    """The kernel calls of one problem: those of `calls` and a transposition.

    A perfect kernel reads rows x hidden of x and hidden of weight, and writes 2 x rows x hidden bytes. The second
    launch reads rows x hidden bytes again, from the cache if they fit there.

    Arguments are those of `calls`, with a launch from `resolve_transposing` and a contiguous `q_t`.
    """
    quantizing = calls(launch.norm, problem, tensors, workspace, eps, offset)
    return (*quantizing, transpose_call(launch.transpose, problem, tensors["q"], tensors["q_t"]))
