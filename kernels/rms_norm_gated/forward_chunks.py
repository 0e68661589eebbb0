"""Gated RMSNorm forward of several rows a program, each in equal chunks of columns that stay in registers.

In: pointers. Out: as in `forward`. A row that is no power of two fills its chunks where a tile of the next power of two
computes columns that do not exist: 192 columns are three chunks of 64, of 256 a quarter would be masked. Part of the
kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.rms_norm_gated.tile import gated_input, gated_output, row_offsets
from normtune.kernels.tiles.tile import columns, extent, load_weight, row_block, store_tile, tile_mask

RUNTIME = [
    *("rows", "hidden", "groups", "inner"),
    *(f"{name}_{of}" for name in ("x", "z") for of in ("outer", "in", "group")),
]


@triton.jit(do_not_specialize=RUNTIME)
def rms_norm_gated_forward_chunks_kernel(
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
    BLOCK_ROW: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_NORM_FIRST: tl.constexpr,
    ROUNDS_ONCE: tl.constexpr,
    STORE_RSTD: tl.constexpr,
):
    """A block of rows a program; arguments as in `forward`.

    A column mask is that of the last chunk.
    """
    n_col = extent(hidden, ALIGNMENT)
    i_group = tl.program_id(0) % groups
    o_row, m_row = row_block(tl.program_id(0) // groups, rows, BLOCK_ROW)
    p_x = x_ptr + row_offsets(o_row, i_group, inner, x_outer, x_in, x_group, ALIGNMENT)[:, None]
    p_z = z_ptr + row_offsets(o_row, i_group, inner, z_outer, z_in, z_group, ALIGNMENT)[:, None]
    p_weight = weight_ptr + i_group.to(tl.int64) * n_col
    b_square = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
    t_u = ()  # Triton adds tuples, but does not unpack them
    t_z = ()
    t_weight = ()
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        t_weight = t_weight + (load_weight(p_weight, o_col, m_col, offset),)  # noqa: RUF005
        b_x = tl.load(p_x + o_col[None, :], mask=mask, other=0.0)
        b_z = b_x
        if HAS_GATE:
            b_z = tl.load(p_z + o_col[None, :], mask=mask, other=0.0)
        b_u = gated_input(b_x.to(tl.float32), b_z.to(tl.float32), HAS_GATE, IS_NORM_FIRST)
        b_square += b_u * b_u
        t_u = t_u + (b_u,)  # noqa: RUF005
        t_z = t_z + (b_z,)  # noqa: RUF005
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=1) / hidden + eps)
    o_out = o_row * groups + i_group
    if STORE_RSTD:
        tl.store(rstd_ptr + o_out, b_rstd, mask=m_row)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        b_y = gated_output(
            *(t_u[i_chunk] * b_rstd[:, None], t_z[i_chunk].to(tl.float32), t_weight[i_chunk][None, :]),
            *(x_ptr.dtype.element_ty, weight_ptr.dtype.element_ty, HAS_GATE, IS_NORM_FIRST, ROUNDS_ONCE),
        )
        store_tile(y_ptr, n_col, o_out, o_col, tile_mask(m_row, m_col, BLOCK_ROW), b_y)
