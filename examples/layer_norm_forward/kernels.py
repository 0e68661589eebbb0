"""The kernel of LayerNorm's forward: whole rows in registers, all arithmetic in float32.

y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(mean((x - mean)^2) + eps). The mean comes first and the squares
second, as mean(x^2) - mean^2 loses all digits where the mean is large. A perfect kernel reads rows x hidden of x, and
weight and bias, and writes rows x hidden of y and two numbers a row.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask


@triton.jit
def _standardized(
    i_block, x_ptr, mean_ptr, rstd_ptr, rows, hidden, s_x, eps, o_col, m_col,
    BLOCK_ROW: tl.constexpr, HAS_COLUMN_MASK: tl.constexpr,
):  # fmt: skip
    """(rows, columns) float32 of (x - mean) * rstd, its rows and its mask; mean and rstd are stored."""
    o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
    mask = tile_mask(m_row, m_col, BLOCK_ROW)
    b_x = load_tile(x_ptr, s_x, o_row, o_col, mask)
    b_mean = tl.sum(b_x, axis=1) / hidden
    b_x -= b_mean[:, None]
    if HAS_COLUMN_MASK:  # columns beyond the row were read as zeros, whose distance from the mean must not count
        b_x = tl.where(m_col[None, :], b_x, 0.0)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / hidden + tl.cast(eps, tl.float32))
    tl.store(mean_ptr + o_row, b_mean, mask=m_row)
    tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)
    return b_x * b_rstd[:, None], o_row, mask


@triton.jit
def _scale_and_shift(weight_ptr, bias_ptr, o_col, m_col):
    """(1, columns) float32 of weight and of bias."""
    b_weight, b_bias = load_weight(weight_ptr, o_col, m_col, 0.0), load_weight(bias_ptr, o_col, m_col, 0.0)
    return b_weight[None, :], b_bias[None, :]


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "y_stride"])
def _layer_norm_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, rows, hidden, x_stride, y_stride, eps,
    BLOCK_ROW: tl.constexpr, BLOCK_COL: tl.constexpr, ALIGNMENT: tl.constexpr, HAS_COLUMN_MASK: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """A program has a block of rows; with `NUM_STAGES` > 0 several."""
    o_col, m_col = columns(0, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
    s_x, s_y = extent(x_stride, ALIGNMENT), extent(y_stride, ALIGNMENT)
    if NUM_STAGES > 0:
        b_weight, b_bias = _scale_and_shift(weight_ptr, bias_ptr, o_col, m_col)
        for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
            b_xhat, o_row, mask = _standardized(
                i_block, x_ptr, mean_ptr, rstd_ptr, rows, hidden, s_x, eps, o_col, m_col, BLOCK_ROW, HAS_COLUMN_MASK
            )
            store_tile(y_ptr, s_y, o_row, o_col, mask, b_xhat * b_weight + b_bias)
    else:
        i_block = tl.program_id(0)
        b_xhat, o_row, mask = _standardized(
            i_block, x_ptr, mean_ptr, rstd_ptr, rows, hidden, s_x, eps, o_col, m_col, BLOCK_ROW, HAS_COLUMN_MASK
        )
        # Read last: 75 registers in place of 110 at hidden 8192 in bfloat16 with 8 warps (sm_90).
        b_weight, b_bias = _scale_and_shift(weight_ptr, bias_ptr, o_col, m_col)
        store_tile(y_ptr, s_y, o_row, o_col, mask, b_xhat * b_weight + b_bias)


def calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float
) -> tuple[KernelCall, ...]:
    """The one kernel call of a launch from `resolve`; `eps` is added to the variance.

    Of `tensors`, `x` and `y` are (rows, hidden), contiguous in the last dimension, `weight` and `bias` (hidden,), and
    `mean` and `rstd` (rows,) float32.
    """
    x, weight, bias, y, mean, rstd = (tensors[name] for name in ("x", "weight", "bias", "y", "mean", "rstd"))
    args = (x, weight, bias, y, mean, rstd, problem.rows, problem.hidden, x.stride(0), y.stride(0), eps)
    options = {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "NUM_STAGES": launch.num_stages if launch.looped else 0,
        "num_warps": launch.num_warps,
    }
    return (KernelCall(_layer_norm_forward_kernel, (launch.grid,), args, options),)
