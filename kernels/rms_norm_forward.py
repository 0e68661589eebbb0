"""RMSNorm forward: y = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps), all arithmetic in float32.

In: a `Launch` and tensors that exist. Out: the kernel calls. Chooses nothing and allocates nothing; kernel and launch
stand alone in this file because its syntax tree is the kernel's fingerprint.

Traffic of a perfect kernel: read rows x hidden of x and hidden of weight, write rows x hidden of y and rows of rstd.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.operator import Launch
from normtune.kernels.problem import Problem

_RUNTIME = ["rows", "hidden", "x_stride", "y_stride"]


@triton.jit
def _normalize(x, weight, hidden, eps):
    b_rstd = tl.rsqrt(tl.sum(x * x, axis=1) / hidden + eps)
    return x * b_rstd[:, None] * weight[None, :], b_rstd


@triton.jit(do_not_specialize=_RUNTIME)
def _rms_norm_forward_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    hidden,
    x_stride,
    y_stride,
    eps,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    STORE_RSTD: tl.constexpr,
):
    # A row's accesses are as wide as the compiler can prove strides and mask to be aligned.
    n_col = tl.multiple_of(hidden.to(tl.int64), ALIGNMENT)
    s_x = tl.multiple_of(x_stride.to(tl.int64), ALIGNMENT)
    s_y = tl.multiple_of(y_stride.to(tl.int64), ALIGNMENT)
    o_col = tl.arange(0, BLOCK_COL)
    o_row = tl.program_id(0).to(tl.int64) * BLOCK_ROW + tl.arange(0, BLOCK_ROW)
    m_row = o_row < rows
    mask = m_row[:, None]
    if BLOCK_ROW == 1:
        mask = tl.full([BLOCK_ROW, 1], True, tl.int1)
    if HAS_COLUMN_MASK:
        m_col = o_col < n_col
        mask = mask & m_col[None, :]
        b_weight = tl.load(weight_ptr + o_col, mask=m_col, other=0.0).to(tl.float32) + offset
    else:
        b_weight = tl.load(weight_ptr + o_col).to(tl.float32) + offset
    b_x = tl.load(x_ptr + o_row[:, None] * s_x + o_col[None, :], mask=mask, other=0.0).to(tl.float32)
    b_y, b_rstd = _normalize(b_x, b_weight, hidden, eps)
    tl.store(y_ptr + o_row[:, None] * s_y + o_col[None, :], b_y.to(y_ptr.dtype.element_ty), mask=mask)
    if STORE_RSTD:
        tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)


@triton.jit(do_not_specialize=_RUNTIME)
def _rms_norm_forward_persistent_kernel(
    x_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    hidden,
    x_stride,
    y_stride,
    eps,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    STORE_RSTD: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    n_col = tl.multiple_of(hidden.to(tl.int64), ALIGNMENT)
    s_x = tl.multiple_of(x_stride.to(tl.int64), ALIGNMENT)
    s_y = tl.multiple_of(y_stride.to(tl.int64), ALIGNMENT)
    o_col = tl.arange(0, BLOCK_COL)
    if HAS_COLUMN_MASK:
        m_col = o_col < n_col
        b_weight = tl.load(weight_ptr + o_col, mask=m_col, other=0.0).to(tl.float32) + offset
    else:
        m_col = tl.full([BLOCK_COL], True, tl.int1)
        b_weight = tl.load(weight_ptr + o_col).to(tl.float32) + offset
    for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
        o_row = tl.full([BLOCK_ROW], BLOCK_ROW, tl.int64) * i_block + tl.arange(0, BLOCK_ROW)
        m_row = o_row < rows
        mask = m_col[None, :]
        if BLOCK_ROW > 1:
            mask = m_row[:, None] & mask
        b_x = tl.load(x_ptr + o_row[:, None] * s_x + o_col[None, :], mask=mask, other=0.0).to(tl.float32)
        b_y, b_rstd = _normalize(b_x, b_weight, hidden, eps)
        tl.store(y_ptr + o_row[:, None] * s_y + o_col[None, :], b_y.to(y_ptr.dtype.element_ty), mask=mask)
        if STORE_RSTD:
            tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)


def calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one forward.

    Args:
        launch: as `resolve_forward` returns it.
        problem: rows, hidden, dtype; the variant says whether rstd is stored.
        tensors: `x` (rows, hidden), `weight` (hidden,), `y` (rows, hidden), and `rstd` (rows,) float32 unless the
            variant is `no_rstd`; last dimension contiguous.
        workspace: not used.
        eps: added to the mean square.
        offset: added to the weight, in float32.
    """
    x, y = tensors["x"], tensors["y"]
    args = (
        *(x, tensors["weight"], y, tensors.get("rstd")),
        *(problem.rows, problem.hidden, x.stride(0), y.stride(0), eps, offset),
    )
    options = {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "STORE_RSTD": "rstd" in tensors,
        "num_warps": launch.num_warps,
    }
    if launch.looped:
        options["NUM_STAGES"] = launch.num_stages
        return (KernelCall(_rms_norm_forward_persistent_kernel, (launch.grid,), args, options),)
    return (KernelCall(_rms_norm_forward_kernel, (launch.grid,), args, options),)
