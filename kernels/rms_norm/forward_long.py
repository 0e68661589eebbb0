"""RMSNorm forward of rows that are too long for one program: each program takes a chunk of the columns.

In: the arguments from `rms_norm_forward.calls`. Out: two kernel calls, because no program can wait for the others of
its row: the first writes the sum of squares of each chunk, the second adds those of its row in a fixed order and
normalizes. Traffic: x and the residual are read twice, the second time from the L2 if all rows fit into it.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.forward_tile import load_scale, rounded
from normtune.kernels.rms_norm.modes import Product, Statistics, Sum
from normtune.kernels.tiles.launch import Launch, next_power_of_2
from normtune.kernels.tiles.tile import columns, extent


@triton.jit
def _load_chunk(
    x_ptr,
    x_stride,
    residual_ptr,
    residual_stride,
    s_ptr,
    o_col,
    m_col,
    ALIGNMENT: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
):
    """(columns,) float32 of x, or of s = x + residual."""
    i_row = tl.program_id(0).to(tl.int64)
    b_x = tl.load(x_ptr + i_row * extent(x_stride, ALIGNMENT) + o_col, mask=m_col, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        p_residual = residual_ptr + i_row * extent(residual_stride, ALIGNMENT)
        b_x += tl.load(p_residual + o_col, mask=m_col, other=0.0).to(tl.float32)
        b_x = rounded(b_x, s_ptr, ROUNDS_SUM)
    return b_x


@triton.jit(do_not_specialize=["hidden", "x_stride", "residual_stride"])
def _rms_norm_forward_squares_kernel(
    x_ptr,
    y_ptr,
    square_ptr,
    residual_ptr,
    s_ptr,
    hidden,
    x_stride,
    residual_stride,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    ROUNDS_STATISTICS: tl.constexpr,
):
    o_col, m_col = columns(tl.program_id(1) * BLOCK_COL, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
    b_x = _load_chunk(
        *(x_ptr, x_stride, residual_ptr, residual_stride, s_ptr, o_col, m_col),
        *(ALIGNMENT, ROUNDS_SUM),
    )
    p_square = square_ptr + tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(p_square, tl.sum(rounded(b_x * b_x, y_ptr, ROUNDS_STATISTICS), axis=0))


@triton.jit(do_not_specialize=["hidden", "x_stride", "y_stride", "residual_stride", "s_stride"])
def _rms_norm_forward_long_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    square_ptr,
    rstd_ptr,
    residual_ptr,
    s_ptr,
    hidden,
    x_stride,
    y_stride,
    residual_stride,
    s_stride,
    eps,
    offset,
    BLOCK_CHUNK: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    STORE_RSTD: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_STATISTICS: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    o_col, m_col = columns(i_chunk * BLOCK_COL, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_scale(weight_ptr, o_col, m_col, offset, y_ptr, ROUNDS_STATISTICS)
    b_x = _load_chunk(
        *(x_ptr, x_stride, residual_ptr, residual_stride, s_ptr, o_col, m_col),
        *(ALIGNMENT, ROUNDS_SUM),
    )
    if residual_ptr is not None:
        p_s = s_ptr + i_row * extent(s_stride, ALIGNMENT)
        tl.store(p_s + o_col, b_x.to(s_ptr.dtype.element_ty), mask=m_col)
    o_chunk = tl.arange(0, BLOCK_CHUNK)
    b_square = tl.load(square_ptr + i_row * chunks + o_chunk, mask=o_chunk < chunks, other=0.0)
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=0) / hidden + rounded(eps, y_ptr, ROUNDS_STATISTICS))
    if STORE_RSTD:
        tl.store(rstd_ptr + i_row, rounded(b_rstd, y_ptr, ROUNDS_STATISTICS), mask=i_chunk == 0)
    b_xhat = rounded(b_x * b_rstd, y_ptr, ROUNDS_PRODUCT)
    p_y = y_ptr + i_row * extent(y_stride, ALIGNMENT)
    tl.store(p_y + o_col, (b_xhat * b_weight).to(y_ptr.dtype.element_ty), mask=m_col)


def long_row_calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, KernelCall]:
    """The kernel calls of one forward; arguments as in `rms_norm.forward.calls`.

    The workspace has (rows, launch.chunks) sums of squares.
    """
    x, y, residual, s = tensors["x"], tensors["y"], tensors.get("residual"), tensors.get("s")
    s_residual, s_s = (None if tensor is None else tensor.stride(0) for tensor in (residual, s))
    hidden, grid = problem.hidden, (launch.grid, launch.chunks)
    options = {
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "ROUNDS_SUM": Sum.of(problem) is Sum.ROUNDED,
        "ROUNDS_STATISTICS": Statistics.of(problem) is Statistics.ROUNDED,
        "num_warps": launch.num_warps,
    }
    squares = (x, y, workspace, residual, s, hidden, x.stride(0), s_residual)
    args = (
        *(x, tensors["weight"], y, workspace, tensors.get("rstd"), residual, s),
        *(hidden, x.stride(0), y.stride(0), s_residual, s_s, eps, offset),
    )
    own = {
        "BLOCK_CHUNK": next_power_of_2(launch.chunks),
        "STORE_RSTD": "rstd" in tensors,
        "ROUNDS_PRODUCT": Product.of(problem) is Product.ROUNDED,
    }
    return (
        KernelCall(_rms_norm_forward_squares_kernel, grid, squares, options),
        KernelCall(_rms_norm_forward_long_kernel, grid, args, options | own),
    )
