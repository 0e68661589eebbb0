"""Few rows: several programs a row, each of which reads all of it, and normalizes and quantizes a part.

In: pointers. Out: as in `kernels`. See `rms_norm.forward_parts`. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm_quantize_fp8.fp8 import (
    RUNTIME,
    end_amax,
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


@triton.jit(do_not_specialize=RUNTIME)
def quantize_parts_kernel(
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
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    SCALING: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_RSTD: tl.constexpr,
    COLUMN_MAJOR: tl.constexpr,
    HAS_AMAX: tl.constexpr,
    ATOMIC: tl.constexpr,
):
    """A program for each row and part of `PART_COL` columns, whole groups of them; arguments as in `kernels`."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    COUNT: tl.constexpr = PART_COL // GROUP
    n_col = extent(hidden, ALIGNMENT)
    s_x = extent(x_stride, ALIGNMENT)
    s_residual = extent(residual_stride, ALIGNMENT)
    i_part = tl.program_id(1)
    o_row, m_row = row_block(tl.program_id(0), rows, 1)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(i_part * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_part, 1)
    b_x = _load_sum(x_ptr, s_x, residual_ptr, s_residual, o_row, o_col, tile_mask(m_row, m_col, 1), HAS_RESIDUAL)
    b_part = _load_sum(x_ptr, s_x, residual_ptr, s_residual, o_row, o_part, mask, HAS_RESIDUAL)
    b_weight = load_weight(weight_ptr, o_part, m_part, offset)
    if HAS_RESIDUAL:
        if SCALING != "amax":
            store_tile(sum_ptr, extent(sum_stride, ALIGNMENT), o_row, o_part, mask, b_part)
        if ROUNDS_SUM:
            b_x = b_x.to(DTYPE).to(tl.float32)
            b_part = b_part.to(DTYPE).to(tl.float32)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / hidden + eps)
    if HAS_RSTD and i_part == 0:
        tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)
    b_norm = norm(b_part, b_rstd[:, None], b_weight[None, :], DTYPE, ROUNDS_PRODUCT, ROUNDS_NORM)
    if HAS_Y:
        store_tile(y_ptr, extent(y_stride, ALIGNMENT), o_row, o_part, mask, b_norm)
    if SCALING == "block":
        b_groups = tl.reshape(b_norm, [1, COUNT, GROUP])
        b_scale = scale_of(tl.max(magnitude(b_groups), axis=2), least_amax, LARGEST)
        store_blocks(
            *(scale_ptr, b_scale, i_part * COUNT, tl.cdiv(n_col, GROUP), o_row, m_row, rows, scale_rows),
            *(COUNT, COLUMN_MAJOR),
        )
        b_q = tl.reshape(quantized(b_groups, b_scale[:, :, None], Q_DTYPE, LARGEST), [1, PART_COL])
    elif SCALING == "row":
        b_row = load_weight(weight_ptr, o_col, m_col, offset)
        b_whole = norm(b_x, b_rstd[:, None], b_row[None, :], DTYPE, ROUNDS_PRODUCT, ROUNDS_NORM)
        b_scale = scale_of(tl.max(magnitude(b_whole), axis=1), least_amax, LARGEST)
        if i_part == 0:
            tl.store(scale_ptr + o_row, b_scale, mask=m_row)
        b_q = quantized(b_norm, b_scale[:, None], Q_DTYPE, LARGEST)
    elif SCALING == "tensor":
        b_q = quantized(b_norm, scale_of_tensor(amax_ptr, scale_ptr, least_amax, LARGEST), Q_DTYPE, LARGEST)
    elif SCALING == "static":
        b_q = quantized(b_norm, tl.load(scale_ptr), Q_DTYPE, LARGEST)
    if SCALING != "amax":
        tl.store(q_ptr + o_row[:, None] * extent(q_stride, ALIGNMENT) + o_part[None, :], b_q, mask=mask)
    if HAS_AMAX:
        end_amax(amax_ptr, tl.max(tl.max(magnitude(b_norm), axis=1), axis=0), ATOMIC)
