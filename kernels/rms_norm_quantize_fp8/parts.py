"""Few rows: several programs per row, each of which reads the whole row and normalizes and quantizes a part of it.

In: the `Arguments` of `kernels`. Out: the outputs, and the bits of the largest magnitude. See `rms_norm.forward_parts`.
Part of the kernels' fingerprint.
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
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask


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
