"""Adds the partial sums of a kernel in a fixed order.

In: the workspace with the partial sums. Out: the kernel call. As a programmatic dependent launch (CUDA), its programs
start while the last ones of the previous kernel still run, and wait for them before the first access to memory.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from normtune.kernels.call import KernelCall
from normtune.kernels.tiles.launch import Launch, reduce_tile
from normtune.kernels.tiles.tile import extent


@triton.jit(do_not_specialize=["partials", "hidden"])
def _reduce_partials_kernel(
    partial_ptr,
    dweight_ptr,
    partials,
    hidden,
    BLOCK_PARTIAL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    n_col = extent(hidden, ALIGNMENT)
    o_col = tl.program_id(0).to(tl.int64) * BLOCK_COL + tl.arange(0, BLOCK_COL)
    m_col = o_col < n_col
    if IS_DEPENDENT:
        gdc_wait()  # must precede every memory access
    b_sum = tl.zeros([BLOCK_PARTIAL, BLOCK_COL], dtype=tl.float32)
    for i_partial in range(0, partials, BLOCK_PARTIAL):
        o_partial = i_partial + tl.arange(0, BLOCK_PARTIAL).to(tl.int64)
        mask = (o_partial < partials)[:, None] & m_col[None, :]
        b_sum += tl.load(partial_ptr + o_partial[:, None] * n_col + o_col[None, :], mask=mask, other=0.0)
    tl.store(dweight_ptr + o_col, tl.sum(b_sum, axis=0).to(dweight_ptr.dtype.element_ty), mask=m_col)


def reduction(launch: Launch, hidden: int, workspace: Any, dweight: Any) -> KernelCall:
    """The call that sums `launch.grid` rows of partial sums.

    Args:
        launch: of the kernel that wrote the partial sums; its `finish` determines whether this is a dependent launch.
        hidden: length of a row.
        workspace: (launch.grid, hidden) float32.
        dweight: (hidden,), the sum.
    """
    tile, is_dependent = reduce_tile(launch.grid, hidden), launch.finish == "dependent"
    return sum_call(workspace, dweight, launch.grid, hidden, tile, launch.alignment, is_dependent)


def sum_call(
    partials: Any,
    total: Any,
    count: int,
    hidden: int,
    tile: tuple[int, int, int],
    alignment: int,
    is_dependent: bool = False,
) -> KernelCall:
    """The call that sums rows in float32, in a fixed order.

    Args:
        partials: (count, hidden) float32, contiguous; further rows are not read.
        total: (hidden,), the sum.
        count: number of rows.
        hidden: length of a row.
        tile: (rows at a time, columns, warps) of a program.
        alignment: a power of two that divides hidden.
        is_dependent: make it a programmatic dependent launch.
    """
    block_partial, block_col, num_warps = tile
    options = {
        "BLOCK_PARTIAL": block_partial,
        "BLOCK_COL": block_col,
        "ALIGNMENT": alignment,
        "IS_DEPENDENT": is_dependent,
        "num_warps": num_warps,
    }
    if is_dependent:
        options["launch_pdl"] = True
    args = (partials, total, count, hidden)
    return KernelCall(_reduce_partials_kernel, (-(-hidden // block_col),), args, options)
