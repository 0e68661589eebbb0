"""Gated RMSNorm forward of several rows a program, each in equal chunks of columns that stay in registers.

In: pointers. Out: as in `forward`. A row that is no power of two fills its chunks where a tile of the next power of two
computes columns that do not exist: 192 columns are three chunks of 64, of 256 a quarter would be masked. Part of the
kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm_gated.tile import gated_input, gated_output, row_offsets
from normtune.kernels.tiles.tile import columns, extent, load_weight, row_block, store_tile, tile_mask


@triton.jit
def normalize_chunks(
    args,
    BLOCK_ROW: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a block of rows; a column mask is that of the last chunk."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    o_row, m_row = row_block(tl.program_id(0) // args.groups, args.rows, BLOCK_ROW)
    o_x = row_offsets(o_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
    p_x = args.x_ptr + o_x[:, None]
    o_z = row_offsets(o_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
    p_z = args.z_ptr + o_z[:, None]
    p_weight = args.weight_ptr + i_group.to(tl.int64) * n_col
    b_square = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
    t_u = ()  # Triton adds tuples, but does not unpack them
    t_z = ()
    t_weight = ()
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        t_weight = t_weight + (load_weight(p_weight, o_col, m_col, args.offset),)  # noqa: RUF005
        b_x = tl.load(p_x + o_col[None, :], mask=mask, other=0.0)
        b_z = b_x
        if MODES.has_gate:
            b_z = tl.load(p_z + o_col[None, :], mask=mask, other=0.0)
        b_u = gated_input(b_x.to(tl.float32), b_z.to(tl.float32), MODES)
        b_square += b_u * b_u
        t_u = t_u + (b_u,)  # noqa: RUF005
        t_z = t_z + (b_z,)  # noqa: RUF005
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=1) / args.hidden + args.eps)
    o_out = o_row * args.groups + i_group
    if MODES.stores_rstd:
        tl.store(args.rstd_ptr + o_out, b_rstd, mask=m_row)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        b_y = gated_output(
            args, t_u[i_chunk] * b_rstd[:, None], t_z[i_chunk].to(tl.float32), t_weight[i_chunk][None, :], MODES
        )
        store_tile(args.y_ptr, n_col, o_out, o_col, tile_mask(m_row, m_col, BLOCK_ROW), b_y)
