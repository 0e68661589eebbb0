"""RMSNorm backward of long rows, with a cluster of blocks for each row.

In: the arguments of `rms_norm_backward`'s kernel. Out: the body of it for the schedules `cluster_N`. Each block holds a
part of the row's columns, in chunks. The blocks exchange one number, their part of the row's sum, through distributed
shared memory (PTX ISA, `mapa`, `barrier.cluster`), because Triton's sums do not cross blocks. For many rows, a fixed
grid of clusters writes partial sums of dweight; for few, each row has a cluster, and other clusters sum columns as in
`backward_columns`. The first axis of the body's tensors is the block in the cluster. Part of the fingerprint.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.tiles.tile import extent, fetch_row, load_weight, product, weight_part


def _exchange(blocks: int, in_halves: bool = False) -> str:
    """Each block writes $1 into its place in the memory of every block; $0 is the sum over the places, in order.

    There are two sets of places, and $2 names the one: a block that is a row ahead writes into the other set. With
    `in_halves` each half of the places is added to the other, as `backward_split` adds the parts of a row.
    """
    adds = "".join(f"ld.volatile.shared.f32 w, [a+{4 * i}]; add.f32 v, v, w; " for i in range(1, blocks))
    if in_halves:
        adds = f".reg .f32 v<{blocks}>; "
        adds += "".join(f"ld.volatile.shared.f32 v{i}, [a+{4 * i}]; " for i in range(blocks))
        halves = [blocks >> bit for bit in range(1, blocks.bit_length())]
        adds += "".join(f"add.f32 v{i}, v{i}, v{i + half}; " for half in halves for i in range(half))
        adds += "mov.f32 v, v0;"
    return f"""{{
        .shared .align 8 .b32 places[{2 * blocks}];
        .reg .u32 t, r, a, m;
        .reg .pred p;
        .reg .f32 v, w;
        mov.u32 t, %tid.x;
        mov.u32 r, %cluster_ctarank;
        mov.u32 a, places;
        mad.lo.u32 a, $2, {4 * blocks}, a;
        shl.b32 r, r, 2;
        add.u32 m, a, r;
        setp.lt.u32 p, t, {blocks};
        @p mapa.shared::cluster.u32 m, m, t;
        @p st.shared::cluster.f32 [m], $1;
        barrier.cluster.arrive.release;
        barrier.cluster.wait.acquire;
        ld.volatile.shared.f32 v, [a];
        {adds}
        mov.f32 $0, v;
    }}"""


_EXCHANGE_2, _EXCHANGE_4, _EXCHANGE_8 = (tl.constexpr(_exchange(blocks)) for blocks in (2, 4, 8))
_EXCHANGE_EIGHTHS = tl.constexpr(_exchange(8, in_halves=True))


@triton.jit
def _arrive():
    tl.inline_asm_elementwise(
        *("{ barrier.cluster.arrive.relaxed; mov.u32 $0, 0; }", "=r", []), dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _wait():
    tl.inline_asm_elementwise(
        *("{ barrier.cluster.wait; mov.u32 $0, 0; }", "=r", []), dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _cluster_sum(b_part, parity, BLOCKS: tl.constexpr, IN_HALVES: tl.constexpr):
    """(BLOCKS,) sums over the blocks of a cluster, the same bits in each; `parity` alternates from call to call."""
    EIGHT: tl.constexpr = _EXCHANGE_EIGHTHS if IN_HALVES else _EXCHANGE_8
    EXCHANGE: tl.constexpr = _EXCHANGE_2 if BLOCKS == 2 else (_EXCHANGE_4 if BLOCKS == 4 else EIGHT)
    b_parity = tl.full([BLOCKS], 0, tl.int32) + parity
    return tl.inline_asm_elementwise(EXCHANGE, "=f,f,r", [b_part, b_parity], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def _rank():
    """The number of this block in its cluster."""
    return tl.inline_asm_elementwise(*("mov.u32 $0, %cluster_ctarank;", "=r", []), dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def part_columns(o_part, first, n_col, PARTS: tl.constexpr, BLOCK_COL: tl.constexpr, HAS_COLUMN_MASK: tl.constexpr):
    """(PARTS, BLOCK_COL) columns of a chunk that begins `first` columns into each part, and their mask."""
    o_col = o_part + first
    mask = tl.full([PARTS, BLOCK_COL], True, tl.int1)
    if HAS_COLUMN_MASK:
        mask = o_col < n_col
    return o_col, mask


@triton.jit
def _sum_columns(
    i_slice,
    args,
    n_col,
    s_x,
    s_dy,
    BLOCKS: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    MODES: tl.constexpr,
):
    """The weight gradient of a slice of columns for each block."""
    o_block = (i_slice.to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)) * SLICE_COL
    o_col = o_block[:, None] + tl.arange(0, SLICE_COL)[None, :]
    b_sum = tl.zeros([BLOCKS, SLICE_ROW, SLICE_COL], dtype=tl.float32)
    for i_row in range(0, args.rows, SLICE_ROW):
        o_row = i_row + tl.arange(0, SLICE_ROW).to(tl.int64)
        mask = (o_row < args.rows)[None, :, None] & (o_col < n_col)[:, None, :]
        b_x = tl.load(args.x_ptr + o_row[None, :, None] * s_x + o_col[:, None, :], mask=mask, other=0.0).to(tl.float32)
        b_dy = tl.load(args.dy_ptr + o_row[None, :, None] * s_dy + o_col[:, None, :], mask=mask, other=0.0).to(
            tl.float32
        )
        b_rstd = tl.load(args.rstd_ptr + o_row, mask=o_row < args.rows, other=0.0)[None, :, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, args.dy_ptr, MODES.rounds_product)
    b_dweight = tl.sum(b_sum, axis=1).to(args.dweight_ptr.dtype.element_ty)
    tl.store(args.dweight_ptr + o_col, b_dweight, mask=o_col < n_col)


@triton.jit
def _take_rows(
    i_first,
    step,
    args,
    n_col,
    s_x,
    s_dy,
    s_dx,
    s_ds,
    BLOCKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_SUMS: tl.constexpr,
    HAS_DEPENDENT: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Gradients dx of every `step`-th row from `i_first` on; with `HAS_SUMS` partial sums of dweight."""
    _arrive()  # before a block writes into another one, that one has begun
    o_part = tl.arange(0, BLOCKS)[:, None] * (CHUNKS * BLOCK_COL) + tl.arange(0, BLOCK_COL)[None, :]
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    if HAS_SUMS:
        for _ in tl.static_range(CHUNKS):
            t_dweight = t_dweight + (tl.zeros([BLOCKS, BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
    parity = 0
    for o_row in tl.range(i_first, args.rows, step, num_stages=1):
        p_x = args.x_ptr + o_row * s_x
        p_dy = args.dy_ptr + o_row * s_dy
        p_dx = args.dx_ptr + o_row * s_dx
        if NUM_STAGES > 1:
            o_next = o_row + step
            if o_next < args.rows:
                # Into the L2, which all blocks share, so that equal shares need not be what each of them will read.
                share = args.hidden // BLOCKS
                first = _rank() * share
                fetch_row(args.x_ptr + o_next * s_x + first, share)
                fetch_row(args.dy_ptr + o_next * s_dy + first, share)
                if args.ds_ptr is not None:
                    fetch_row(args.ds_ptr + o_next * s_ds + first, share)
        b_rstd = tl.load(args.rstd_ptr + o_row)
        b_sum = tl.zeros([BLOCKS, BLOCK_COL], dtype=tl.float32)
        t_x = ()
        t_dy = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, mask = part_columns(o_part, i_chunk * BLOCK_COL, n_col, BLOCKS, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(args.weight_ptr, o_col, mask, args.offset)
            b_x = tl.load(p_x + o_col, mask=mask, other=0.0)
            b_dy = tl.load(p_dy + o_col, mask=mask, other=0.0)
            b_sum += product(b_dy.to(tl.float32) * b_weight, b_x.to(tl.float32) * b_rstd)
            t_x = t_x + (b_x,)  # noqa: RUF005
            t_dy = t_dy + (b_dy,)  # noqa: RUF005
        b_part = tl.sum(b_sum, axis=1)
        if o_row == i_first:
            _wait()
        b_mean = _cluster_sum(b_part, parity, BLOCKS, MODES.adds_in_halves)[:, None] * (1.0 / args.hidden)
        parity = 1 - parity
        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, mask = part_columns(o_part, i_chunk * BLOCK_COL, n_col, BLOCKS, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(args.weight_ptr, o_col, mask, args.offset)
            b_xhat = t_x[i_chunk].to(tl.float32) * b_rstd
            b_dy = t_dy[i_chunk].to(tl.float32)
            b_dx = b_rstd * tl.fma(-b_xhat, b_mean, product(b_dy, b_weight))
            if args.ds_ptr is not None:
                b_dx += tl.load(args.ds_ptr + o_row * s_ds + o_col, mask=mask, other=0.0).to(tl.float32)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=mask)
            if HAS_SUMS:
                b_terms = weight_part(b_dy, b_xhat, args.dy_ptr, MODES.rounds_product)
                t_next = t_next + (t_dweight[i_chunk] + b_terms,)  # noqa: RUF005
        t_dweight = t_next
    if HAS_DEPENDENT:
        gdc_launch_dependents()
    if HAS_SUMS:
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, mask = part_columns(o_part, i_chunk * BLOCK_COL, n_col, BLOCKS, BLOCK_COL, HAS_COLUMN_MASK)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(args.dweight_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rows_over_clusters(
    args,
    IS_LOOPED: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """`IS_LOOPED`: a fixed grid of clusters strides over the rows, and each writes its partial sums of dweight.

    Else the grid has a cluster for each row, then, if any, one for each so many slices. `NUM_STAGES` 2: the next row is
    fetched.
    """
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    s_dy = extent(args.dy_stride, ALIGNMENT)
    s_dx = extent(args.dx_stride, ALIGNMENT)
    s_ds = n_col
    if args.ds_ptr is not None:
        s_ds = extent(args.ds_stride, ALIGNMENT)
    i_cluster = tl.program_id(0)
    if IS_LOOPED:
        _take_rows(
            *(i_cluster.to(tl.int64), tl.num_programs(0), args, n_col, s_x, s_dy, s_dx, s_ds),
            *(BLOCKS, CHUNKS, BLOCK_COL, HAS_COLUMN_MASK),
            *(MODES.has_dweight, MODES.has_dependent, MODES, NUM_STAGES),
        )
    elif i_cluster < args.rows:
        _take_rows(
            *(i_cluster.to(tl.int64), args.rows, args, n_col, s_x, s_dy, s_dx, s_ds),
            *(BLOCKS, CHUNKS, BLOCK_COL, HAS_COLUMN_MASK, False, False, MODES, 1),
        )
    elif MODES.has_dweight:
        _sum_columns(i_cluster - args.rows, args, n_col, s_x, s_dy, BLOCKS, SLICE_ROW, SLICE_COL, MODES)
