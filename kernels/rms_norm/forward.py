"""RMSNorm forward: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps), all arithmetic in float32.

With a residual, s = x + residual is stored and normalized instead of x. In some variants values are rounded to the
dtype before further use: the sum, the normalized row, or squares, eps, weight + offset and the stored rstd.

In: a `Launch` and existing tensors. Out: the kernel calls. Part of the kernels' fingerprint.

Traffic of a perfect kernel: read rows x hidden of x (and residual) and hidden of weight, write rows x hidden of y (and
s) and rows of rstd.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.forward_parts import normalize_part
from normtune.kernels.rms_norm.forward_tile import (
    RUNTIME,
    Arguments,
    Modes,
    load_scale,
    load_sum,
    rounded,
    rstd_of,
    scaled,
)
from normtune.kernels.rms_norm.modes import Product, Statistics, Sum
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.tile import columns, extent, row_block, store_tile, tile_mask

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


@triton.jit(do_not_specialize=RUNTIME)
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
    args = Arguments(
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


def calls(
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
        "MODES": Modes("rstd" in tensors, is_held, *rounds),
        "NUM_STAGES": launch.num_stages if launch.looped and not launch.chunks else 0,
        "num_warps": launch.num_warps,
    }
    grid = (launch.grid, triton.cdiv(problem.hidden, part)) if launch.slice_col else (launch.grid,)
    return (KernelCall(_rms_norm_forward_kernel, grid, args, options),)
