"""Gated RMSNorm backward of rows that are too long for one tile: columns in chunks, each with a sum of its own.

In: the arguments from `rms_norm_gated_backward.calls`. Out: the kernel. A fixed grid strides over the rows of each
group. Between their two uses dy, x and z stay in the cache, as the sums of dweight take the registers.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.rms_norm_gated.tile import input_gradients, normalized, row_offsets
from normtune.kernels.tiles.tile import columns, extent, load_weight

RUNTIME = [
    *("rows", "hidden", "groups", "inner"),
    *(f"{name}_{of}" for name in ("dy", "x", "z") for of in ("outer", "in", "group")),
]


@triton.jit(do_not_specialize=RUNTIME)
def rms_norm_gated_backward_split_kernel(
    dy_ptr,
    x_ptr,
    z_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dz_ptr,
    dweight_ptr,
    rows,
    hidden,
    groups,
    inner,
    dy_outer,
    dy_in,
    dy_group,
    x_outer,
    x_in,
    x_group,
    z_outer,
    z_in,
    z_group,
    offset,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """See `rms_norm_gated_backward`."""
    n_col = extent(hidden, ALIGNMENT)
    i_group = tl.program_id(0) % groups
    p_weight = weight_ptr + i_group.to(tl.int64) * n_col
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(CHUNKS):
        t_dweight = t_dweight + (tl.zeros([BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0) // groups, rows, tl.num_programs(0) // groups, num_stages=1):
        p_dy = dy_ptr + row_offsets(i_row, i_group, inner, dy_outer, dy_in, dy_group, ALIGNMENT)
        p_x = x_ptr + row_offsets(i_row, i_group, inner, x_outer, x_in, x_group, ALIGNMENT)
        p_z = z_ptr + row_offsets(i_row, i_group, inner, z_outer, z_in, z_group, ALIGNMENT)
        i_out = i_row.to(tl.int64) * groups + i_group
        p_dx = dx_ptr + i_out * n_col
        p_dz = dz_ptr + i_out * n_col
        b_rstd = tl.load(rstd_ptr + i_out)

        b_sum = tl.zeros([BLOCK_COL], dtype=tl.float32)
        # No unrolling: the loads of all chunks at once would take the registers of the sums.
        for i_chunk in tl.range(0, CHUNKS, num_stages=1):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_z = b_x
            if MODES.has_gate:
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_sum += b_product * load_weight(p_weight, o_col, m_col, offset) * b_xhat
        b_mean = tl.sum(b_sum, axis=0) * (1.0 / hidden)

        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(p_weight, o_col, m_col, offset)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_z = b_x
            if MODES.has_gate:
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_gradient = b_rstd * (b_product * b_weight - b_xhat * b_mean)
            b_dx, b_dz = input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES)
            tl.store(p_dx + o_col, b_dx.to(dx_ptr.dtype.element_ty), mask=m_col)
            if MODES.has_gate:
                tl.store(p_dz + o_col, b_dz.to(dz_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i_chunk] + b_product * b_xhat,)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.has_dweight:
        p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(dweight_ptr.dtype.element_ty), mask=m_col)
