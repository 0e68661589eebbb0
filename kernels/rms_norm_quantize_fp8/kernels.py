"""Quantized RMSNorm: q = clamp(norm / scale), norm = x * rstd * (weight + offset), in float32.

The scale is the float32 dequantization factor: an argument (`static`), or max(amax, least_amax) / largest value of the
FP8 dtype, for each row (`row`), 128 columns of a row (`block`) or all rows (`tensor`). `tensor` takes two passes over
x: the kernel first computes only the amax (with the scaling `amax`), then normalizes again and quantizes. Magnitudes
are compared by their bits as integers: the order is the same, and NaN, which a maximum of floats may lose, is the
greatest.

A perfect kernel reads rows x hidden of x and hidden of weight, and writes rows x hidden bytes and the scales.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm_quantize_fp8.launch import BLOCK, QuantizeModes, TransposingLaunch, modes_of, padded_rows
from normtune.kernels.tiles.launch import MAX_HELD_BYTES, Launch
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask
from normtune.kernels.transpose_fp8.kernels import call as transpose_call

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
    if MODES.rounds_product:
        b_product = b_product.to(DTYPE).to(tl.float32)
    b_norm = b_product * b_weight
    if MODES.rounds_norm:
        b_norm = b_norm.to(DTYPE).to(tl.float32)
    return b_norm


@triton.jit
def scale_of(b_bits, least_amax, LARGEST: tl.constexpr):
    """Scales, float32, from the bits of the maxima."""
    b_amax = b_bits.to(tl.float32, bitcast=True)
    b_amax = tl.maximum(b_amax, least_amax, propagate_nan=tl.PropagateNan.ALL)
    return tl.div_rn(b_amax, LARGEST)


@triton.jit
def scale_of_tensor(amax_ptr, scale_ptr, least_amax, LARGEST: tl.constexpr):
    """The scale computed from the amax over all rows; program 0 also writes it."""
    b_scale = scale_of(tl.load(amax_ptr).to(tl.int32, bitcast=True), least_amax, LARGEST)
    if tl.program_id(0) == 0:
        tl.store(scale_ptr, b_scale)
    return b_scale


@triton.jit
def quantized(b_norm, b_scale, Q_DTYPE: tl.constexpr, LARGEST: tl.constexpr):
    """The quantized norm, multiplied by the reciprocal scale: divisions take several times as long."""
    b_scaled = b_norm * tl.div_rn(1.0, b_scale)
    return tl.clamp(b_scaled, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL).to(Q_DTYPE)


@triton.jit
def store_blocks(
    scale_ptr, b_scale, i_first, blocks, o_row, m_row, rows, scale_rows, COUNT: tl.constexpr, COLUMN_MAJOR: tl.constexpr
):
    """Write (rows, COUNT) scales from block `i_first` on; in column-major order also zeros behind the last row."""
    o_block = i_first + tl.arange(0, COUNT).to(tl.int64)
    m_block = o_block < blocks
    mask = m_row[:, None] & m_block[None, :]
    if COLUMN_MAJOR:
        tl.store(scale_ptr + o_block[None, :] * scale_rows + o_row[:, None], b_scale, mask=mask)
        o_pad = rows + tl.arange(0, 4)
        is_last = tl.max(((o_row == rows - 1) & m_row).to(tl.int32), axis=0) > 0
        m_pad = (o_pad < scale_rows)[:, None] & m_block[None, :] & is_last
        tl.store(scale_ptr + o_block[None, :] * scale_rows + o_pad[:, None], 0.0, mask=m_pad)
    else:
        tl.store(scale_ptr + o_row[:, None] * blocks + o_block[None, :], b_scale, mask=mask)


@triton.jit
def end_amax(amax_ptr, b_bits):
    """Make the output the maximum of itself and of a program's maximum, by an atomic operation."""
    tl.atomic_max(amax_ptr.to(tl.pointer_type(tl.int32), bitcast=True), b_bits, sem="relaxed")


# Few rows: several programs per row, each of which reads the whole row and normalizes and quantizes a part of it, as
# in RMSNorm.


@triton.jit
def _load_sum(x_ptr, s_x, residual_ptr, s_residual, o_row, o_col, mask, HAS_RESIDUAL: tl.constexpr):
    b_x = load_tile(x_ptr, s_x, o_row, o_col, mask)
    if HAS_RESIDUAL:
        b_x += load_tile(residual_ptr, s_residual, o_row, o_col, mask)
    return b_x


@triton.jit
def quantize_part(
    args,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Quantize `PART_COL` columns (whole groups) of one row; returns the bits of their largest magnitude, int32."""
    DTYPE: tl.constexpr = args.x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = args.q_ptr.dtype.element_ty
    COUNT: tl.constexpr = PART_COL // GROUP
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    s_residual = extent(args.residual_stride, ALIGNMENT)
    i_part = tl.program_id(1)
    o_row, m_row = row_block(tl.program_id(0), args.rows, 1)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(i_part * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_part, 1)
    b_x = _load_sum(
        args.x_ptr, s_x, args.residual_ptr, s_residual, o_row, o_col, tile_mask(m_row, m_col, 1), MODES.has_residual
    )
    b_part = _load_sum(args.x_ptr, s_x, args.residual_ptr, s_residual, o_row, o_part, mask, MODES.has_residual)
    b_weight = load_weight(args.weight_ptr, o_part, m_part, args.offset)
    if MODES.has_residual:
        if MODES.scaling != "amax":
            store_tile(args.sum_ptr, extent(args.sum_stride, ALIGNMENT), o_row, o_part, mask, b_part)
        if MODES.rounds_sum:
            b_x = b_x.to(DTYPE).to(tl.float32)
            b_part = b_part.to(DTYPE).to(tl.float32)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / args.hidden + args.eps)
    if MODES.has_rstd and i_part == 0:
        tl.store(args.rstd_ptr + o_row, b_rstd, mask=m_row)
    b_norm = norm(b_part, b_rstd[:, None], b_weight[None, :], DTYPE, MODES)
    if MODES.has_y:
        store_tile(args.y_ptr, extent(args.y_stride, ALIGNMENT), o_row, o_part, mask, b_norm)
    if MODES.scaling == "block":
        b_groups = tl.reshape(b_norm, [1, COUNT, GROUP])
        b_scale = scale_of(tl.max(magnitude(b_groups), axis=2), args.least_amax, LARGEST)
        store_blocks(
            *(args.scale_ptr, b_scale, i_part * COUNT, tl.cdiv(n_col, GROUP), o_row, m_row, args.rows, args.scale_rows),
            *(COUNT, MODES.is_column_major),
        )
        b_q = tl.reshape(quantized(b_groups, b_scale[:, :, None], Q_DTYPE, LARGEST), [1, PART_COL])
    elif MODES.scaling == "row":
        b_row = load_weight(args.weight_ptr, o_col, m_col, args.offset)
        b_whole = norm(b_x, b_rstd[:, None], b_row[None, :], DTYPE, MODES)
        b_scale = scale_of(tl.max(magnitude(b_whole), axis=1), args.least_amax, LARGEST)
        if i_part == 0:
            tl.store(args.scale_ptr + o_row, b_scale, mask=m_row)
        b_q = quantized(b_norm, b_scale[:, None], Q_DTYPE, LARGEST)
    elif MODES.scaling == "tensor":
        b_scale = scale_of_tensor(args.amax_ptr, args.scale_ptr, args.least_amax, LARGEST)
        b_q = quantized(b_norm, b_scale, Q_DTYPE, LARGEST)
    elif MODES.scaling == "static":
        b_q = quantized(b_norm, tl.load(args.scale_ptr), Q_DTYPE, LARGEST)
    if MODES.scaling != "amax":
        tl.store(args.q_ptr + o_row[:, None] * extent(args.q_stride, ALIGNMENT) + o_part[None, :], b_q, mask=mask)
    return tl.max(magnitude(b_norm), axis=1)


# A row in chunks, one row per program. A row scale takes a third pass over the chunks: over the norm if that stays in
# registers, else over x.


@triton.jit
def _read(p_x, p_residual, o_col, m_col, IS_HELD: tl.constexpr, MODES: tl.constexpr):
    """A chunk of the norm's input: x in its dtype, or x + residual, float32 unless rounded."""
    if IS_HELD:
        b_read = tl.load(p_x + o_col, mask=m_col, other=0.0)
    else:
        b_read = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last")
    if MODES.has_residual:
        if IS_HELD:
            b_add = tl.load(p_residual + o_col, mask=m_col, other=0.0)
        else:
            b_add = tl.load(p_residual + o_col, mask=m_col, other=0.0, eviction_policy="evict_last")
        b_read = b_read.to(tl.float32) + b_add.to(tl.float32)
        if MODES.rounds_sum:
            b_read = b_read.to(p_x.dtype.element_ty)
    return b_read


@triton.jit
def _chunk(p_x, p_residual, o_col, m_col, t_x, i_chunk: tl.constexpr, IS_HELD: tl.constexpr, MODES: tl.constexpr):
    """A chunk of the norm's input, float32: from registers, or loaded again from the cache."""
    if IS_HELD:  # noqa: SIM108
        b_read = t_x[i_chunk]
    else:
        b_read = _read(p_x, p_residual, o_col, m_col, IS_HELD, MODES)
    return b_read.to(tl.float32)


@triton.jit
def quantize_chunks(
    args,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_HELD: tl.constexpr,
    NORM_IS_HELD: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Quantize one row; returns the bits of the largest magnitudes by column of a chunk, int32 (`static`, `amax`).

    IS_HELD: whether the input stays in registers between its uses. NORM_IS_HELD: whether the norm does so until its
    row scale is known.
    """
    DTYPE: tl.constexpr = args.x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = args.q_ptr.dtype.element_ty
    COUNT: tl.constexpr = BLOCK_COL // GROUP
    n_col = extent(args.hidden, ALIGNMENT)
    i_row = tl.program_id(0).to(tl.int64)
    p_x = args.x_ptr + i_row * extent(args.x_stride, ALIGNMENT)
    p_residual = args.residual_ptr
    if MODES.has_residual:
        p_residual += i_row * extent(args.residual_stride, ALIGNMENT)
    p_q = args.q_ptr + i_row * extent(args.q_stride, ALIGNMENT)
    b_square = tl.zeros([BLOCK_COL], dtype=tl.float32)
    t_x = ()  # Triton adds tuples, but does not unpack them
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        b_read = _read(p_x, p_residual, o_col, m_col, IS_HELD, MODES)
        if MODES.has_residual and MODES.scaling != "amax":
            tl.store(args.sum_ptr + i_row * extent(args.sum_stride, ALIGNMENT) + o_col, b_read.to(DTYPE), mask=m_col)
        t_x = t_x + (b_read,)  # noqa: RUF005
        b_x = b_read.to(tl.float32)
        b_square += b_x * b_x
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=0) / args.hidden + args.eps)
    if MODES.has_rstd:
        tl.store(args.rstd_ptr + i_row, b_rstd)
    b_most = tl.zeros([BLOCK_COL], dtype=tl.int32)
    t_norm = ()
    if MODES.scaling == "row":
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
            b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
            b_x = _chunk(p_x, p_residual, o_col, m_col, t_x, i_chunk, IS_HELD, MODES)
            b_norm = norm(b_x, b_rstd, b_weight, DTYPE, MODES)
            b_most = tl.maximum(b_most, magnitude(b_norm))
            if NORM_IS_HELD:
                t_norm = t_norm + (b_norm,)  # noqa: RUF005
        b_scale = scale_of(tl.max(b_most, axis=0), args.least_amax, LARGEST)
        tl.store(args.scale_ptr + i_row, b_scale)
    elif MODES.scaling == "tensor":
        b_scale = scale_of_tensor(args.amax_ptr, args.scale_ptr, args.least_amax, LARGEST)
    elif MODES.scaling == "static":
        b_scale = tl.load(args.scale_ptr)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        if NORM_IS_HELD:
            b_norm = t_norm[i_chunk]
        else:
            b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
            b_x = _chunk(p_x, p_residual, o_col, m_col, t_x, i_chunk, IS_HELD, MODES)
            b_norm = norm(b_x, b_rstd, b_weight, DTYPE, MODES)
        if MODES.has_y:
            tl.store(args.y_ptr + i_row * extent(args.y_stride, ALIGNMENT) + o_col, b_norm.to(DTYPE), mask=m_col)
        if MODES.has_amax:
            b_most = tl.maximum(b_most, magnitude(b_norm))
        if MODES.scaling == "block":
            b_groups = tl.reshape(b_norm, [1, COUNT, GROUP])
            b_scales = scale_of(tl.max(magnitude(b_groups), axis=2), args.least_amax, LARGEST)
            o_row, m_row = row_block(tl.program_id(0), args.rows, 1)
            blocks = tl.cdiv(n_col, GROUP)
            store_blocks(
                *(args.scale_ptr, b_scales, i_chunk * COUNT, blocks, o_row, m_row, args.rows, args.scale_rows),
                *(COUNT, MODES.is_column_major),
            )
            b_q = tl.reshape(quantized(b_groups, b_scales[:, :, None], Q_DTYPE, LARGEST), [BLOCK_COL])
        elif MODES.scaling != "amax":
            b_q = quantized(b_norm, b_scale, Q_DTYPE, LARGEST)
        if MODES.scaling != "amax":
            tl.store(p_q + o_col, b_q, mask=m_col)
    return b_most


# As in RMSNorm's forward: a longer row in chunks stays in registers, a shorter one is read again from the cache.
_MAX_READ_AGAIN_BYTES = 64 << 10
# A row of sums stays in registers if it takes at most half of them.
_MAX_SUM_BYTES = 128 << 10

# The runtime arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "x_ptr residual_ptr weight_ptr scale_ptr sum_ptr q_ptr y_ptr amax_ptr rstd_ptr rows hidden "
    "x_stride residual_stride sum_stride q_stride y_stride scale_rows eps offset least_amax",
)


@triton.jit
def _clear_amax_kernel(amax_ptr):
    tl.store(amax_ptr, 0.0)


@triton.jit
def _quantize_block(
    args,
    i_block,
    b_weight,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Quantize a block of rows; returns the bits of the largest magnitude of each row, int32 (`static`, `amax`)."""
    DTYPE: tl.constexpr = args.x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = args.q_ptr.dtype.element_ty
    n_col = extent(args.hidden, ALIGNMENT)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_row, m_row = row_block(i_block, args.rows, BLOCK_ROW)
    mask = tile_mask(m_row, m_col, BLOCK_ROW)
    b_x = load_tile(args.x_ptr, extent(args.x_stride, ALIGNMENT), o_row, o_col, mask)
    if MODES.has_residual:
        b_x += load_tile(args.residual_ptr, extent(args.residual_stride, ALIGNMENT), o_row, o_col, mask)
        if MODES.scaling != "amax":
            store_tile(args.sum_ptr, extent(args.sum_stride, ALIGNMENT), o_row, o_col, mask, b_x)
        if MODES.rounds_sum:
            b_x = b_x.to(DTYPE).to(tl.float32)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / args.hidden + args.eps)
    if MODES.has_rstd:
        tl.store(args.rstd_ptr + o_row, b_rstd, mask=m_row)
    b_norm = norm(b_x, b_rstd[:, None], b_weight[None, :], DTYPE, MODES)
    if MODES.has_y:
        store_tile(args.y_ptr, extent(args.y_stride, ALIGNMENT), o_row, o_col, mask, b_norm)
    b_bits = magnitude(b_norm)
    if MODES.scaling == "block":
        COUNT: tl.constexpr = BLOCK_COL // GROUP
        b_bits = tl.max(tl.reshape(b_bits, [BLOCK_ROW, COUNT, GROUP]), axis=2)
        b_scale = scale_of(b_bits, args.least_amax, LARGEST)
        store_blocks(
            *(args.scale_ptr, b_scale, 0, tl.cdiv(n_col, GROUP), o_row, m_row, args.rows, args.scale_rows),
            *(COUNT, MODES.is_column_major),
        )
        b_norm = tl.reshape(b_norm, [BLOCK_ROW, COUNT, GROUP])
        b_q = tl.reshape(quantized(b_norm, b_scale[:, :, None], Q_DTYPE, LARGEST), [BLOCK_ROW, BLOCK_COL])
    else:
        b_bits = tl.max(b_bits, axis=1)
        if MODES.scaling == "row":
            b_scale = scale_of(b_bits, args.least_amax, LARGEST)
            tl.store(args.scale_ptr + o_row, b_scale, mask=m_row)
            b_q = quantized(b_norm, b_scale[:, None], Q_DTYPE, LARGEST)
        elif MODES.scaling == "tensor":
            b_scale = scale_of_tensor(args.amax_ptr, args.scale_ptr, args.least_amax, LARGEST)
            b_q = quantized(b_norm, b_scale, Q_DTYPE, LARGEST)
        else:
            if MODES.scaling == "static":
                b_q = quantized(b_norm, tl.load(args.scale_ptr), Q_DTYPE, LARGEST)
            b_bits = tl.where(m_row, b_bits, 0)
    if MODES.scaling != "amax":
        tl.store(args.q_ptr + o_row[:, None] * extent(args.q_stride, ALIGNMENT) + o_col[None, :], b_q, mask=mask)
    return b_bits


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
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    PART_COL: tl.constexpr,
    CHUNKS: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_HELD: tl.constexpr,
    NORM_IS_HELD: tl.constexpr,
    IS_LOOPED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """A program takes a row in chunks, a part of a row, or blocks of rows."""
    args = Arguments(
        *(x_ptr, residual_ptr, weight_ptr, scale_ptr, sum_ptr, q_ptr, y_ptr, amax_ptr, rstd_ptr, rows, hidden),
        *(x_stride, residual_stride, sum_stride, q_stride, y_stride, scale_rows, eps, offset, least_amax),
    )
    if CHUNKS > 0:
        b_most = quantize_chunks(
            *(args, CHUNKS, BLOCK_COL, GROUP, ALIGNMENT, HAS_COLUMN_MASK, IS_HELD, NORM_IS_HELD, MODES, LARGEST)
        )
    elif PART_COL > 0:
        b_most = quantize_part(args, PART_COL, BLOCK_COL, GROUP, ALIGNMENT, HAS_COLUMN_MASK, MODES, LARGEST)
    else:
        o_col, m_col = columns(0, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_weight(weight_ptr, o_col, m_col, offset)
        if IS_LOOPED:
            b_most = tl.zeros([BLOCK_ROW], dtype=tl.int32)
            i_first = tl.program_id(0)
            for i_block in tl.range(i_first, tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
                b_bits = _quantize_block(
                    *(args, i_block, b_weight, BLOCK_ROW, BLOCK_COL, GROUP, ALIGNMENT, HAS_COLUMN_MASK, MODES, LARGEST)
                )
                if MODES.has_amax:
                    b_most = tl.maximum(b_most, b_bits)
        else:
            b_most = _quantize_block(
                *(args, tl.program_id(0), b_weight, BLOCK_ROW, BLOCK_COL, GROUP),
                *(ALIGNMENT, HAS_COLUMN_MASK, MODES, LARGEST),
            )
    if MODES.has_amax:
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
    modes = modes_of(problem)
    names = ("x", "residual", "weight", "scale", "sum", "q", "y")
    of_rows = ("x", "residual", "sum", "q", "y")
    amax = tensors.get("amax")
    before = tuple(tensors.get(name) for name in names)
    after = (
        tensors.get("rstd"),
        *(problem.rows, problem.hidden),
        *(0 if tensors.get(name) is None else tensors[name].stride(0) for name in of_rows),
        *(padded_rows(problem.rows), eps, offset, least_amax),
    )
    options = _options(launch, problem, modes)
    grid = (launch.grid, triton.cdiv(problem.hidden, launch.slice_col)) if launch.slice_col else (launch.grid,)
    main = KernelCall(_quantize_kernel, grid, (*before, amax, *after), options)
    is_cleared = modes.has_amax and not modes.accumulates
    clearing = [KernelCall(_clear_amax_kernel, (1,), (amax,), {"num_warps": 1})] if is_cleared else []
    if modes.scaling != "tensor":
        return (*clearing, main)
    measuring = options | {"MODES": options["MODES"]._replace(scaling="amax", has_y=False, has_rstd=False)}
    quantizing = options | {"MODES": options["MODES"]._replace(has_amax=False)}
    return (*clearing, main._replace(options=measuring), main._replace(options=quantizing))


def _options(launch: Launch, problem: Problem, modes: QuantizeModes) -> dict[str, Any]:
    row, itemsize = launch.chunks * launch.block_col, ITEMSIZE[problem.dtype]
    is_held = row * itemsize > _MAX_READ_AGAIN_BYTES
    if modes.has_residual:
        is_held = 0 < row * (itemsize if modes.rounds_sum else 4) <= _MAX_SUM_BYTES
    holds_norm = modes.scaling == "row" and 0 < 4 * row <= MAX_HELD_BYTES
    return {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "PART_COL": launch.slice_col,
        "CHUNKS": launch.chunks,
        "GROUP": min(BLOCK, launch.block_col),
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "IS_HELD": is_held or holds_norm,
        "NORM_IS_HELD": holds_norm,
        "IS_LOOPED": launch.looped,
        "NUM_STAGES": launch.num_stages,
        "MODES": modes.binary,
        "LARGEST": modes.largest,
        "num_warps": launch.num_warps,
    }


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
