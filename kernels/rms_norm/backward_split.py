"""RMSNorm backward of rows that are too long for one tile: columns in chunks, each with a sum of its own.

In: the arguments from `rms_norm_backward.calls`. Out: the kernel. A fixed grid strides over the rows. The sums of
dweight take half of the registers at hidden 16384 in bfloat16. Between their two uses x and dy stay in registers in
their own dtype, or are read again out of the cache if even that is too much.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.tiles.tile import columns, extent, fetch_row, load_weight, product, weight_part


@triton.jit
def _term(b_g, b_xhat, PARTS: tl.constexpr):
    """What a column adds to the sum over its row; in parts as in a cluster."""
    b_term = b_g * b_xhat
    if PARTS > 1:
        b_term = product(b_g, b_xhat)
    return b_term


@triton.jit
def _gradient(b_dy, b_weight, b_xhat, b_mean, PARTS: tl.constexpr):
    """The gradient of x without the factor of its row; in parts as in a cluster."""
    b_gradient = b_dy * b_weight - b_xhat * b_mean
    if PARTS > 1:
        b_gradient = tl.fma(-b_xhat, b_mean, product(b_dy, b_weight))
    return b_gradient


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "dy_stride", "dx_stride", "ds_stride"])
def rms_norm_backward_split_kernel(
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
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    HAS_DEPENDENT: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    IS_HELD: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """See `rms_norm_backward`; `IS_HELD`: a row stays in registers, `NUM_STAGES` 2: the next one is fetched."""
    n_col = extent(hidden, ALIGNMENT)
    s_x = extent(x_stride, ALIGNMENT)
    s_dy = extent(dy_stride, ALIGNMENT)
    s_dx = extent(dx_stride, ALIGNMENT)
    inverse_hidden = 1.0 / hidden
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(PARTS * CHUNKS):
        t_dweight = t_dweight + (tl.zeros([BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=1):
        o_row = i_row.to(tl.int64)
        p_x = x_ptr + o_row * s_x
        p_dy = dy_ptr + o_row * s_dy
        p_dx = dx_ptr + o_row * s_dx
        p_ds = ds_ptr
        if ds_ptr is not None:
            p_ds += o_row * extent(ds_stride, ALIGNMENT)
        if NUM_STAGES > 1:
            o_next = o_row + tl.num_programs(0)
            if o_next < rows:
                fetch_row(x_ptr + o_next * s_x, hidden)
                fetch_row(dy_ptr + o_next * s_dy, hidden)
                if ds_ptr is not None:
                    fetch_row(ds_ptr + o_next * extent(ds_stride, ALIGNMENT), hidden)
        b_rstd = tl.load(rstd_ptr + o_row)

        t_x = ()
        t_dy = ()
        for i_part in tl.static_range(PARTS):
            b_sum = tl.zeros([BLOCK_COL], dtype=tl.float32)
            if IS_HELD:
                for i_chunk in tl.static_range(CHUNKS):
                    o_col, m_col = columns((i_part * CHUNKS + i_chunk) * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
                    b_weight = load_weight(weight_ptr, o_col, m_col, offset)
                    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0)
                    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0)
                    b_sum += _term(b_dy.to(tl.float32) * b_weight, b_x.to(tl.float32) * b_rstd, PARTS)
                    t_x = t_x + (b_x,)  # noqa: RUF005
                    t_dy = t_dy + (b_dy,)  # noqa: RUF005
            else:
                # No unrolling: the loads of all chunks at once would take the registers of the sums.
                for i_chunk in tl.range(i_part * CHUNKS, (i_part + 1) * CHUNKS, num_stages=1):
                    o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
                    b_weight = load_weight(weight_ptr, o_col, m_col, offset)
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
            b_weight = load_weight(weight_ptr, o_col, m_col, offset)
            if IS_HELD:
                b_x = t_x[i_chunk].to(tl.float32)
                b_dy = t_dy[i_chunk].to(tl.float32)
            else:
                b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
                b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat = b_x * b_rstd
            b_dx = b_rstd * _gradient(b_dy, b_weight, b_xhat, b_mean, PARTS)
            if ds_ptr is not None:
                b_dx += tl.load(p_ds + o_col, mask=m_col, other=0.0).to(tl.float32)
            tl.store(p_dx + o_col, b_dx.to(dx_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i_chunk] + weight_part(b_dy, b_xhat, dy_ptr, ROUNDS_PRODUCT),)  # noqa: RUF005
        t_dweight = t_next
    if HAS_DEPENDENT:
        gdc_launch_dependents()
    if HAS_DWEIGHT:
        p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(PARTS * CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(dweight_ptr.dtype.element_ty), mask=m_col)
