"""Gated RMSNorm forward of few rows: several programs a group, each of which reads all of it and writes a part.

In: pointers. Out: as in `forward`. See `rms_norm.forward_parts`. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm_gated.forward_chunks import RUNTIME
from normtune.kernels.rms_norm_gated.tile import gated_input, gated_output, row_offsets
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask


@triton.jit(do_not_specialize=RUNTIME)
def rms_norm_gated_forward_parts_kernel(
    x_ptr,
    z_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    hidden,
    groups,
    inner,
    x_outer,
    x_in,
    x_group,
    z_outer,
    z_in,
    z_group,
    eps,
    offset,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_NORM_FIRST: tl.constexpr,
    ROUNDS_ONCE: tl.constexpr,
    STORE_RSTD: tl.constexpr,
):
    """A program for each group of a row and part of `PART_COL` columns; arguments as in `forward`."""
    n_col = extent(hidden, ALIGNMENT)
    i_group = tl.program_id(0) % groups
    o_row, m_row = row_block(tl.program_id(0) // groups, rows, 1)
    o_x = row_offsets(o_row, i_group, inner, x_outer, x_in, x_group, ALIGNMENT)
    o_z = row_offsets(o_row, i_group, inner, z_outer, z_in, z_group, ALIGNMENT)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(tl.program_id(1) * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_col, 1)
    m_out = tile_mask(m_row, m_part, 1)
    b_x = load_tile(x_ptr, 1, o_x, o_col, mask)
    b_z = b_x
    if HAS_GATE and not IS_NORM_FIRST:
        b_z = load_tile(z_ptr, 1, o_z, o_col, mask)
    b_x_part = load_tile(x_ptr, 1, o_x, o_part, m_out)
    b_z_part = b_x_part
    if HAS_GATE:
        b_z_part = load_tile(z_ptr, 1, o_z, o_part, m_out)
    b_weight = load_weight(weight_ptr + i_group.to(tl.int64) * n_col, o_part, m_part, offset)
    b_u = gated_input(b_x, b_z, HAS_GATE, IS_NORM_FIRST)
    b_rstd = tl.rsqrt(tl.sum(b_u * b_u, axis=1) / hidden + eps)
    b_xhat = gated_input(b_x_part, b_z_part, HAS_GATE, IS_NORM_FIRST) * b_rstd[:, None]
    b_y = gated_output(
        *(b_xhat, b_z_part, b_weight[None, :], x_ptr.dtype.element_ty, weight_ptr.dtype.element_ty),
        *(HAS_GATE, IS_NORM_FIRST, ROUNDS_ONCE),
    )
    o_out = o_row * groups + i_group
    store_tile(y_ptr, n_col, o_out, o_part, m_out, b_y)
    if STORE_RSTD and tl.program_id(1) == 0:
        tl.store(rstd_ptr + o_out, b_rstd, mask=m_row)
