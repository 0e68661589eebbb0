"""RMSNorm backward: dx and, unless the weight is frozen, dweight; all arithmetic in float32.

With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
    dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat

In: a `Launch` and tensors that exist. Out: the kernel calls. Chooses nothing and allocates nothing; kernels and launch
stand alone in this file because its syntax tree is the kernels' fingerprint.

A fixed grid strides over the rows; each program keeps its part of dweight in registers and writes it once, in float32,
to its row of a (grid, hidden) workspace that a second kernel sums in a fixed order. A grid of one writes dweight.

Traffic of a perfect kernel: read rows x hidden of x and of dy, rows of rstd, hidden of weight; write rows x hidden of
dx and hidden of dweight.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.operator import Launch
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_launch import reduce_tile

_RUNTIME = ["rows", "hidden", "x_stride", "dy_stride", "dx_stride"]
_REDUCE_RUNTIME = ["partials", "hidden"]


@triton.jit(do_not_specialize=_RUNTIME)
def _rms_norm_backward_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    rows,
    hidden,
    x_stride,
    dy_stride,
    dx_stride,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    n_col = tl.multiple_of(hidden.to(tl.int64), ALIGNMENT)
    s_x = tl.multiple_of(x_stride.to(tl.int64), ALIGNMENT)
    s_dy = tl.multiple_of(dy_stride.to(tl.int64), ALIGNMENT)
    s_dx = tl.multiple_of(dx_stride.to(tl.int64), ALIGNMENT)
    o_col = tl.arange(0, BLOCK_COL)
    if HAS_COLUMN_MASK:
        m_col = o_col < n_col
        b_weight = tl.load(weight_ptr + o_col, mask=m_col, other=0.0).to(tl.float32) + offset
    else:
        m_col = tl.full([BLOCK_COL], True, tl.int1)
        b_weight = tl.load(weight_ptr + o_col).to(tl.float32) + offset
    inverse_hidden = 1.0 / hidden
    # The sum over a tile's rows waits until after the loop: inside it would cross warps once a tile.
    b_dweight = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
    for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
        o_row = tl.full([BLOCK_ROW], BLOCK_ROW, tl.int64) * i_block + tl.arange(0, BLOCK_ROW)
        m_row = o_row < rows
        mask = m_col[None, :]
        if BLOCK_ROW > 1:
            mask = m_row[:, None] & mask
        b_x = tl.load(x_ptr + o_row[:, None] * s_x + o_col[None, :], mask=mask, other=0.0).to(tl.float32)
        b_dy = tl.load(dy_ptr + o_row[:, None] * s_dy + o_col[None, :], mask=mask, other=0.0).to(tl.float32)
        b_rstd = tl.load(rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_xhat = b_x * b_rstd
        b_g = b_dy * b_weight[None, :]
        b_mean = tl.sum(b_g * b_xhat, axis=1)[:, None] * inverse_hidden
        b_dx = b_rstd * (b_g - b_xhat * b_mean)
        tl.store(dx_ptr + o_row[:, None] * s_dx + o_col[None, :], b_dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if HAS_DWEIGHT:
            b_dweight += b_dy * b_xhat
    if HAS_DWEIGHT:
        b_sum = tl.sum(b_dweight, axis=0)
        p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col + o_col
        tl.store(p_out, b_sum.to(dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit(do_not_specialize=_REDUCE_RUNTIME)
def _reduce_partials_kernel(
    partial_ptr,
    dweight_ptr,
    partials,
    hidden,
    BLOCK_PARTIAL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    n_col = tl.multiple_of(hidden.to(tl.int64), ALIGNMENT)
    o_col = tl.program_id(0).to(tl.int64) * BLOCK_COL + tl.arange(0, BLOCK_COL)
    m_col = o_col < n_col
    b_sum = tl.zeros([BLOCK_PARTIAL, BLOCK_COL], dtype=tl.float32)
    for i_partial in range(0, partials, BLOCK_PARTIAL):
        o_partial = i_partial + tl.arange(0, BLOCK_PARTIAL).to(tl.int64)
        mask = (o_partial < partials)[:, None] & m_col[None, :]
        b_sum += tl.load(partial_ptr + o_partial[:, None] * n_col + o_col[None, :], mask=mask, other=0.0)
    tl.store(dweight_ptr + o_col, tl.sum(b_sum, axis=0).to(dweight_ptr.dtype.element_ty), mask=m_col)


def calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one backward: the main kernel and, with partial sums, their reduction.

    Args:
        launch: as `resolve_backward` returns it.
        problem: rows, hidden, dtype; the variant says whether the weight gradient is wanted.
        tensors: `dy`, `x` (rows, hidden), `weight` (hidden,), `rstd` (rows,) float32, `dx` (rows, hidden), and
            `dweight` (hidden,) unless the variant is `no_dweight`; last dimension contiguous.
        workspace: at least `launch.workspace` float32 elements when that is not 0, else not used.
        eps: not used, rstd holds it.
        offset: added to the weight, in float32.
    """
    dy, x, dx, dweight = tensors["dy"], tensors["x"], tensors["dx"], tensors.get("dweight")
    partial = workspace if launch.workspace else dweight
    args = (
        *(dy, x, tensors["weight"], tensors["rstd"], dx, partial),
        *(problem.rows, problem.hidden, x.stride(0), dy.stride(0), dx.stride(0), offset),
    )
    options = {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "HAS_DWEIGHT": dweight is not None,
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }
    main = KernelCall(_rms_norm_backward_kernel, (launch.grid,), args, options)
    if not launch.workspace:
        return (main,)
    block_partial, block_col, num_warps = reduce_tile(launch.grid)
    reduction = KernelCall(
        _reduce_partials_kernel,
        (-(-problem.hidden // block_col),),
        (workspace, dweight, launch.grid, problem.hidden),
        {
            "BLOCK_PARTIAL": block_partial,
            "BLOCK_COL": block_col,
            "ALIGNMENT": launch.alignment,
            "num_warps": num_warps,
        },
    )
    return (main, reduction)
