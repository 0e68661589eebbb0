"""RMSNorm backward in one launch: some programs take rows and write dx, others take columns and sum dweight.

In: the arguments from `rms_norm_backward.calls`. Out: the kernel. dweight needs no mean over a row, so no program waits
for another: no partial sums, no second launch, no ticket. x and dy are read twice, the second time out of the L2, and a
program of columns walks through all rows: this is for few rows.
"""

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import (
    columns,
    extent,
    gradient_of_x,
    load_tile,
    load_weight,
    row_block,
    store_tile,
    tile_mask,
    weight_part,
)


@triton.jit
def _sum_columns(
    i_slice,
    dy_ptr,
    x_ptr,
    rstd_ptr,
    dweight_ptr,
    rows,
    n_col,
    s_x,
    s_dy,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    o_col, m_col = columns(i_slice.to(tl.int64) * SLICE_COL, n_col, SLICE_COL, True)
    b_sum = tl.zeros([SLICE_ROW, SLICE_COL], dtype=tl.float32)
    for i_row in tl.range(0, rows, SLICE_ROW, num_stages=NUM_STAGES):
        o_row = i_row + tl.arange(0, SLICE_ROW).to(tl.int64)
        m_row = o_row < rows
        mask = m_row[:, None] & m_col[None, :]
        b_x = load_tile(x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, dy_ptr, ROUNDS_PRODUCT)
    tl.store(dweight_ptr + o_col, tl.sum(b_sum, axis=0).to(dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "dy_stride", "dx_stride", "ds_stride"])
def rms_norm_backward_columns_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    ds_ptr,
    rows,
    hidden,
    x_stride,
    dy_stride,
    dx_stride,
    ds_stride,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """See `rms_norm_backward`; the grid has the slices of columns, if any, and then the blocks of rows."""
    n_col = extent(hidden, ALIGNMENT)
    s_x = extent(x_stride, ALIGNMENT)
    s_dy = extent(dy_stride, ALIGNMENT)
    i_block = tl.program_id(0)
    if HAS_DWEIGHT:
        i_slice = tl.program_id(0)
        slices = tl.cdiv(hidden, SLICE_COL)
        i_block -= slices
        if i_slice < slices:  # programs of columns take longer, so they come first
            _sum_columns(
                *(i_slice, dy_ptr, x_ptr, rstd_ptr, dweight_ptr, rows, n_col, s_x, s_dy),
                *(SLICE_ROW, SLICE_COL, ROUNDS_PRODUCT, NUM_STAGES),
            )
    if i_block >= 0:
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        b_weight = load_weight(weight_ptr, o_col, m_col, offset)
        b_x = load_tile(x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_dx = gradient_of_x(b_dy, b_x * b_rstd, b_weight, b_rstd, 1.0 / hidden)
        if ds_ptr is not None:
            b_dx += load_tile(ds_ptr, extent(ds_stride, ALIGNMENT), o_row, o_col, mask)
        store_tile(dx_ptr, extent(dx_stride, ALIGNMENT), o_row, o_col, mask, b_dx)
