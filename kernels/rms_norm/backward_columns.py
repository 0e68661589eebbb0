"""RMSNorm backward in one launch: some programs take rows and write dx, others take columns and sum dweight.

In: the arguments of `rms_norm_backward`'s kernel. Out: the body of it for the finish `columns`. dweight needs no mean
over a row, so no program waits for another: there are no partial sums and no second launch. This suits few rows, since
x and dy are read twice, the second time from the L2, and a program of columns walks through all rows.
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
    args,
    n_col,
    s_x,
    s_dy,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    o_col, m_col = columns(i_slice.to(tl.int64) * SLICE_COL, n_col, SLICE_COL, True)
    b_sum = tl.zeros([SLICE_ROW, SLICE_COL], dtype=tl.float32)
    for i_row in tl.range(0, args.rows, SLICE_ROW, num_stages=NUM_STAGES):
        o_row = i_row + tl.arange(0, SLICE_ROW).to(tl.int64)
        m_row = o_row < args.rows
        mask = m_row[:, None] & m_col[None, :]
        b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(args.dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(args.rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, args.dy_ptr, MODES.rounds_product)
    tl.store(args.dweight_ptr + o_col, tl.sum(b_sum, axis=0).to(args.dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit
def rows_beside_columns(
    args,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """The grid: a program for each slice of columns, if any, then one for each block of rows."""
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    s_dy = extent(args.dy_stride, ALIGNMENT)
    i_block = tl.program_id(0)
    if MODES.has_dweight:
        i_slice = tl.program_id(0)
        slices = tl.cdiv(args.hidden, SLICE_COL)
        i_block -= slices
        if i_slice < slices:  # programs of columns take longer, so they come first
            _sum_columns(i_slice, args, n_col, s_x, s_dy, SLICE_ROW, SLICE_COL, MODES, NUM_STAGES)
    if i_block >= 0:
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        o_row, m_row = row_block(i_block, args.rows, BLOCK_ROW)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
        b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(args.dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(args.rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_dx = gradient_of_x(b_dy, b_x * b_rstd, b_weight, b_rstd, 1.0 / args.hidden)
        if args.ds_ptr is not None:
            b_dx += load_tile(args.ds_ptr, extent(args.ds_stride, ALIGNMENT), o_row, o_col, mask)
        store_tile(args.dx_ptr, extent(args.dx_stride, ALIGNMENT), o_row, o_col, mask, b_dx)
