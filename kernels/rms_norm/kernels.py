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

from normtune.kernels.call import KernelCall, arguments
from normtune.kernels.mode import Dweight, Product, Rstd, Statistics, Sum, names_of
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.tiles.launch import MAX_READ_AGAIN_BYTES, MAX_SUM_BYTES, Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import (
    as_column,
    columns,
    elements,
    extent,
    fetch_row,
    gradient_of_x,
    load_tile,
    load_weight,
    product,
    rounded,
    row_block,
    store_tile,
    tile_mask,
    weight_part,
)
from normtune.kernels.tiles.walk import walk

# Forward, in the three bodies of `tiles.walk`.

# The run-time arguments of the forward kernel as one value.
ForwardArguments = namedtuple(
    "ForwardArguments",
    "x_ptr weight_ptr y_ptr rstd_ptr residual_ptr s_ptr rows hidden x_stride y_stride residual_stride s_stride "
    "eps offset",
)
# The modes of a problem that the kernels read.
_FORWARD_MODES = (Rstd, Sum, Product, Statistics)

# Integer arguments on which the forward kernels are not specialised.
FORWARD_RUNTIME = ["rows", "hidden", "x_stride", "y_stride", "residual_stride", "s_stride"]


@triton.jit
def _load_norm(args, at, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    """x, or s = x + residual, which a tile also stores; a chunk does so at its last use: s may be the residual."""
    EVICTION: tl.constexpr = "evict_last" if PASS == "first" else ("evict_first" if PASS == "last" else "")
    RESIDUAL_EVICTION: tl.constexpr = "evict_last" if PASS == "chunk" else EVICTION
    p_x = elements(args.x_ptr, extent(args.x_stride, TILE.alignment), at.o_row, at.o_col)
    b_x = tl.load(p_x, mask=at.mask, other=0.0, eviction_policy=EVICTION)
    if args.residual_ptr is not None:
        p_residual = elements(args.residual_ptr, extent(args.residual_stride, TILE.alignment), at.o_row, at.o_col)
        b_residual = tl.load(p_residual, mask=at.mask, other=0.0, eviction_policy=RESIDUAL_EVICTION)
        b_x = b_x.to(tl.float32) + b_residual.to(tl.float32)
        if PASS == "once" or PASS == "part":
            store_tile(args.s_ptr, extent(args.s_stride, TILE.alignment), at.o_row, at.o_col, at.mask, b_x)
        if PASS != "last" and MODES.sum == "ROUNDED":
            b_x = rounded(b_x, args.s_ptr.dtype.element_ty)
    return b_x, b_x


@triton.jit
def _store_rstd(args, b_rstd, o_row, m_row, is_first, MODES: tl.constexpr):
    if MODES.rstd == "STORED" and is_first:
        DTYPE: tl.constexpr = args.y_ptr.dtype.element_ty if MODES.statistics == "ROUNDED" else None
        tl.store(args.rstd_ptr + o_row, rounded(b_rstd, DTYPE), mask=m_row)


@triton.jit
def _turn(args, at, t_x, b_weight, b_rstd, is_first, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    if PASS == "last":
        _store_rstd(args, b_rstd, at.o_row, at.m_row, is_first, MODES)
    return b_rstd, t_x


@triton.jit
def _store_norm(args, at, b_x, b_beside, b_weight, b_rstd, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    if PASS == "last" and args.residual_ptr is not None:
        b_s = b_x.to(args.s_ptr.dtype.element_ty)
        tl.store(elements(args.s_ptr, extent(args.s_stride, TILE.alignment), at.o_row, at.o_col), b_s, mask=at.mask)
        if MODES.sum == "ROUNDED":
            b_x = b_s.to(tl.float32)
    DTYPE: tl.constexpr = args.y_ptr.dtype.element_ty if MODES.product == "ROUNDED" else None
    b_y = rounded(b_x * as_column(b_rstd), DTYPE) * b_weight
    store_tile(args.y_ptr, extent(args.y_stride, TILE.alignment), at.o_row, at.o_col, at.mask, b_y)
    if PASS != "last":  # behind y, as a branch of the program of each part would come before its address
        _store_rstd(args, b_rstd, at.o_row, at.m_row, at.number == 0, MODES)
    return b_rstd


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
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    args = ForwardArguments(
        *(x_ptr, weight_ptr, y_ptr, rstd_ptr, residual_ptr, s_ptr, rows, hidden),
        *(x_stride, y_stride, residual_stride, s_stride, eps, offset),
    )
    STATISTICS: tl.constexpr = y_ptr.dtype.element_ty if MODES.statistics == "ROUNDED" else None
    i_first, step = tl.program_id(0), tl.num_programs(0)
    walk(args, i_first, step, _load_norm, _turn, _store_norm, STATISTICS, False, TILE, MODES)


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
    numbers = {"rows": problem.rows, "hidden": problem.hidden, "eps": eps, "offset": offset}
    args = arguments(_rms_norm_forward_kernel, tensors, **numbers)
    row = launch.chunks * launch.block_col
    is_held = not launch.part_col and row * ITEMSIZE[problem.dtype] > MAX_READ_AGAIN_BYTES
    is_held = is_held and (tensors.get("residual") is None or 4 * row <= MAX_SUM_BYTES)
    options = {
        "TILE": launch.tile._replace(is_held=is_held),
        "MODES": names_of(_FORWARD_MODES, problem.variant),
        "num_warps": launch.num_warps,
    }
    return (KernelCall(_rms_norm_forward_kernel, launch.programs(problem.hidden), args, options),)


# Backward in one launch: some programs take rows and write dx, others take columns and sum dweight. dweight needs no
# mean over a row, so no program waits for another. This suits few rows, since x and dy are read twice, the second
# time from the L2, and a program of columns walks through all rows.


@triton.jit
def _sum_columns(i_slice, args, n_col, s_x, s_dy, TILE: tl.constexpr, MODES: tl.constexpr):
    SLICE_ROW: tl.constexpr = TILE.slice_rows
    SLICE_COL: tl.constexpr = TILE.slice_cols
    o_col, m_col = columns(i_slice.to(tl.int64) * SLICE_COL, n_col, SLICE_COL, True)
    b_sum = tl.zeros([SLICE_ROW, SLICE_COL], dtype=tl.float32)
    for i_row in tl.range(0, args.rows, SLICE_ROW, num_stages=TILE.num_stages):
        o_row = i_row + tl.arange(0, SLICE_ROW).to(tl.int64)
        m_row = o_row < args.rows
        mask = m_row[:, None] & m_col[None, :]
        b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
        b_dy = load_tile(args.dy_ptr, s_dy, o_row, o_col, mask)
        b_rstd = tl.load(args.rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, args.dy_ptr, MODES.product == "ROUNDED")
    tl.store(args.dweight_ptr + o_col, tl.sum(b_sum, axis=0).to(args.dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit
def _gradient_block(args, i_block, b_weight, o_col, m_col, inverse_hidden, TILE: tl.constexpr):
    """Write dx of a block of whole rows; returns dy and xhat, (rows, columns) float32."""
    o_row, m_row = row_block(i_block, args.rows, TILE.rows)
    mask = tile_mask(m_row, m_col, TILE.rows)
    b_x = load_tile(args.x_ptr, extent(args.x_stride, TILE.alignment), o_row, o_col, mask)
    b_dy = load_tile(args.dy_ptr, extent(args.dy_stride, TILE.alignment), o_row, o_col, mask)
    b_rstd = tl.load(args.rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
    b_xhat = b_x * b_rstd
    b_dx = gradient_of_x(b_dy, b_xhat, b_weight, b_rstd, inverse_hidden)
    if args.ds_ptr is not None:
        b_dx += load_tile(args.ds_ptr, extent(args.ds_stride, TILE.alignment), o_row, o_col, mask)
    store_tile(args.dx_ptr, extent(args.dx_stride, TILE.alignment), o_row, o_col, mask, b_dx)
    return b_dy, b_xhat


@triton.jit
def rows_beside_columns(args, TILE: tl.constexpr, MODES: tl.constexpr):
    """The grid: a program for each slice of columns, if any, then one for each block of rows."""
    n_col = extent(args.hidden, TILE.alignment)
    s_x = extent(args.x_stride, TILE.alignment)
    s_dy = extent(args.dy_stride, TILE.alignment)
    i_block = tl.program_id(0)
    if MODES.dweight == "COMPUTED":
        i_slice = tl.program_id(0)
        slices = tl.cdiv(args.hidden, TILE.slice_cols)
        i_block -= slices
        if i_slice < slices:  # programs of columns take longer, so they come first
            _sum_columns(i_slice, args, n_col, s_x, s_dy, TILE, MODES)
    if i_block >= 0:
        o_col, m_col = columns(0, n_col, TILE.cols, TILE.has_column_mask)
        b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
        _gradient_block(args, i_block, b_weight, o_col, m_col, 1.0 / args.hidden, TILE)


@triton.jit
def rows_in_a_loop(args, TILE: tl.constexpr, MODES: tl.constexpr):
    """A fixed grid strides over blocks of rows, and each program writes its partial sums of dweight."""
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    n_col = extent(args.hidden, TILE.alignment)
    o_col, m_col = columns(0, n_col, COLS, TILE.has_column_mask)
    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
    inverse_hidden = 1.0 / args.hidden
    # The rows of the tile are summed after the loop: inside of it, that would cross warps once per tile.
    b_dweight = tl.zeros([ROWS, COLS], dtype=tl.float32)
    blocks = tl.cdiv(args.rows, ROWS)
    for i_block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=TILE.num_stages):
        b_dy, b_xhat = _gradient_block(args, i_block, b_weight, o_col, m_col, inverse_hidden, TILE)
        if MODES.dweight == "COMPUTED":
            b_dweight += weight_part(b_dy, b_xhat, args.dy_ptr, MODES.product == "ROUNDED")
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.dweight == "COMPUTED":
        b_sum = tl.sum(b_dweight, axis=0)
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col + o_col
        tl.store(p_out, b_sum.to(args.dweight_ptr.dtype.element_ty), mask=m_col)


# Backward of long rows, with a cluster of blocks for each row. Each block holds a part of the row's columns, in
# chunks. The blocks exchange one number, their part of the row's sum, through distributed shared memory (PTX ISA,
# `mapa`, `barrier.cluster`), because Triton's sums do not cross blocks. For many rows, a fixed grid of clusters
# writes partial sums of dweight; for few, each row has a cluster, and other clusters sum columns as above. The first
# axis of the tensors is the block in the cluster.


def _exchange(blocks: int, in_halves: bool = False) -> str:
    """Each block writes $1 into its place in the memory of every block; $0 is the sum over the places, in order.

    There are two sets of places, and $2 names the one: a block that is a row ahead writes into the other set. With
    `in_halves` each half of the places is added to the other, as `_in_halves` adds the parts of a row.
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
def _sum_cluster_columns(i_slice, args, n_col, s_x, s_dy, TILE: tl.constexpr, MODES: tl.constexpr):
    """The weight gradient of a slice of columns for each block."""
    BLOCKS: tl.constexpr = TILE.parts
    SLICE_ROW: tl.constexpr = TILE.slice_rows
    SLICE_COL: tl.constexpr = TILE.slice_cols
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
        b_sum += weight_part(b_dy, b_x * b_rstd, args.dy_ptr, MODES.product == "ROUNDED")
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
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    """Gradients dx of every `step`-th row from `i_first` on; in a loop of a fixed grid also partial sums of dweight."""
    BLOCKS: tl.constexpr = TILE.parts
    CHUNKS: tl.constexpr = TILE.chunks
    BLOCK_COL: tl.constexpr = TILE.cols
    HAS_SUMS: tl.constexpr = TILE.is_looped and MODES.dweight == "COMPUTED"
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
        if TILE.num_stages > 1:
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
            o_col, mask = part_columns(o_part, i_chunk * BLOCK_COL, n_col, BLOCKS, BLOCK_COL, TILE.has_column_mask)
            b_weight = load_weight(args.weight_ptr, o_col, mask, args.offset)
            b_x = tl.load(p_x + o_col, mask=mask, other=0.0)
            b_dy = tl.load(p_dy + o_col, mask=mask, other=0.0)
            b_sum += product(b_dy.to(tl.float32) * b_weight, b_x.to(tl.float32) * b_rstd)
            t_x = t_x + (b_x,)  # noqa: RUF005
            t_dy = t_dy + (b_dy,)  # noqa: RUF005
        b_part = tl.sum(b_sum, axis=1)
        if o_row == i_first:
            _wait()
        b_mean = _cluster_sum(b_part, parity, BLOCKS, TILE.in_halves)[:, None] * (1.0 / args.hidden)
        parity = 1 - parity
        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, mask = part_columns(o_part, i_chunk * BLOCK_COL, n_col, BLOCKS, BLOCK_COL, TILE.has_column_mask)
            b_weight = load_weight(args.weight_ptr, o_col, mask, args.offset)
            b_xhat = t_x[i_chunk].to(tl.float32) * b_rstd
            b_dy = t_dy[i_chunk].to(tl.float32)
            b_dx = b_rstd * tl.fma(-b_xhat, b_mean, product(b_dy, b_weight))
            if args.ds_ptr is not None:
                b_dx += tl.load(args.ds_ptr + o_row * s_ds + o_col, mask=mask, other=0.0).to(tl.float32)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=mask)
            if HAS_SUMS:
                b_terms = weight_part(b_dy, b_xhat, args.dy_ptr, MODES.product == "ROUNDED")
                t_next = t_next + (t_dweight[i_chunk] + b_terms,)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if HAS_SUMS:
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, mask = part_columns(o_part, i_chunk * BLOCK_COL, n_col, BLOCKS, BLOCK_COL, TILE.has_column_mask)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(args.dweight_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rows_over_clusters(args, TILE: tl.constexpr, MODES: tl.constexpr):
    """In a loop a fixed grid of clusters strides over the rows, and each writes its partial sums of dweight.

    Else the grid has a cluster for each row, then, if any, one for each so many slices. With two stages the next row is
    fetched.
    """
    n_col = extent(args.hidden, TILE.alignment)
    s_x = extent(args.x_stride, TILE.alignment)
    s_dy = extent(args.dy_stride, TILE.alignment)
    s_dx = extent(args.dx_stride, TILE.alignment)
    s_ds = n_col
    if args.ds_ptr is not None:
        s_ds = extent(args.ds_stride, TILE.alignment)
    i_cluster = tl.program_id(0)
    if TILE.is_looped:
        _take_rows(i_cluster.to(tl.int64), tl.num_programs(0), args, n_col, s_x, s_dy, s_dx, s_ds, TILE, MODES)
    elif i_cluster < args.rows:
        _take_rows(i_cluster.to(tl.int64), args.rows, args, n_col, s_x, s_dy, s_dx, s_ds, TILE, MODES)
    elif MODES.dweight == "COMPUTED":
        _sum_cluster_columns(i_cluster - args.rows, args, n_col, s_x, s_dy, TILE, MODES)


# Backward of rows that are too long for one tile: columns in chunks, each with its own sums, in `split` and
# `split_8`. The sums of dweight take half of the registers at hidden 16384 in bfloat16. Between their two uses x and
# dy stay in registers, in their own dtype, or are read again from the cache if they do not fit.


@triton.jit
def _zeros(TILE: tl.constexpr):
    """Zeros for the columns of a chunk."""
    return tl.full([TILE.tile_parts, TILE.cols] if TILE.parts > 1 else [TILE.cols], 0.0, tl.float32)


@triton.jit
def _chunk(i_tile: tl.constexpr, i_chunk, n_col, IS_LAST: tl.constexpr, TILE: tl.constexpr):
    """(columns,) columns of a chunk, or (parts of a tile, columns), of that chunk of each part; and their mask.

    Only the last chunk of a row in one part has columns beyond the row; with several parts, whole parts may.
    """
    COLS: tl.constexpr = TILE.cols
    if TILE.parts > 1:
        o_part = i_tile * TILE.tile_parts + tl.arange(0, TILE.tile_parts)
        o_part = o_part[:, None] * (TILE.chunks * COLS) + tl.arange(0, COLS)[None, :]
        o_col, m_col = part_columns(o_part, i_chunk * COLS, n_col, TILE.tile_parts, COLS, TILE.has_column_mask)
    else:
        o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask and IS_LAST)
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
def _term(b_g, b_xhat, TILE: tl.constexpr):
    """The term of each column in the sum over its row; with parts it is rounded as in a cluster."""
    b_term = b_g * b_xhat
    if TILE.parts > 1:
        b_term = product(b_g, b_xhat)
    return b_term


@triton.jit
def _first_terms(
    args, p_x, p_dy, b_rstd, i_tile: tl.constexpr, i_chunk, n_col, IS_LAST: tl.constexpr, TILE: tl.constexpr
):
    """The terms of a chunk that will be read again."""
    o_col, m_col = _chunk(i_tile, i_chunk, n_col, IS_LAST, TILE)
    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
    return _term(b_dy * b_weight, b_x * b_rstd, TILE)


@triton.jit
def _gradient(b_dy, b_weight, b_xhat, b_mean, TILE: tl.constexpr):
    """The gradient of x without the factor of its row; with parts it is rounded as in a cluster."""
    b_gradient = b_dy * b_weight - b_xhat * b_mean
    if TILE.parts > 1:
        # Not fma(-b_xhat, b_mean, ...): Triton's minus of a tensor is a subtraction, whose results spill.
        b_gradient = tl.fma(b_xhat, -b_mean, product(b_dy, b_weight))
    return b_gradient


@triton.jit
def rows_in_chunks(args, TILE: tl.constexpr, MODES: tl.constexpr):
    """A row in one part, or in parts of which a tile has some beside each other.

    With two stages the next row is fetched.
    """
    CHUNKS: tl.constexpr = TILE.chunks
    TILES: tl.constexpr = TILE.parts // TILE.tile_parts
    HAS_TAIL: tl.constexpr = 1 if TILE.has_column_mask and TILE.parts == 1 else 0
    n_col = extent(args.hidden, TILE.alignment)
    s_x = extent(args.x_stride, TILE.alignment)
    s_dy = extent(args.dy_stride, TILE.alignment)
    s_dx = extent(args.dx_stride, TILE.alignment)
    inverse_hidden = 1.0 / args.hidden
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(TILES * CHUNKS):
        t_dweight = t_dweight + (_zeros(TILE),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0), args.rows, tl.num_programs(0), num_stages=1):
        o_row = i_row.to(tl.int64)
        p_x = args.x_ptr + o_row * s_x
        p_dy = args.dy_ptr + o_row * s_dy
        p_dx = args.dx_ptr + o_row * s_dx
        p_ds = args.ds_ptr
        if args.ds_ptr is not None:
            p_ds += o_row * extent(args.ds_stride, TILE.alignment)
        if TILE.num_stages > 1:
            o_next = o_row + tl.num_programs(0)
            if o_next < args.rows:
                fetch_row(args.x_ptr + o_next * s_x, args.hidden)
                fetch_row(args.dy_ptr + o_next * s_dy, args.hidden)
                if args.ds_ptr is not None:
                    fetch_row(args.ds_ptr + o_next * extent(args.ds_stride, TILE.alignment), args.hidden)
        b_rstd = tl.load(args.rstd_ptr + o_row)

        t_x = ()
        t_dy = ()
        t_part = ()
        for i_tile in tl.static_range(TILES):
            b_sum = _zeros(TILE)
            if TILE.is_held:
                for i_chunk in tl.static_range(CHUNKS):
                    o_col, m_col = _chunk(i_tile, i_chunk, n_col, i_chunk == CHUNKS - 1, TILE)
                    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
                    b_x = tl.load(p_x + o_col, mask=m_col, other=0.0)
                    b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0)
                    b_sum += _term(b_dy.to(tl.float32) * b_weight, b_x.to(tl.float32) * b_rstd, TILE)
                    t_x = t_x + (b_x,)  # noqa: RUF005
                    t_dy = t_dy + (b_dy,)  # noqa: RUF005
            else:
                # No unrolling: the loads of all chunks at once would take the registers of the sums.
                for i_chunk in tl.range(0, CHUNKS - HAS_TAIL, num_stages=1):
                    b_sum += _first_terms(args, p_x, p_dy, b_rstd, i_tile, i_chunk, n_col, False, TILE)
                if HAS_TAIL:
                    b_sum += _first_terms(args, p_x, p_dy, b_rstd, i_tile, CHUNKS - 1, n_col, True, TILE)
            t_part = t_part + (tl.sum(b_sum, axis=1 if TILE.parts > 1 else 0),)  # noqa: RUF005
        b_total = _in_halves(t_part, TILES) if TILE.parts > 1 else t_part[0]  # type: ignore[misc]
        b_mean = b_total * inverse_hidden

        t_next = ()
        for i in tl.static_range(TILES * CHUNKS):
            o_col, m_col = _chunk(i // CHUNKS, i % CHUNKS, n_col, i % CHUNKS == CHUNKS - 1, TILE)
            b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
            if TILE.is_held:
                b_x = t_x[i].to(tl.float32)
                b_dy = t_dy[i].to(tl.float32)
            else:
                b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
                b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat = b_x * b_rstd
            b_dx = b_rstd * _gradient(b_dy, b_weight, b_xhat, b_mean, TILE)
            if args.ds_ptr is not None:
                b_dx += tl.load(p_ds + o_col, mask=m_col, other=0.0).to(tl.float32)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i] + weight_part(b_dy, b_xhat, args.dy_ptr, MODES.product == "ROUNDED"),)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.dweight == "COMPUTED":
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i in tl.static_range(TILES * CHUNKS):
            o_col, m_col = _chunk(i // CHUNKS, i % CHUNKS, n_col, i % CHUNKS == CHUNKS - 1, TILE)
            tl.store(p_out + o_col, t_dweight[i].to(args.dweight_ptr.dtype.element_ty), mask=m_col)


# The run-time arguments of the kernel as one value.
BackwardArguments = namedtuple(
    "BackwardArguments",
    "dy_ptr x_ptr weight_ptr rstd_ptr dx_ptr dweight_ptr ds_ptr rows hidden x_stride dy_stride dx_stride ds_stride "
    "offset",
)
_BACKWARD_MODES = (Dweight, Product)


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
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    args = BackwardArguments(
        *(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, dweight_ptr, ds_ptr, rows, hidden),
        *(x_stride, dy_stride, dx_stride, ds_stride, offset),
    )
    if TILE.is_clustered:
        rows_over_clusters(args, TILE, MODES)
    elif TILE.chunks > 0:
        rows_in_chunks(args, TILE, MODES)
    elif TILE.is_looped:
        rows_in_a_loop(args, TILE, MODES)
    else:
        rows_beside_columns(args, TILE, MODES)


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
    x = tensors["x" if tensors.get("ds") is None else "s"]
    dweight = tensors.get("dweight")
    read = {**tensors, "x": x, "dweight": workspace if launch.workspace else dweight}
    args = arguments(_rms_norm_backward_kernel, read, rows=problem.rows, hidden=problem.hidden, offset=offset)
    options = {
        "TILE": launch.tile,
        "MODES": names_of(_BACKWARD_MODES, problem.variant, has_dependent=launch.finish == "dependent"),
        "num_warps": launch.num_warps,
    }
    if launch.num_ctas > 1:
        options["num_ctas"] = launch.num_ctas
    main = KernelCall(_rms_norm_backward_kernel, (launch.grid,), args, options)
    if not launch.workspace:
        return (main,)
    return (main, reduction(launch, problem.hidden, workspace, dweight))
