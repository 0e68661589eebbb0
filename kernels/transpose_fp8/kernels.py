"""The transposition of a matrix of bytes, tile by tile.

A tile is read along its rows and written along its columns, both in whole sectors, through shared memory. A perfect
kernel reads and writes rows x hidden bytes.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.tiles.tile import columns, extent
from normtune.kernels.transpose_fp8.launch import TransposeLaunch


@triton.jit
def aligned_rows(i_block, rows, BLOCK_ROW: tl.constexpr, ROW_ALIGNMENT: tl.constexpr):
    """(BLOCK_ROW,) row indices of block `i_block`, int64, the mask of existing rows, and the number of rows, int64."""
    n_row = extent(rows, ROW_ALIGNMENT)
    o_row = tl.full([BLOCK_ROW], BLOCK_ROW, tl.int64) * i_block + tl.arange(0, BLOCK_ROW)
    return o_row, o_row < n_row, n_row


@triton.jit
def store_transposed(out_ptr, b_value, o_row, m_row, o_col, m_col, n_row):
    """Write a tile (rows, columns), transposed, into a contiguous matrix (columns, n_row)."""
    p_out = out_ptr + o_col[:, None] * n_row + o_row[None, :]
    tl.store(p_out, tl.trans(b_value), mask=m_col[:, None] & m_row[None, :])


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride"])
def _transpose_kernel(
    x_ptr,
    y_ptr,
    rows,
    hidden,
    x_stride,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROW_ALIGNMENT: tl.constexpr,
):
    # As bytes, so that GPUs without FP8 instructions run it too.
    x_ptr = x_ptr.to(tl.pointer_type(tl.int8), bitcast=True)
    y_ptr = y_ptr.to(tl.pointer_type(tl.int8), bitcast=True)
    o_row, m_row, n_row = aligned_rows(tl.program_id(0), rows, BLOCK_ROW, ROW_ALIGNMENT)
    o_col, m_col = columns(tl.program_id(1) * BLOCK_COL, extent(hidden, ALIGNMENT), BLOCK_COL, True)
    p_x = x_ptr + o_row[:, None] * extent(x_stride, ALIGNMENT) + o_col[None, :]
    b_x = tl.load(p_x, mask=m_row[:, None] & m_col[None, :], other=0)
    store_transposed(y_ptr, b_x, o_row, m_row, o_col, m_col, n_row)


def call(launch: TransposeLaunch, problem: Problem, x: Any, y: Any) -> KernelCall:
    """The kernel call that transposes x (rows, hidden), whose row stride is free, into y (hidden, rows), contiguous."""
    options = {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "ROW_ALIGNMENT": launch.row_alignment,
        "num_warps": launch.num_warps,
    }
    grid = (launch.grid, -(-problem.hidden // launch.block_col))
    return KernelCall(_transpose_kernel, grid, (x, y, problem.rows, problem.hidden, x.stride(0)), options)


def calls(
    launch: TransposeLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any
) -> tuple[KernelCall, ...]:
    """The one kernel call of a problem.

    Args:
        launch: from `resolve`.
        problem: rows and hidden.
        tensors: `x` and `y`.
        workspace: not read.
    """
    return (call(launch, problem, tensors["x"], tensors["y"]),)
