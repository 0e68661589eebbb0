"""RMSNorm backward of rows that are too long for one tile: columns in chunks, each with its own sums.

In: the arguments of `rms_norm_backward`'s kernel. Out: the body of it for the schedules `split`. A fixed grid strides
over the rows. The sums of dweight take half of the registers at hidden 16384 in bfloat16. Between their two uses x and
dy stay in registers, in their own dtype, or are read again from the cache if they do not fit.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.tiles.tile import columns, extent, fetch_row, load_weight, product, weight_part


@triton.jit
def _term(b_g, b_xhat, PARTS: tl.constexpr):
    """The term of each column in the sum over its row; with parts it is rounded as in a cluster."""
    b_term = b_g * b_xhat
    if PARTS > 1:
        b_term = product(b_g, b_xhat)
    return b_term


@triton.jit
def _gradient(b_dy, b_weight, b_xhat, b_mean, PARTS: tl.constexpr):
    """The gradient of x without the factor of its row; with parts it is rounded as in a cluster."""
    b_gradient = b_dy * b_weight - b_xhat * b_mean
    if PARTS > 1:
        b_gradient = tl.fma(-b_xhat, b_mean, product(b_dy, b_weight))
    return b_gradient


@triton.jit
def rows_in_chunks(
    args,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """`MODES.is_held`: a row stays in registers; `NUM_STAGES` 2: the next one is fetched."""
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    s_dy = extent(args.dy_stride, ALIGNMENT)
    s_dx = extent(args.dx_stride, ALIGNMENT)
    inverse_hidden = 1.0 / args.hidden
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(PARTS * CHUNKS):
        t_dweight = t_dweight + (tl.zeros([BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0), args.rows, tl.num_programs(0), num_stages=1):
        o_row = i_row.to(tl.int64)
        p_x = args.x_ptr + o_row * s_x
        p_dy = args.dy_ptr + o_row * s_dy
        p_dx = args.dx_ptr + o_row * s_dx
        p_ds = args.ds_ptr
        if args.ds_ptr is not None:
            p_ds += o_row * extent(args.ds_stride, ALIGNMENT)
        if NUM_STAGES > 1:
            o_next = o_row + tl.num_programs(0)
            if o_next < args.rows:
                fetch_row(args.x_ptr + o_next * s_x, args.hidden)
                fetch_row(args.dy_ptr + o_next * s_dy, args.hidden)
                if args.ds_ptr is not None:
                    fetch_row(args.ds_ptr + o_next * extent(args.ds_stride, ALIGNMENT), args.hidden)
        b_rstd = tl.load(args.rstd_ptr + o_row)

        t_x = ()
        t_dy = ()
        for i_part in tl.static_range(PARTS):
            b_sum = tl.zeros([BLOCK_COL], dtype=tl.float32)
            if MODES.is_held:
                for i_chunk in tl.static_range(CHUNKS):
                    o_col, m_col = columns((i_part * CHUNKS + i_chunk) * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
                    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
                    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0)
                    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0)
                    b_sum += _term(b_dy.to(tl.float32) * b_weight, b_x.to(tl.float32) * b_rstd, PARTS)
                    t_x = t_x + (b_x,)  # noqa: RUF005
                    t_dy = t_dy + (b_dy,)  # noqa: RUF005
            else:
                # No unrolling: the loads of all chunks at once would take the registers of the sums.
                for i_chunk in tl.range(i_part * CHUNKS, (i_part + 1) * CHUNKS, num_stages=1):
                    o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
                    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
                    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
                    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
                    b_sum += _term(b_dy * b_weight, b_x * b_rstd, PARTS)
            # Each part by itself, then the parts in order, as the blocks of a cluster add theirs. One sum of a tuple
            # was no faster where a row is held.
            b_part = tl.sum(b_sum, axis=0)
            b_total = b_part if i_part == 0 else b_total + b_part  # noqa: F821
        b_mean = b_total * inverse_hidden

        t_next = ()
        for i_chunk in tl.static_range(PARTS * CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
            if MODES.is_held:
                b_x = t_x[i_chunk].to(tl.float32)
                b_dy = t_dy[i_chunk].to(tl.float32)
            else:
                b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
                b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat = b_x * b_rstd
            b_dx = b_rstd * _gradient(b_dy, b_weight, b_xhat, b_mean, PARTS)
            if args.ds_ptr is not None:
                b_dx += tl.load(p_ds + o_col, mask=m_col, other=0.0).to(tl.float32)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i_chunk] + weight_part(b_dy, b_xhat, args.dy_ptr, MODES.rounds_product),)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.has_dweight:
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(PARTS * CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(args.dweight_ptr.dtype.element_ty), mask=m_col)
