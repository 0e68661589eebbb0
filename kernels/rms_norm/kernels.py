"""The kernels of RMSNorm and of RMSNorm of a sum, forward and backward, all arithmetic in float32.

Forward: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps). With a residual, s = x + residual is stored
and normalized instead of x. In some variants values are rounded to the dtype before further use: the sum, the
normalized row, or squares, eps, weight + offset and the stored rstd. A perfect kernel reads rows x hidden of x (and
residual) and hidden of weight, and writes rows x hidden of y (and s) and rows of rstd.

Backward, with g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
    dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat
A perfect kernel reads rows x hidden of x and of dy, rows of rstd and hidden of weight, and writes rows x hidden of dx
and hidden of dweight. After a sum, s is read instead of x, and its gradient ds as well. No way uses atomics, so the
bits are always the same:
    persistent  a fixed grid strides over the rows. Each program keeps its part of dweight in registers and writes it
                once, in float32, to its row of a (grid, hidden) workspace, which a second kernel sums. A grid of one
                writes dweight directly.
    split       the same for rows that do not fit into registers, whose columns are in chunks.
    columns     some programs take rows and write dx, others take columns and sum dweight from x and dy, which they read
                again, from the L2: one launch without partial sums.
    cluster     a row has several multiprocessors, else as `split`, or for few rows as `columns`.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.call import KernelCall
from normtune.kernels.mode import Product, Statistics, Sum
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import (
    columns,
    extent,
    fetch_row,
    gradient_of_x,
    load_tile,
    load_weight,
    product,
    row_block,
    store_tile,
    tile_mask,
    weight_part,
)

# Forward: a tile of x or of a sum, its rstd and its result.


# The run-time arguments of the forward kernel as one value.
ForwardArguments = namedtuple(
    "ForwardArguments",
    "x_ptr weight_ptr y_ptr rstd_ptr residual_ptr s_ptr rows hidden x_stride y_stride residual_stride s_stride "
    "eps offset",
)
# Compile-time choices: whether rstd is stored, a row in chunks stays in registers, and what is rounded.
ForwardModes = namedtuple("ForwardModes", "stores_rstd holds_row rounds_sum rounds_product rounds_statistics")

# Integer arguments on which the forward kernels are not specialised.
FORWARD_RUNTIME = ["rows", "hidden", "x_stride", "y_stride", "residual_stride", "s_stride"]


@triton.jit
def rounded(value, ptr, IS_ROUNDED: tl.constexpr):
    """A float32 value; with `IS_ROUNDED`, rounded to the element type of `ptr`."""
    if IS_ROUNDED:
        value = tl.cast(tl.cast(value, ptr.dtype.element_ty), tl.float32)  # scalars are Python's in the interpreter
    return value


@triton.jit
def load_scale(weight_ptr, o_col, m_col, offset, y_ptr, ROUNDS_STATISTICS: tl.constexpr):
    """(columns,) float32 of weight + offset."""
    b_weight = load_weight(weight_ptr, o_col, m_col, rounded(offset, y_ptr, ROUNDS_STATISTICS))
    return rounded(b_weight, y_ptr, ROUNDS_STATISTICS)


@triton.jit
def load_sum(args, s_x, o_row, o_col, mask, ALIGNMENT: tl.constexpr, MODES: tl.constexpr, STORE_SUM: tl.constexpr):
    """(rows, columns) float32 of x, or of s = x + residual, which is stored as well."""
    b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
    if args.residual_ptr is not None:
        b_x += load_tile(args.residual_ptr, extent(args.residual_stride, ALIGNMENT), o_row, o_col, mask)
        if STORE_SUM:
            store_tile(args.s_ptr, extent(args.s_stride, ALIGNMENT), o_row, o_col, mask, b_x)
        b_x = rounded(b_x, args.s_ptr, MODES.rounds_sum)
    return b_x


@triton.jit
def rstd_of(b_x, y_ptr, hidden, eps, ROUNDS_STATISTICS: tl.constexpr):
    """(rows,) float32 of whole rows."""
    b_square = rounded(b_x * b_x, y_ptr, ROUNDS_STATISTICS)
    return tl.rsqrt(tl.sum(b_square, axis=1) / hidden + rounded(eps, y_ptr, ROUNDS_STATISTICS))


@triton.jit
def scaled(b_x, b_rstd, b_weight, y_ptr, ROUNDS_PRODUCT: tl.constexpr):
    """(rows, columns) float32 of y."""
    return rounded(b_x * b_rstd[:, None], y_ptr, ROUNDS_PRODUCT) * b_weight[None, :]


# Forward of few rows: several programs a row, each of which reads the whole row and writes a part of it. Each sums
# the whole row in the same order, to the same bits, so none waits for another. All but one read it from the L2.


@triton.jit
def normalize_part(
    args,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a part of `PART_COL` columns of one row; neither y nor s may be the memory of an input."""
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    o_row, m_row = row_block(tl.program_id(0), args.rows, 1)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(tl.program_id(1) * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_part, 1)
    b_x = load_sum(args, s_x, o_row, o_col, tile_mask(m_row, m_col, 1), ALIGNMENT, MODES, False)
    b_part = load_sum(args, s_x, o_row, o_part, mask, ALIGNMENT, MODES, True)
    b_weight = load_scale(args.weight_ptr, o_part, m_part, args.offset, args.y_ptr, MODES.rounds_statistics)
    b_rstd = rstd_of(b_x, args.y_ptr, args.hidden, args.eps, MODES.rounds_statistics)
    b_y = scaled(b_part, b_rstd, b_weight, args.y_ptr, MODES.rounds_product)
    store_tile(args.y_ptr, extent(args.y_stride, ALIGNMENT), o_row, o_part, mask, b_y)
    if MODES.stores_rstd and tl.program_id(1) == 0:
        tl.store(args.rstd_ptr + o_row, rounded(b_rstd, args.y_ptr, MODES.rounds_statistics), mask=m_row)


# Longest row in chunks that is read again out of the cache: 0.97 of the copy at hidden 16384 in float32. A longer one
# stays in registers: 1.04 of the copy at 32768, against 1.10 when read again.
_MAX_READ_AGAIN_BYTES = 64 << 10
# A row of float32 sums stays in registers up to half of them.
_MAX_SUM_BYTES = 128 << 10


@triton.jit
def _normalize_chunks(
    args,
    CHUNKS: tl.constexpr,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize `PART_COL` columns of one row in chunks; with several parts a row is read twice and never in place."""
    IS_PART: tl.constexpr = PART_COL < CHUNKS * BLOCK_COL
    HAS_PART_MASK: tl.constexpr = HAS_COLUMN_MASK or CHUNKS * BLOCK_COL % PART_COL != 0
    n_col = extent(args.hidden, ALIGNMENT)
    i_row = tl.program_id(0).to(tl.int64)
    p_x = args.x_ptr + i_row * extent(args.x_stride, ALIGNMENT)
    p_y = args.y_ptr + i_row * extent(args.y_stride, ALIGNMENT)
    p_residual = args.residual_ptr
    p_s = args.s_ptr
    if args.residual_ptr is not None:
        p_residual += i_row * extent(args.residual_stride, ALIGNMENT)
        p_s += i_row * extent(args.s_stride, ALIGNMENT)
    b_square = tl.zeros([BLOCK_COL], dtype=tl.float32)
    t_x = ()  # Triton adds tuples, but does not unpack them
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        if MODES.holds_row:
            b_read = tl.load(p_x + o_col, mask=m_col, other=0.0)
        else:
            b_read = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last")
        b_x = b_read.to(tl.float32)
        if args.residual_ptr is not None:
            b_x += tl.load(p_residual + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_x = rounded(b_x, args.s_ptr, MODES.rounds_sum)
            if MODES.holds_row:
                t_x = t_x + (b_x,)  # noqa: RUF005
        elif MODES.holds_row:
            t_x = t_x + (b_read,)  # noqa: RUF005
        b_square += rounded(b_x * b_x, args.y_ptr, MODES.rounds_statistics)
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=0) / args.hidden + rounded(args.eps, args.y_ptr, MODES.rounds_statistics))
    i_first = 0
    if IS_PART:
        i_first = tl.program_id(1) * PART_COL
    if MODES.stores_rstd and i_first == 0:
        tl.store(args.rstd_ptr + i_row, rounded(b_rstd, args.y_ptr, MODES.rounds_statistics))
    for i_chunk in tl.static_range((PART_COL + BLOCK_COL - 1) // BLOCK_COL):
        o_col, m_col = columns(
            i_first + i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_PART_MASK and (IS_PART or i_chunk == CHUNKS - 1)
        )
        if PART_COL < BLOCK_COL:  # with a tile of another shape the compiler would sum unaligned rows in another order
            m_col = m_col & (o_col < i_first + PART_COL)
        b_weight = load_scale(args.weight_ptr, o_col, m_col, args.offset, args.y_ptr, MODES.rounds_statistics)
        if MODES.holds_row:
            b_read = t_x[i_chunk]
        else:  # out of the cache
            b_read = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first")
        b_x = b_read.to(tl.float32)
        if args.residual_ptr is not None:
            if not MODES.holds_row:
                b_x += tl.load(p_residual + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            # Stored at its last use: in place, it takes the memory of the residual.
            b_s = b_x.to(args.s_ptr.dtype.element_ty)
            tl.store(p_s + o_col, b_s, mask=m_col)
            if MODES.rounds_sum:
                b_x = b_s.to(tl.float32)
        p_out = p_y + o_col
        b_xhat = rounded(b_x * b_rstd, args.y_ptr, MODES.rounds_product)
        tl.store(p_out, (b_xhat * b_weight).to(args.y_ptr.dtype.element_ty), mask=m_col)


@triton.jit(do_not_specialize=FORWARD_RUNTIME)
def _rms_norm_forward_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    residual_ptr,
    s_ptr,
    rows,
    hidden,
    x_stride,
    y_stride,
    residual_stride,
    s_stride,
    eps,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    PART_COL: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """A program has a row in chunks, a part of a row, or a block of rows; with `NUM_STAGES` > 0 several blocks."""
    args = ForwardArguments(
        *(x_ptr, weight_ptr, y_ptr, rstd_ptr, residual_ptr, s_ptr, rows, hidden),
        *(x_stride, y_stride, residual_stride, s_stride, eps, offset),
    )
    if CHUNKS > 0:
        _normalize_chunks(args, CHUNKS, PART_COL, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES)
    elif PART_COL > 0:
        normalize_part(args, PART_COL, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES)
    elif NUM_STAGES > 0:
        n_col = extent(hidden, ALIGNMENT)
        s_x = extent(x_stride, ALIGNMENT)
        s_y = extent(y_stride, ALIGNMENT)
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_scale(weight_ptr, o_col, m_col, offset, y_ptr, MODES.rounds_statistics)
        for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
            o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
            mask = tile_mask(m_row, m_col, BLOCK_ROW)
            b_x = load_sum(args, s_x, o_row, o_col, mask, ALIGNMENT, MODES, True)
            b_rstd = rstd_of(b_x, y_ptr, hidden, eps, MODES.rounds_statistics)
            b_y = scaled(b_x, b_rstd, b_weight, y_ptr, MODES.rounds_product)
            store_tile(y_ptr, s_y, o_row, o_col, mask, b_y)
            if MODES.stores_rstd:
                tl.store(rstd_ptr + o_row, rounded(b_rstd, y_ptr, MODES.rounds_statistics), mask=m_row)
    else:
        n_col = extent(hidden, ALIGNMENT)
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        o_row, m_row = row_block(tl.program_id(0), rows, BLOCK_ROW)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        b_weight = load_scale(weight_ptr, o_col, m_col, offset, y_ptr, MODES.rounds_statistics)
        b_x = load_sum(args, extent(x_stride, ALIGNMENT), o_row, o_col, mask, ALIGNMENT, MODES, True)
        b_rstd = rstd_of(b_x, y_ptr, hidden, eps, MODES.rounds_statistics)
        b_y = scaled(b_x, b_rstd, b_weight, y_ptr, MODES.rounds_product)
        store_tile(y_ptr, extent(y_stride, ALIGNMENT), o_row, o_col, mask, b_y)
        if MODES.stores_rstd:
            tl.store(rstd_ptr + o_row, rounded(b_rstd, y_ptr, MODES.rounds_statistics), mask=m_row)


def forward_calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one forward.

    Args:
        launch: from `resolve_forward`.
        problem: the variant decides whether rstd is stored, and what is rounded on the way.
        tensors: `x` (rows, hidden), `weight` (hidden,), `y` (rows, hidden), and `rstd` (rows,) float32 unless the
            variant is `no_rstd`. To normalize the sum s = x + residual, also `residual` and `s` (rows, hidden).
            Contiguous in the last dimension.
        workspace: not read.
        eps: added to the mean square.
        offset: added to the weight, in float32.
    """
    x, y, residual, s = tensors["x"], tensors["y"], tensors.get("residual"), tensors.get("s")
    args = (
        *(x, tensors["weight"], y, tensors.get("rstd"), residual, s),
        *(problem.rows, problem.hidden, x.stride(0), y.stride(0)),
        *(None if tensor is None else tensor.stride(0) for tensor in (residual, s)),
        *(eps, offset),
    )
    row = launch.chunks * launch.block_col
    part = launch.slice_col or row
    is_held = part == row and row * ITEMSIZE[problem.dtype] > _MAX_READ_AGAIN_BYTES
    is_held = is_held and (residual is None or 4 * row <= _MAX_SUM_BYTES)
    rounds = (mode.of(problem) is mode.ROUNDED for mode in (Sum, Product, Statistics))
    options = {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "PART_COL": part,
        "CHUNKS": launch.chunks,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "MODES": ForwardModes("rstd" in tensors, is_held, *rounds),
        "NUM_STAGES": launch.num_stages if launch.looped and not launch.chunks else 0,
        "num_warps": launch.num_warps,
    }
    grid = (launch.grid, triton.cdiv(problem.hidden, part)) if launch.slice_col else (launch.grid,)
    return (KernelCall(_rms_norm_forward_kernel, grid, args, options),)


# Backward in one launch: some programs take rows and write dx, others take columns and sum dweight. dweight needs no
# mean over a row, so no program waits for another. This suits few rows, since x and dy are read twice, the second
# time from the L2, and a program of columns walks through all rows.


@triton.jit
def _sum_columns(
    i_slice,
    args,
    n_col,
    s_x,
    s_dy,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    o_col, m_col = columns(i_slice.to(tl.int64) * SLICE_COL, n_col, SLICE_COL, True)
    b_sum = tl.zeros([SLICE_ROW, SLICE_COL], dtype=tl.float32)
    for i_row in tl.range(0, args.rows, SLICE_ROW, num_stages=NUM_STAGES):
        o_row = i_row + tl.arange(0, SLICE_ROW).to(tl.int64)
        m_row = o_row < args.rows
        mask = m_row[:, None] & m_col[None, :]
        b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(args.dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(args.rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, args.dy_ptr, MODES.rounds_product)
    tl.store(args.dweight_ptr + o_col, tl.sum(b_sum, axis=0).to(args.dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit
def rows_beside_columns(
    args,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """The grid: a program for each slice of columns, if any, then one for each block of rows."""
    n_col = extent(args.hidden, ALIGNMENT)
    s_x = extent(args.x_stride, ALIGNMENT)
    s_dy = extent(args.dy_stride, ALIGNMENT)
    i_block = tl.program_id(0)
    if MODES.has_dweight:
        i_slice = tl.program_id(0)
        slices = tl.cdiv(args.hidden, SLICE_COL)
        i_block -= slices
        if i_slice < slices:  # programs of columns take longer, so they come first
            _sum_columns(i_slice, args, n_col, s_x, s_dy, SLICE_ROW, SLICE_COL, MODES, NUM_STAGES)
    if i_block >= 0:
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        o_row, m_row = row_block(i_block, args.rows, BLOCK_ROW)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
        b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(args.dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(args.rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_dx = gradient_of_x(b_dy, b_x * b_rstd, b_weight, b_rstd, 1.0 / args.hidden)
        if args.ds_ptr is not None:
            b_dx += load_tile(args.ds_ptr, extent(args.ds_stride, ALIGNMENT), o_row, o_col, mask)
        store_tile(args.dx_ptr, extent(args.dx_stride, ALIGNMENT), o_row, o_col, mask, b_dx)


# Backward of long rows, with a cluster of blocks for each row. Each block holds a part of the row's columns, in
# chunks. The blocks exchange one number, their part of the row's sum, through distributed shared memory (PTX ISA,
# `mapa`, `barrier.cluster`), because Triton's sums do not cross blocks. For many rows, a fixed grid of clusters
# writes partial sums of dweight; for few, each row has a cluster, and other clusters sum columns as above. The first
# axis of the tensors is the block in the cluster.


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
def _sum_cluster_columns(
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
        _sum_cluster_columns(i_cluster - args.rows, args, n_col, s_x, s_dy, BLOCKS, SLICE_ROW, SLICE_COL, MODES)


# Backward of rows that are too long for one tile: columns in chunks, each with its own sums, in `split` and
# `split_8`. The sums of dweight take half of the registers at hidden 16384 in bfloat16. Between their two uses x and
# dy stay in registers, in their own dtype, or are read again from the cache if they do not fit.


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


# The run-time arguments of the kernel as one value.
BackwardArguments = namedtuple(
    "BackwardArguments",
    "dy_ptr x_ptr weight_ptr rstd_ptr dx_ptr dweight_ptr ds_ptr rows hidden x_stride dy_stride dx_stride ds_stride "
    "offset",
)
# Compile-time choices: the weight gradient, a dependent reduction after it, what is rounded, a row kept in registers,
# the order in which the parts of a row are added.
BackwardModes = namedtuple("BackwardModes", "has_dweight has_dependent rounds_product is_held adds_in_halves")


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "dy_stride", "dx_stride", "ds_stride"])
def _rms_norm_backward_kernel(
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
    BLOCK_ROW: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_CLUSTERED: tl.constexpr,
    IS_LOOPED: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    args = BackwardArguments(
        *(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, dweight_ptr, ds_ptr, rows, hidden),
        *(x_stride, dy_stride, dx_stride, ds_stride, offset),
    )
    if IS_CLUSTERED:
        rows_over_clusters(
            *(args, IS_LOOPED, PARTS, CHUNKS, BLOCK_COL, SLICE_ROW, SLICE_COL),
            *(ALIGNMENT, HAS_COLUMN_MASK, MODES, NUM_STAGES),
        )
    elif CHUNKS > 0:
        rows_in_chunks(args, PARTS, BLOCK_ROW, CHUNKS, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES, NUM_STAGES)
    elif not IS_LOOPED:
        rows_beside_columns(
            *(args, BLOCK_ROW, BLOCK_COL, SLICE_ROW, SLICE_COL),
            *(ALIGNMENT, HAS_COLUMN_MASK, MODES, NUM_STAGES),
        )
    else:
        n_col = extent(hidden, ALIGNMENT)
        s_x = extent(x_stride, ALIGNMENT)
        s_dy = extent(dy_stride, ALIGNMENT)
        s_dx = extent(dx_stride, ALIGNMENT)
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_weight(weight_ptr, o_col, m_col, offset)
        inverse_hidden = 1.0 / hidden
        # The rows of the tile are summed after the loop: inside of it, that would cross warps once per tile.
        b_dweight = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
        for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
            o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
            mask = tile_mask(m_row, m_col, BLOCK_ROW)
            b_x = load_tile(x_ptr, s_x, o_row, o_col, mask)
            b_dy = load_tile(dy_ptr, s_dy, o_row, o_col, mask)
            b_rstd = tl.load(rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
            b_xhat = b_x * b_rstd
            b_dx = gradient_of_x(b_dy, b_xhat, b_weight, b_rstd, inverse_hidden)
            if ds_ptr is not None:
                b_dx += load_tile(ds_ptr, extent(ds_stride, ALIGNMENT), o_row, o_col, mask)
            store_tile(dx_ptr, s_dx, o_row, o_col, mask, b_dx)
            if MODES.has_dweight:
                b_dweight += weight_part(b_dy, b_xhat, dy_ptr, MODES.rounds_product)
        if MODES.has_dependent:
            gdc_launch_dependents()
        if MODES.has_dweight:
            b_sum = tl.sum(b_dweight, axis=0)
            p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col + o_col
            tl.store(p_out, b_sum.to(dweight_ptr.dtype.element_ty), mask=m_col)


def backward_calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one backward: the main kernel and, with partial sums, their reduction.

    Args:
        launch: from `resolve_backward`.
        problem: the variant decides whether the weight gradient is computed.
        tensors: `dy`, `x` (rows, hidden), `weight` (hidden,), `rstd` (rows,) float32, `dx` (rows, hidden), and
            `dweight` (hidden,) unless the variant is `no_dweight`. After a sum, `s` instead of `x`, and `ds` (rows,
            hidden), which is added to dx. Contiguous in the last dimension.
        workspace: `launch.workspace` float32 elements or more; not read if that is 0.
        eps: not read, as rstd includes it.
        offset: added to the weight, in float32.
    """
    dy, ds, dx, dweight = tensors["dy"], tensors.get("ds"), tensors["dx"], tensors.get("dweight")
    x = tensors["x" if ds is None else "s"]
    partial = workspace if launch.workspace else dweight
    args = (
        *(dy, x, tensors["weight"], tensors["rstd"], dx, partial, ds),
        *(problem.rows, problem.hidden, x.stride(0), dy.stride(0), dx.stride(0)),
        *(None if ds is None else ds.stride(0), offset),
    )
    is_split = launch.chunks > 0 and not launch.clustered
    options = {
        "BLOCK_ROW": launch.block_row if not launch.chunks or (is_split and launch.parts > 1) else 0,
        "PARTS": launch.parts if launch.chunks else 0,
        "CHUNKS": launch.chunks,
        "BLOCK_COL": launch.block_col,
        "SLICE_ROW": launch.slice_row,
        "SLICE_COL": launch.slice_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "IS_CLUSTERED": launch.clustered,
        "IS_LOOPED": launch.looped,
        "MODES": BackwardModes(
            has_dweight=dweight is not None,
            has_dependent=launch.finish == "dependent",
            rounds_product=Product.of(problem) is Product.ROUNDED,
            is_held=is_split and launch.held,
            adds_in_halves=launch.clustered and launch.in_halves,
        ),
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }
    if launch.clustered:
        options["num_ctas"] = launch.parts
    main = KernelCall(_rms_norm_backward_kernel, (launch.grid,), args, options)
    if not launch.workspace:
        return (main,)
    return (main, reduction(launch, problem.hidden, workspace, dweight))
