"""RMSNorm backward of rows that are too long for one tile: columns in chunks, each with its own sums.

In: the arguments of `rms_norm_backward`'s kernel. Out: the body of it for the schedules `split` and `split_8`. A fixed
grid strides over the rows. The sums of dweight take half of the registers at hidden 16384 in bfloat16. Between their
two uses x and dy stay in registers, in their own dtype, or are read again from the cache if they do not fit.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.rms_norm.backward_cluster import part_columns
from normtune.kernels.tiles.tile import columns, extent, fetch_row, load_weight, product, weight_part


@triton.jit
def _zeros(TILE_PARTS: tl.constexpr, BLOCK_COL: tl.constexpr):
    """Zeros for the columns of a chunk."""
    return tl.zeros([TILE_PARTS, BLOCK_COL] if TILE_PARTS > 0 else [BLOCK_COL], dtype=tl.float32)


@triton.jit
def _chunk(
    i_tile: tl.constexpr,
    i_chunk,
    n_col,
    IS_LAST: tl.constexpr,
    TILE_PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
):
    """(BLOCK_COL,) columns of a chunk, or (TILE_PARTS, BLOCK_COL), of that chunk of each part; and their mask.

    Only the last chunk of a row in one part has columns beyond the row; with several parts, whole parts may.
    """
    if TILE_PARTS > 0:
        o_part = i_tile * TILE_PARTS + tl.arange(0, TILE_PARTS)
        o_part = o_part[:, None] * (CHUNKS * BLOCK_COL) + tl.arange(0, BLOCK_COL)[None, :]
        o_col, m_col = part_columns(o_part, i_chunk * BLOCK_COL, n_col, TILE_PARTS, BLOCK_COL, HAS_COLUMN_MASK)
    else:
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and IS_LAST)
    return o_col, m_col


@triton.jit
def _in_halves(t_part, TILES: tl.constexpr):
    """The sum of eight parts in tensors of equal length, each half added to the other until one number is left.

    Triton adds the numbers of a tensor so, and `_exchange` those of a cluster.
    """
    if TILES == 8:
        t_part = (t_part[0] + t_part[4], t_part[1] + t_part[5], t_part[2] + t_part[6], t_part[3] + t_part[7])
    if TILES >= 4:
        t_part = (t_part[0] + t_part[2], t_part[1] + t_part[3])
    if TILES >= 2:
        t_part = (t_part[0] + t_part[1],)
    return tl.sum(t_part[0], axis=0)


@triton.jit
def _term(b_g, b_xhat, TILE_PARTS: tl.constexpr):
    """The term of each column in the sum over its row; with parts it is rounded as in a cluster."""
    b_term = b_g * b_xhat
    if TILE_PARTS > 0:
        b_term = product(b_g, b_xhat)
    return b_term


@triton.jit
def _first_terms(
    args,
    p_x,
    p_dy,
    b_rstd,
    i_tile: tl.constexpr,
    i_chunk,
    n_col,
    IS_LAST: tl.constexpr,
    TILE_PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
):
    """The terms of a chunk that will be read again."""
    o_col, m_col = _chunk(i_tile, i_chunk, n_col, IS_LAST, TILE_PARTS, CHUNKS, BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
    return _term(b_dy * b_weight, b_x * b_rstd, TILE_PARTS)


@triton.jit
def _gradient(b_dy, b_weight, b_xhat, b_mean, TILE_PARTS: tl.constexpr):
    """The gradient of x without the factor of its row; with parts it is rounded as in a cluster."""
    b_gradient = b_dy * b_weight - b_xhat * b_mean
    if TILE_PARTS > 0:
        # Not fma(-b_xhat, b_mean, ...): Triton's minus of a tensor is a subtraction, whose results spill.
        b_gradient = tl.fma(b_xhat, -b_mean, product(b_dy, b_weight))
    return b_gradient


@triton.jit
def rows_in_chunks(
    args,
    PARTS: tl.constexpr,
    TILE_PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """`TILE_PARTS`: parts of a row that a tile has beside each other, 0 for a row in one part.

    `MODES.is_held`: a row stays in registers; `NUM_STAGES` 2: the next one is fetched.
    """
    TILES: tl.constexpr = PARTS // TILE_PARTS if TILE_PARTS > 0 else 1
    HAS_TAIL: tl.constexpr = 1 if HAS_COLUMN_MASK and TILE_PARTS == 0 else 0
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    s_dy = extent(args.dy_stride, ALIGNMENT)
    s_dx = extent(args.dx_stride, ALIGNMENT)
    inverse_hidden = 1.0 / args.hidden
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(TILES * CHUNKS):
        t_dweight = t_dweight + (_zeros(TILE_PARTS, BLOCK_COL),)  # noqa: RUF005
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
        t_part = ()
        for i_tile in tl.static_range(TILES):
            b_sum = _zeros(TILE_PARTS, BLOCK_COL)
            if MODES.is_held:
                for i_chunk in tl.static_range(CHUNKS):
                    o_col, m_col = _chunk(
                        *(i_tile, i_chunk, n_col, i_chunk == CHUNKS - 1, TILE_PARTS, CHUNKS),
                        *(BLOCK_COL, HAS_COLUMN_MASK),
                    )
                    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
                    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0)
                    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0)
                    b_sum += _term(b_dy.to(tl.float32) * b_weight, b_x.to(tl.float32) * b_rstd, TILE_PARTS)
                    t_x = t_x + (b_x,)  # noqa: RUF005
                    t_dy = t_dy + (b_dy,)  # noqa: RUF005
            else:
                # No unrolling: the loads of all chunks at once would take the registers of the sums.
                for i_chunk in tl.range(0, CHUNKS - HAS_TAIL, num_stages=1):
                    b_sum += _first_terms(
                        *(args, p_x, p_dy, b_rstd, i_tile, i_chunk, n_col),
                        *(False, TILE_PARTS, CHUNKS, BLOCK_COL, HAS_COLUMN_MASK),
                    )
                if HAS_TAIL:
                    b_sum += _first_terms(
                        *(args, p_x, p_dy, b_rstd, i_tile, CHUNKS - 1, n_col),
                        *(True, TILE_PARTS, CHUNKS, BLOCK_COL, HAS_COLUMN_MASK),
                    )
            t_part = t_part + (tl.sum(b_sum, axis=1 if TILE_PARTS > 0 else 0),)  # noqa: RUF005
        b_total = _in_halves(t_part, TILES) if TILE_PARTS > 0 else t_part[0]  # type: ignore[misc]
        b_mean = b_total * inverse_hidden

        t_next = ()
        for i in tl.static_range(TILES * CHUNKS):
            o_col, m_col = _chunk(
                *(i // CHUNKS, i % CHUNKS, n_col, i % CHUNKS == CHUNKS - 1, TILE_PARTS, CHUNKS),
                *(BLOCK_COL, HAS_COLUMN_MASK),
            )
            b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
            if MODES.is_held:
                b_x = t_x[i].to(tl.float32)
                b_dy = t_dy[i].to(tl.float32)
            else:
                b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
                b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat = b_x * b_rstd
            b_dx = b_rstd * _gradient(b_dy, b_weight, b_xhat, b_mean, TILE_PARTS)
            if args.ds_ptr is not None:
                b_dx += tl.load(p_ds + o_col, mask=m_col, other=0.0).to(tl.float32)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i] + weight_part(b_dy, b_xhat, args.dy_ptr, MODES.rounds_product),)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.has_dweight:
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i in tl.static_range(TILES * CHUNKS):
            o_col, m_col = _chunk(
                *(i // CHUNKS, i % CHUNKS, n_col, i % CHUNKS == CHUNKS - 1, TILE_PARTS, CHUNKS),
                *(BLOCK_COL, HAS_COLUMN_MASK),
            )
            tl.store(p_out + o_col, t_dweight[i].to(args.dweight_ptr.dtype.element_ty), mask=m_col)
