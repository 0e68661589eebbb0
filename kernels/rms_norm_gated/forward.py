"""Gated RMSNorm forward, all arithmetic in float32.

With silu(z) = z * sigmoid(z):
    norm first   y = x * rstd * (weight + offset) * silu(z),   rstd = 1 / sqrt(mean(x^2) + eps)
    gate first   y = u * rstd * (weight + offset),             rstd = 1 / sqrt(mean(u^2) + eps), u = x * silu(z)

In: a `Launch` and existing tensors. Out: the kernel calls. Chooses nothing and allocates nothing. Kernels and launch
stand apart from other code because their syntax trees are the kernels' fingerprint.

The mean is over a group of a row, of which there may be one or many; see `tile` for the layout. The number of groups
changes no binary. Traffic of a perfect kernel: read rows x hidden of x and of z and hidden of weight, write rows x
hidden of y and rows of rstd.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_gated.forward_chunks import RUNTIME, rms_norm_gated_forward_chunks_kernel
from normtune.kernels.rms_norm_gated.forward_parts import rms_norm_gated_forward_parts_kernel
from normtune.kernels.rms_norm_gated.launch import NO_GATE, is_off, parts_of, rows_and_groups, strides
from normtune.kernels.rms_norm_gated.tile import gated_input, gated_output, row_offsets
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask


@triton.jit
def _normalize_block(
    i_block,
    i_group,
    x_ptr,
    z_ptr,
    b_weight,
    weight_type: tl.constexpr,
    y_ptr,
    rstd_ptr,
    rows,
    hidden,
    groups,
    inner,
    x_outer,
    x_in,
    x_group,
    z_outer,
    z_in,
    z_group,
    eps,
    o_col,
    m_col,
    BLOCK_ROW: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_NORM_FIRST: tl.constexpr,
    ROUNDS_ONCE: tl.constexpr,
    STORE_RSTD: tl.constexpr,
):
    o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
    mask = tile_mask(m_row, m_col, BLOCK_ROW)
    b_x = load_tile(x_ptr, 1, row_offsets(o_row, i_group, inner, x_outer, x_in, x_group, ALIGNMENT), o_col, mask)
    b_z = b_x
    if HAS_GATE:
        b_z = load_tile(z_ptr, 1, row_offsets(o_row, i_group, inner, z_outer, z_in, z_group, ALIGNMENT), o_col, mask)
    b_u = gated_input(b_x, b_z, HAS_GATE, IS_NORM_FIRST)
    b_rstd = tl.rsqrt(tl.sum(b_u * b_u, axis=1) / hidden + eps)
    b_y = gated_output(
        *(b_u * b_rstd[:, None], b_z, b_weight[None, :], x_ptr.dtype.element_ty, weight_type),
        *(HAS_GATE, IS_NORM_FIRST, ROUNDS_ONCE),
    )
    o_out = o_row * groups + i_group
    store_tile(y_ptr, extent(hidden, ALIGNMENT), o_out, o_col, mask, b_y)
    if STORE_RSTD:
        tl.store(rstd_ptr + o_out, b_rstd, mask=m_row)


@triton.jit(do_not_specialize=RUNTIME)
def _rms_norm_gated_forward_kernel(
    x_ptr,
    z_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    hidden,
    groups,
    inner,
    x_outer,
    x_in,
    x_group,
    z_outer,
    z_in,
    z_group,
    eps,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_NORM_FIRST: tl.constexpr,
    ROUNDS_ONCE: tl.constexpr,
    STORE_RSTD: tl.constexpr,
    IS_LOOPED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    n_col = extent(hidden, ALIGNMENT)
    i_group = tl.program_id(0) % groups
    i_first = tl.program_id(0) // groups
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_weight(weight_ptr + i_group.to(tl.int64) * n_col, o_col, m_col, offset)
    if IS_LOOPED:
        for i_block in tl.range(i_first, tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0) // groups, num_stages=NUM_STAGES):
            _normalize_block(
                *(i_block, i_group, x_ptr, z_ptr, b_weight, weight_ptr.dtype.element_ty, y_ptr, rstd_ptr),
                *(rows, hidden, groups, inner, x_outer, x_in, x_group, z_outer, z_in, z_group, eps, o_col, m_col),
                *(BLOCK_ROW, ALIGNMENT, HAS_GATE, IS_NORM_FIRST, ROUNDS_ONCE, STORE_RSTD),
            )
    else:
        _normalize_block(
            *(i_first, i_group, x_ptr, z_ptr, b_weight, weight_ptr.dtype.element_ty, y_ptr, rstd_ptr),
            *(rows, hidden, groups, inner, x_outer, x_in, x_group, z_outer, z_in, z_group, eps, o_col, m_col),
            *(BLOCK_ROW, ALIGNMENT, HAS_GATE, IS_NORM_FIRST, ROUNDS_ONCE, STORE_RSTD),
        )


@triton.jit(do_not_specialize=RUNTIME)
def _rms_norm_gated_forward_split_kernel(
    x_ptr,
    z_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    hidden,
    groups,
    inner,
    x_outer,
    x_in,
    x_group,
    z_outer,
    z_in,
    z_group,
    eps,
    offset,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_GATE: tl.constexpr,
    IS_NORM_FIRST: tl.constexpr,
    ROUNDS_ONCE: tl.constexpr,
    STORE_RSTD: tl.constexpr,
):
    n_col = extent(hidden, ALIGNMENT)
    i_group = tl.program_id(0) % groups
    i_row = tl.program_id(0) // groups
    i_out = tl.program_id(0).to(tl.int64)
    p_x = x_ptr + row_offsets(i_row, i_group, inner, x_outer, x_in, x_group, ALIGNMENT)
    p_z = z_ptr + row_offsets(i_row, i_group, inner, z_outer, z_in, z_group, ALIGNMENT)
    p_weight = weight_ptr + i_group.to(tl.int64) * n_col
    b_square = tl.zeros([BLOCK_COL], dtype=tl.float32)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
        b_z = b_x
        if HAS_GATE and not IS_NORM_FIRST:
            b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
        b_u = gated_input(b_x, b_z, HAS_GATE, IS_NORM_FIRST)
        b_square += b_u * b_u
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=0) / hidden + eps)
    if STORE_RSTD:
        tl.store(rstd_ptr + i_out, b_rstd)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_weight(p_weight, o_col, m_col, offset)
        # Out of the cache.
        b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
        b_z = b_x
        if HAS_GATE:
            b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
        b_y = gated_output(
            *(gated_input(b_x, b_z, HAS_GATE, IS_NORM_FIRST) * b_rstd, b_z, b_weight),
            *(x_ptr.dtype.element_ty, weight_ptr.dtype.element_ty, HAS_GATE, IS_NORM_FIRST, ROUNDS_ONCE),
        )
        tl.store(y_ptr + i_out * n_col + o_col, b_y.to(y_ptr.dtype.element_ty), mask=m_col)


def calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one forward.

    Args:
        launch: from `resolve_forward`.
        problem: rows, of which each group counts as one, hidden, dtype; the variant has the mode.
        tensors: `x` and, unless the variant has `no_gate`, `z`: (rows, hidden) or (outer, inner, groups, hidden), of
            any strides but the last, 1; `weight` (hidden,) or (groups, hidden) and `y`, of x's shape or (rows, hidden),
            contiguous; `rstd` (rows,) float32 unless the variant has `no_rstd`.
        workspace: unused.
        eps: added to the mean square.
        offset: added to the weight, in float32.
    """
    x = tensors["x"]
    z = tensors.get("z", x)
    rows, groups, inner = rows_and_groups(x, problem.rows)
    args = (
        *(x, z, tensors["weight"], tensors["y"], tensors.get("rstd")),
        *(rows, problem.hidden, groups, inner, *strides(x), *strides(z), eps, offset),
    )
    options = {
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "HAS_GATE": not is_off(problem, NO_GATE),
        "IS_NORM_FIRST": not is_off(problem, "gate_first"),
        "ROUNDS_ONCE": not is_off(problem, "hugging_face"),
        "STORE_RSTD": "rstd" in tensors,
        "num_warps": launch.num_warps,
    }
    grid = parts_of(launch, rows, groups) * groups
    if launch.held:
        options |= {"BLOCK_ROW": launch.block_row, "CHUNKS": launch.chunks}
        return (KernelCall(rms_norm_gated_forward_chunks_kernel, (grid,), args, options),)
    if launch.chunks:
        options["CHUNKS"] = launch.chunks
        return (KernelCall(_rms_norm_gated_forward_split_kernel, (grid,), args, options),)
    if launch.slice_col:
        options["PART_COL"] = launch.slice_col
        parts = triton.cdiv(problem.hidden, launch.slice_col)
        return (KernelCall(rms_norm_gated_forward_parts_kernel, (grid, parts), args, options),)
    options |= {"BLOCK_ROW": launch.block_row, "IS_LOOPED": launch.looped, "NUM_STAGES": launch.num_stages}
    return (KernelCall(_rms_norm_gated_forward_kernel, (grid,), args, options),)
