"""Gated RMSNorm backward of rows that are too long for one tile: columns in chunks, each with its own sums.

In: the arguments of `rms_norm_gated_backward`'s kernel. Out: the body of it for the schedule `split`. A fixed grid
strides over the rows of each group. dy, x and z are read twice, the second time from the cache, because the sums of
dweight take the registers.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.rms_norm_gated.tile import input_gradients, normalized, row_offsets
from normtune.kernels.tiles.tile import columns, extent, load_weight


@triton.jit
def rows_in_chunks(
    args,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Gradients of every n-th row of one group, and their partial sums of dweight."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    p_weight = args.weight_ptr + i_group.to(tl.int64) * n_col
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(CHUNKS):
        t_dweight = t_dweight + (tl.zeros([BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0) // args.groups, args.rows, tl.num_programs(0) // args.groups, num_stages=1):
        p_dy = args.dy_ptr + row_offsets(
            i_row, i_group, args.inner, args.dy_outer, args.dy_in, args.dy_group, ALIGNMENT
        )
        p_x = args.x_ptr + row_offsets(i_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
        p_z = args.z_ptr + row_offsets(i_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
        i_out = i_row.to(tl.int64) * args.groups + i_group
        p_dx = args.dx_ptr + i_out * n_col
        p_dz = args.dz_ptr + i_out * n_col
        b_rstd = tl.load(args.rstd_ptr + i_out)

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
            b_sum += b_product * load_weight(p_weight, o_col, m_col, args.offset) * b_xhat
        b_mean = tl.sum(b_sum, axis=0) * (1.0 / args.hidden)

        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(p_weight, o_col, m_col, args.offset)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_z = b_x
            if MODES.has_gate:
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_gradient = b_rstd * (b_product * b_weight - b_xhat * b_mean)
            b_dx, b_dz = input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=m_col)
            if MODES.has_gate:
                tl.store(p_dz + o_col, b_dz.to(args.dz_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i_chunk] + b_product * b_xhat,)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.has_dweight:
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(args.dweight_ptr.dtype.element_ty), mask=m_col)
