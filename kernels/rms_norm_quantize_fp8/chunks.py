"""Normalize and quantize a row in chunks, one row per program.

In: the `Arguments` of `kernels`. Out: the outputs, and the bits of the largest magnitudes. A row scale takes a third
pass over the chunks: over the norm if that stays in registers, else over x. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm_quantize_fp8.fp8 import (
    magnitude,
    norm,
    quantized,
    scale_of,
    scale_of_tensor,
    store_blocks,
)
from normtune.kernels.tiles.tile import columns, extent, load_weight, row_block


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
