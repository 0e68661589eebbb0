"""RMSNorm forward of few rows: several programs a row, each of which reads the whole row and writes a part of it.

In: the arguments of `rms_norm_forward`'s kernel. Out: the body of it for the schedule `parts`. Each program of a row
sums the whole row in the same order, to the same bits, so none waits for another. All but one read it from the L2. Part
of the kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm.forward_tile import load_scale, load_sum, rounded, rstd_of, scaled
from normtune.kernels.tiles.tile import columns, extent, row_block, store_tile, tile_mask


@triton.jit
def normalize_part(
    args,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a part of `PART_COL` columns of one row; neither y nor s may be the memory of an input."""
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    o_row, m_row = row_block(tl.program_id(0), args.rows, 1)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(tl.program_id(1) * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_part, 1)
    b_x = load_sum(args, s_x, o_row, o_col, tile_mask(m_row, m_col, 1), ALIGNMENT, MODES, False)
    b_part = load_sum(args, s_x, o_row, o_part, mask, ALIGNMENT, MODES, True)
    b_weight = load_scale(args.weight_ptr, o_part, m_part, args.offset, args.y_ptr, MODES.rounds_statistics)
    b_rstd = rstd_of(b_x, args.y_ptr, args.hidden, args.eps, MODES.rounds_statistics)
    b_y = scaled(b_part, b_rstd, b_weight, args.y_ptr, MODES.rounds_product)
    store_tile(args.y_ptr, extent(args.y_stride, ALIGNMENT), o_row, o_part, mask, b_y)
    if MODES.stores_rstd and tl.program_id(1) == 0:
        tl.store(args.rstd_ptr + o_row, rounded(b_rstd, args.y_ptr, MODES.rounds_statistics), mask=m_row)
