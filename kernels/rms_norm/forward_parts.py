"""RMSNorm forward of few rows: several programs a row, each of which reads the whole row and writes a part of it.

In: the arguments from `rms_norm_forward.calls`. Out: the kernel. A row's sum is made by each of its programs, in the
same order and so with the same bits: none waits for another. All but one read the row out of the L2. Part of the
kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm.forward_tile import RUNTIME, load_scale, load_sum, rounded, rstd_of, scaled
from normtune.kernels.tiles.tile import columns, extent, row_block, store_tile, tile_mask


@triton.jit(do_not_specialize=RUNTIME)
def rms_norm_forward_parts_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    residual_ptr,
    s_ptr,
    rows,
    hidden,
    x_stride,
    y_stride,
    residual_stride,
    s_stride,
    eps,
    offset,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    STORE_RSTD: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_STATISTICS: tl.constexpr,
):
    """A program for each row and part of `PART_COL` columns; neither y nor s may be the memory of an input."""
    n_col = extent(hidden, ALIGNMENT)
    s_x = extent(x_stride, ALIGNMENT)
    o_row, m_row = row_block(tl.program_id(0), rows, 1)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(tl.program_id(1) * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_part, 1)
    b_x = load_sum(
        *(x_ptr, s_x, residual_ptr, residual_stride, s_ptr, s_stride),
        *(o_row, o_col, tile_mask(m_row, m_col, 1), ALIGNMENT, ROUNDS_SUM, False),
    )
    b_part = load_sum(
        *(x_ptr, s_x, residual_ptr, residual_stride, s_ptr, s_stride),
        *(o_row, o_part, mask, ALIGNMENT, ROUNDS_SUM, True),
    )
    b_weight = load_scale(weight_ptr, o_part, m_part, offset, y_ptr, ROUNDS_STATISTICS)
    b_rstd = rstd_of(b_x, y_ptr, hidden, eps, ROUNDS_STATISTICS)
    b_y = scaled(b_part, b_rstd, b_weight, y_ptr, ROUNDS_PRODUCT)
    store_tile(y_ptr, extent(y_stride, ALIGNMENT), o_row, o_part, mask, b_y)
    if STORE_RSTD and tl.program_id(1) == 0:
        tl.store(rstd_ptr + o_row, rounded(b_rstd, y_ptr, ROUNDS_STATISTICS), mask=m_row)
