"""RMSNorm backward of rows that are too long for one program: each program takes a chunk of the columns.

In: the arguments from `rms_norm_backward.calls`. Out: kernel calls. The first kernel writes the sum of g * xhat over
each chunk of each row, and sums dweight, which needs no mean over a row. The second adds the sums of its row in a fixed
order and writes dx. A third reduces the partial sums of dweight, unless one program had all rows of its chunk.
Traffic: x and dy are read twice, the second time from the L2 if all rows fit into it.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.modes import Product
from normtune.kernels.tiles.launch import Launch, next_power_of_2
from normtune.kernels.tiles.partial_sums import sum_call
from normtune.kernels.tiles.tile import columns, extent, load_weight, weight_part

# Long rows have few partial sums: 26 of 65537 columns on 132 multiprocessors. Slices as narrow as for short rows would
# take 65536 programs at hidden 1048576.
_REDUCE_TILE = (16, 128, 4)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "dy_stride", "first_sum"])
def _rms_norm_backward_sums_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    sum_ptr,
    dweight_ptr,
    rows,
    hidden,
    x_stride,
    dy_stride,
    first_sum,
    offset,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
):
    i_chunk = tl.program_id(1)
    n_col = extent(hidden, ALIGNMENT)
    s_x = extent(x_stride, ALIGNMENT)
    s_dy = extent(dy_stride, ALIGNMENT)
    o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_weight(weight_ptr, o_col, m_col, offset)
    b_dweight = tl.zeros([BLOCK_COL], dtype=tl.float32)
    for i_row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=1):
        o_row = i_row.to(tl.int64)
        b_x = tl.load(x_ptr + o_row * s_x + o_col, mask=m_col, other=0.0).to(tl.float32)
        b_dy = tl.load(dy_ptr + o_row * s_dy + o_col, mask=m_col, other=0.0).to(tl.float32)
        b_xhat = b_x * tl.load(rstd_ptr + o_row)
        b_sum = tl.sum((b_dy * b_weight) * b_xhat, axis=0)
        tl.store(sum_ptr + first_sum + o_row * tl.num_programs(1) + i_chunk, b_sum)
        if HAS_DWEIGHT:
            b_dweight += weight_part(b_dy, b_xhat, dy_ptr, ROUNDS_PRODUCT)
    if HAS_DWEIGHT:
        p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col + o_col
        tl.store(p_out, b_dweight.to(dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit(do_not_specialize=["hidden", "x_stride", "dy_stride", "dx_stride", "ds_stride", "first_sum"])
def _rms_norm_backward_long_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    sum_ptr,
    dx_ptr,
    ds_ptr,
    hidden,
    x_stride,
    dy_stride,
    dx_stride,
    ds_stride,
    first_sum,
    offset,
    BLOCK_CHUNK: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    chunks = tl.num_programs(1)
    o_col, m_col = columns(tl.program_id(1) * BLOCK_COL, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_weight(weight_ptr, o_col, m_col, offset)
    b_x = tl.load(x_ptr + i_row * extent(x_stride, ALIGNMENT) + o_col, mask=m_col, other=0.0).to(tl.float32)
    b_dy = tl.load(dy_ptr + i_row * extent(dy_stride, ALIGNMENT) + o_col, mask=m_col, other=0.0).to(tl.float32)
    b_rstd = tl.load(rstd_ptr + i_row)
    o_chunk = tl.arange(0, BLOCK_CHUNK)
    b_sum = tl.load(sum_ptr + first_sum + i_row * chunks + o_chunk, mask=o_chunk < chunks, other=0.0)
    b_mean = tl.sum(b_sum, axis=0) * (1.0 / hidden)
    b_dx = b_rstd * (b_dy * b_weight - (b_x * b_rstd) * b_mean)
    if ds_ptr is not None:
        p_ds = ds_ptr + i_row * extent(ds_stride, ALIGNMENT)
        b_dx += tl.load(p_ds + o_col, mask=m_col, other=0.0).to(tl.float32)
    p_dx = dx_ptr + i_row * extent(dx_stride, ALIGNMENT)
    tl.store(p_dx + o_col, b_dx.to(dx_ptr.dtype.element_ty), mask=m_col)


def long_row_calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one backward; arguments as in `rms_norm.backward.calls`.

    The workspace has (launch.grid, hidden) partial sums of dweight if they are reduced, then (rows, launch.chunks) sums
    of rows.
    """
    dy, ds, dx, dweight = tensors["dy"], tensors.get("ds"), tensors["dx"], tensors.get("dweight")
    x = tensors["x" if ds is None else "s"]
    rows, hidden = problem.rows, problem.hidden
    is_reduced = launch.finish == "reduce"
    first_sum = launch.grid * hidden if is_reduced else 0
    options = {
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "num_warps": launch.num_warps,
    }
    own = {"HAS_DWEIGHT": dweight is not None, "ROUNDS_PRODUCT": Product.of(problem) is Product.ROUNDED}
    inputs = (dy, x, tensors["weight"], tensors["rstd"], workspace)
    sums = (
        *(*inputs, workspace if is_reduced else dweight),
        *(rows, hidden, x.stride(0), dy.stride(0), first_sum, offset),
    )
    args = (
        *(*inputs, dx, ds, hidden, x.stride(0), dy.stride(0), dx.stride(0)),
        *(None if ds is None else ds.stride(0), first_sum, offset),
    )
    calls = (
        KernelCall(_rms_norm_backward_sums_kernel, (launch.grid, launch.chunks), sums, options | own),
        KernelCall(
            _rms_norm_backward_long_kernel,
            (rows, launch.chunks),
            args,
            {"BLOCK_CHUNK": next_power_of_2(launch.chunks), **options},
        ),
    )
    if not is_reduced:
        return calls
    return (*calls, sum_call(workspace, dweight, launch.grid, hidden, _REDUCE_TILE, launch.alignment))
