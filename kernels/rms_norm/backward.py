"""RMSNorm backward: dx and, unless the weight is frozen, dweight; all arithmetic in float32.

With g = dy * (weight + offset), xhat = x * rstd and m = mean(g * xhat) over a row:
    dx = rstd * (g - xhat * m)          dweight = sum over rows of dy * xhat

In: a `Launch` and existing tensors. Out: the kernel calls. Part of the kernels' fingerprint.

Four ways, all without atomics, so that the bits are always the same:
    persistent  a fixed grid strides over the rows. Each program keeps its part of dweight in registers and writes it
                once, in float32, to its row of a (grid, hidden) workspace, which a second kernel sums. A grid of one
                writes dweight directly. In this file.
    split       the same for rows that do not fit into registers, whose columns are in chunks: `backward_split`.
    columns     some programs take rows and write dx, others take columns and sum dweight from x and dy, which they read
                again, from the L2: one launch without partial sums: `backward_columns`.
    cluster     a row has several multiprocessors, else as `split`, or for few rows as `columns`: `backward_cluster`.

Traffic of a perfect kernel: read rows x hidden of x and of dy, rows of rstd, hidden of weight; write rows x hidden of
dx and hidden of dweight. After a sum s = x + residual, s is read instead of x, and its gradient ds as well.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.backward_cluster import rows_over_clusters
from normtune.kernels.rms_norm.backward_columns import rows_beside_columns
from normtune.kernels.rms_norm.backward_split import rows_in_chunks
from normtune.kernels.rms_norm.modes import Product
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import (
    columns,
    extent,
    gradient_of_x,
    load_tile,
    load_weight,
    row_block,
    store_tile,
    tile_mask,
    weight_part,
)

# The run-time arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "dy_ptr x_ptr weight_ptr rstd_ptr dx_ptr dweight_ptr ds_ptr rows hidden x_stride dy_stride dx_stride ds_stride "
    "offset",
)
# Compile-time choices: the weight gradient, a dependent reduction after it, what is rounded, a row kept in registers,
# the order in which the parts of a row are added.
Modes = namedtuple("Modes", "has_dweight has_dependent rounds_product is_held adds_in_halves")


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
    BLOCK_ROW: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_CLUSTERED: tl.constexpr,
    IS_LOOPED: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    args = Arguments(
        *(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, dweight_ptr, ds_ptr, rows, hidden),
        *(x_stride, dy_stride, dx_stride, ds_stride, offset),
    )
    if IS_CLUSTERED:
        rows_over_clusters(
            *(args, IS_LOOPED, PARTS, CHUNKS, BLOCK_COL, SLICE_ROW, SLICE_COL),
            *(ALIGNMENT, HAS_COLUMN_MASK, MODES, NUM_STAGES),
        )
    elif CHUNKS > 0:
        rows_in_chunks(args, PARTS, BLOCK_ROW, CHUNKS, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES, NUM_STAGES)
    elif not IS_LOOPED:
        rows_beside_columns(
            *(args, BLOCK_ROW, BLOCK_COL, SLICE_ROW, SLICE_COL),
            *(ALIGNMENT, HAS_COLUMN_MASK, MODES, NUM_STAGES),
        )
    else:
        n_col = extent(hidden, ALIGNMENT)
        s_x = extent(x_stride, ALIGNMENT)
        s_dy = extent(dy_stride, ALIGNMENT)
        s_dx = extent(dx_stride, ALIGNMENT)
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_weight(weight_ptr, o_col, m_col, offset)
        inverse_hidden = 1.0 / hidden
        # The rows of the tile are summed after the loop: inside of it, that would cross warps once per tile.
        b_dweight = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
        for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
            o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
            mask = tile_mask(m_row, m_col, BLOCK_ROW)
            b_x = load_tile(x_ptr, s_x, o_row, o_col, mask)
            b_dy = load_tile(dy_ptr, s_dy, o_row, o_col, mask)
            b_rstd = tl.load(rstd_ptr + o_row, mask=m_row, other=0.0)[:, None]
            b_xhat = b_x * b_rstd
            b_dx = gradient_of_x(b_dy, b_xhat, b_weight, b_rstd, inverse_hidden)
            if ds_ptr is not None:
                b_dx += load_tile(ds_ptr, extent(ds_stride, ALIGNMENT), o_row, o_col, mask)
            store_tile(dx_ptr, s_dx, o_row, o_col, mask, b_dx)
            if MODES.has_dweight:
                b_dweight += weight_part(b_dy, b_xhat, dy_ptr, MODES.rounds_product)
        if MODES.has_dependent:
            gdc_launch_dependents()
        if MODES.has_dweight:
            b_sum = tl.sum(b_dweight, axis=0)
            p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col + o_col
            tl.store(p_out, b_sum.to(dweight_ptr.dtype.element_ty), mask=m_col)


def calls(
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
    dy, ds, dx, dweight = tensors["dy"], tensors.get("ds"), tensors["dx"], tensors.get("dweight")
    x = tensors["x" if ds is None else "s"]
    partial = workspace if launch.workspace else dweight
    args = (
        *(dy, x, tensors["weight"], tensors["rstd"], dx, partial, ds),
        *(problem.rows, problem.hidden, x.stride(0), dy.stride(0), dx.stride(0)),
        *(None if ds is None else ds.stride(0), offset),
    )
    is_split = launch.chunks > 0 and not launch.clustered
    options = {
        "BLOCK_ROW": launch.block_row if not launch.chunks or (is_split and launch.parts > 1) else 0,
        "PARTS": launch.parts if launch.chunks else 0,
        "CHUNKS": launch.chunks,
        "BLOCK_COL": launch.block_col,
        "SLICE_ROW": launch.slice_row,
        "SLICE_COL": launch.slice_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "IS_CLUSTERED": launch.clustered,
        "IS_LOOPED": launch.looped,
        "MODES": Modes(
            has_dweight=dweight is not None,
            has_dependent=launch.finish == "dependent",
            rounds_product=Product.of(problem) is Product.ROUNDED,
            is_held=is_split and launch.held,
            adds_in_halves=launch.clustered and launch.in_halves,
        ),
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }
    if launch.clustered:
        options["num_ctas"] = launch.parts
    main = KernelCall(_rms_norm_backward_kernel, (launch.grid,), args, options)
    if not launch.workspace:
        return (main,)
    return (main, reduction(launch, problem.hidden, workspace, dweight))
