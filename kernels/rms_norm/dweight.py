"""The weight gradient of RMSNorm without that of x, for an x that needs none: reads x and dy once.

In: tensors. Out: kernel calls. A program sums some columns of every n-th block of rows into a row of partial sums;
`partial_sums` adds these in a fixed order, so that the bits are always the same. One config suits all shapes: from
16 MB on memory limits it, below that the cost of two launches.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.alignment import alignment_of
from normtune.kernels.call import KernelCall
from normtune.kernels.tiles.launch import Launch, next_power_of_2
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import columns, extent, load_tile, weight_part

_BLOCK_ROW = 16
_MAX_BLOCK_COL = 128
_WARPS = 4
_PROGRAMS_PER_SM = 8


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "dy_stride", "slices"])
def _rms_norm_dweight_kernel(
    dy_ptr,
    x_ptr,
    rstd_ptr,
    partial_ptr,
    rows,
    hidden,
    x_stride,
    dy_stride,
    slices,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
):
    n_col = extent(hidden, ALIGNMENT)
    i_part = tl.program_id(0) // slices
    i_slice = tl.program_id(0) % slices
    o_col, m_col = columns(i_slice.to(tl.int64) * BLOCK_COL, n_col, BLOCK_COL, True)
    b_sum = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
    for i_row in tl.range(i_part * BLOCK_ROW, rows, (tl.num_programs(0) // slices) * BLOCK_ROW, num_stages=3):
        o_row = i_row + tl.arange(0, BLOCK_ROW).to(tl.int64)
        m_row = o_row < rows
        mask = m_row[:, None] & m_col[None, :]
        b_x = load_tile(x_ptr, extent(x_stride, ALIGNMENT), o_row, o_col, mask)
        b_dy = load_tile(dy_ptr, extent(dy_stride, ALIGNMENT), o_row, o_col, mask)
        b_rstd = tl.load(rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, dy_ptr, ROUNDS_PRODUCT)
    tl.store(partial_ptr + i_part.to(tl.int64) * n_col + o_col, tl.sum(b_sum, axis=0), mask=m_col)


def parts_of(rows: int, hidden: int, sms: int) -> int:
    """Number of rows of partial sums: enough programs to fill the GPU, each with at least one block of rows."""
    slices = -(-hidden // min(_MAX_BLOCK_COL, next_power_of_2(hidden)))
    return max(1, min(-(-rows // _BLOCK_ROW), _PROGRAMS_PER_SM * sms // slices))


def calls(
    parts: int, tensors: Mapping[str, Any], workspace: Any, rounds_product: bool = False
) -> tuple[KernelCall, KernelCall]:
    """The kernel calls of a weight gradient.

    Args:
        parts: number of rows of partial sums, from `parts_of`.
        tensors: `dy`, `x` (rows, hidden), last dimension contiguous, `rstd` (rows,) float32, `dweight` (hidden,).
        workspace: (parts, hidden) float32.
        rounds_product: round the terms to the dtype, as the backward's variant `rounded_product` does.
    """
    dy, x = tensors["dy"], tensors["x"]
    rows, hidden = x.shape
    block_col = min(_MAX_BLOCK_COL, next_power_of_2(hidden))
    slices = -(-hidden // block_col)
    alignment = alignment_of(hidden, x.stride(0), dy.stride(0))
    options = {
        **{"BLOCK_ROW": _BLOCK_ROW, "BLOCK_COL": block_col, "ALIGNMENT": alignment},
        **{"ROUNDS_PRODUCT": rounds_product, "num_warps": _WARPS},
    }
    args = (dy, x, tensors["rstd"], workspace, rows, hidden, x.stride(0), dy.stride(0), slices)
    launch = Launch(True, parts, _BLOCK_ROW, block_col, _WARPS, 3, alignment, True, parts * hidden, "reduce")
    return (
        KernelCall(_rms_norm_dweight_kernel, (parts * slices,), args, options),
        reduction(launch, hidden, workspace, tensors["dweight"]),
    )
