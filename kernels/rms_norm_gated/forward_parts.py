"""Gated RMSNorm forward of few rows: several programs a group, each of which reads all of it and writes a part.

In: pointers. Out: as in `forward`. See `rms_norm.forward_parts`. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm_gated.tile import gated_input, gated_output, row_offsets
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask


@triton.jit
def normalize_part(
    args,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a part of `PART_COL` columns of a group of one row."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    o_row, m_row = row_block(tl.program_id(0) // args.groups, args.rows, 1)
    o_x = row_offsets(o_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
    o_z = row_offsets(o_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(tl.program_id(1) * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_col, 1)
    m_out = tile_mask(m_row, m_part, 1)
    b_x = load_tile(args.x_ptr, 1, o_x, o_col, mask)
    b_z = b_x
    if MODES.has_gate and not MODES.is_norm_first:
        b_z = load_tile(args.z_ptr, 1, o_z, o_col, mask)
    b_x_part = load_tile(args.x_ptr, 1, o_x, o_part, m_out)
    b_z_part = b_x_part
    if MODES.has_gate:
        b_z_part = load_tile(args.z_ptr, 1, o_z, o_part, m_out)
    b_weight = load_weight(args.weight_ptr + i_group.to(tl.int64) * n_col, o_part, m_part, args.offset)
    b_u = gated_input(b_x, b_z, MODES)
    b_rstd = tl.rsqrt(tl.sum(b_u * b_u, axis=1) / args.hidden + args.eps)
    b_xhat = gated_input(b_x_part, b_z_part, MODES) * b_rstd[:, None]
    b_y = gated_output(args, b_xhat, b_z_part, b_weight[None, :], MODES)
    o_out = o_row * args.groups + i_group
    store_tile(args.y_ptr, n_col, o_out, o_part, m_out, b_y)
    if MODES.stores_rstd and tl.program_id(1) == 0:
        tl.store(args.rstd_ptr + o_out, b_rstd, mask=m_row)
