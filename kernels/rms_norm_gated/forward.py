"""Gated RMSNorm forward, all arithmetic in float32.

With silu(z) = z * sigmoid(z):
    norm first   y = x * rstd * (weight + offset) * silu(z),   rstd = 1 / sqrt(mean(x^2) + eps)
    gate first   y = u * rstd * (weight + offset),             rstd = 1 / sqrt(mean(u^2) + eps), u = x * silu(z)

In: a `Launch` and existing tensors. Out: the kernel calls. Part of the kernels' fingerprint.

The mean is over a group of a row, of which there may be one or many; see `tile` for the layout. The number of groups
changes no binary. Traffic of a perfect kernel: read rows x hidden of x and of z and hidden of weight, write rows x
hidden of y and rows of rstd.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_gated.forward_chunks import normalize_chunks
from normtune.kernels.rms_norm_gated.forward_parts import normalize_part
from normtune.kernels.rms_norm_gated.launch import parts_of, rows_and_groups, strides
from normtune.kernels.rms_norm_gated.modes import Gate, Order, Roundings
from normtune.kernels.rms_norm_gated.tile import gated_input, gated_output, row_offsets
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask

# Integer arguments on which the kernel is not specialised.
RUNTIME = [
    *("rows", "hidden", "groups", "inner"),
    *(f"{name}_{of}" for name in ("x", "z") for of in ("outer", "in", "group")),
]
# The run-time arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "x_ptr z_ptr weight_ptr y_ptr rstd_ptr rows hidden groups inner "
    "x_outer x_in x_group z_outer z_in z_group eps offset",
)
Modes = namedtuple("Modes", "stores_rstd holds_chunks has_gate is_norm_first rounds_once")


@triton.jit
def _normalize_block(
    args,
    i_block,
    i_group,
    b_weight,
    o_col,
    m_col,
    BLOCK_ROW: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    MODES: tl.constexpr,
):
    o_row, m_row = row_block(i_block, args.rows, BLOCK_ROW)
    mask = tile_mask(m_row, m_col, BLOCK_ROW)
    o_x = row_offsets(o_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
    b_x = load_tile(args.x_ptr, 1, o_x, o_col, mask)
    b_z = b_x
    if MODES.has_gate:
        o_z = row_offsets(o_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
        b_z = load_tile(args.z_ptr, 1, o_z, o_col, mask)
    b_u = gated_input(b_x, b_z, MODES)
    b_rstd = tl.rsqrt(tl.sum(b_u * b_u, axis=1) / args.hidden + args.eps)
    b_y = gated_output(args, b_u * b_rstd[:, None], b_z, b_weight[None, :], MODES)
    o_out = o_row * args.groups + i_group
    store_tile(args.y_ptr, extent(args.hidden, ALIGNMENT), o_out, o_col, mask, b_y)
    if MODES.stores_rstd:
        tl.store(args.rstd_ptr + o_out, b_rstd, mask=m_row)


@triton.jit
def _normalize_row(
    args,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a group of one row, in chunks that are read twice."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    i_row = tl.program_id(0) // args.groups
    i_out = tl.program_id(0).to(tl.int64)
    p_x = args.x_ptr + row_offsets(i_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
    p_z = args.z_ptr + row_offsets(i_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
    p_weight = args.weight_ptr + i_group.to(tl.int64) * n_col
    b_square = tl.zeros([BLOCK_COL], dtype=tl.float32)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
        b_z = b_x
        if MODES.has_gate and not MODES.is_norm_first:
            b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
        b_u = gated_input(b_x, b_z, MODES)
        b_square += b_u * b_u
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=0) / args.hidden + args.eps)
    if MODES.stores_rstd:
        tl.store(args.rstd_ptr + i_out, b_rstd)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        b_weight = load_weight(p_weight, o_col, m_col, args.offset)
        # Out of the cache.
        b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
        b_z = b_x
        if MODES.has_gate:
            b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
        b_y = gated_output(args, gated_input(b_x, b_z, MODES) * b_rstd, b_z, b_weight, MODES)
        tl.store(args.y_ptr + i_out * n_col + o_col, b_y.to(args.y_ptr.dtype.element_ty), mask=m_col)


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
    PART_COL: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """A program has a row in chunks, a part of a row, or a block of rows; with `NUM_STAGES` > 0 several blocks."""
    args = Arguments(
        *(x_ptr, z_ptr, weight_ptr, y_ptr, rstd_ptr, rows, hidden, groups, inner),
        *(x_outer, x_in, x_group, z_outer, z_in, z_group, eps, offset),
    )
    if MODES.holds_chunks:
        normalize_chunks(args, BLOCK_ROW, CHUNKS, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES)
    elif CHUNKS > 0:
        _normalize_row(args, CHUNKS, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES)
    elif PART_COL > 0:
        normalize_part(args, PART_COL, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES)
    else:
        n_col = extent(hidden, ALIGNMENT)
        i_group = tl.program_id(0) % groups
        i_first = tl.program_id(0) // groups
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_weight(weight_ptr + i_group.to(tl.int64) * n_col, o_col, m_col, offset)
        if NUM_STAGES > 0:
            blocks = tl.cdiv(rows, BLOCK_ROW)
            for i_block in tl.range(i_first, blocks, tl.num_programs(0) // groups, num_stages=NUM_STAGES):
                _normalize_block(args, i_block, i_group, b_weight, o_col, m_col, BLOCK_ROW, ALIGNMENT, MODES)
        else:
            _normalize_block(args, i_first, i_group, b_weight, o_col, m_col, BLOCK_ROW, ALIGNMENT, MODES)


def calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one forward.

    Args:
        launch: from `resolve_forward`.
        problem: each group counts as a row.
        tensors: `x` and, unless the variant has `no_gate`, `z`: (rows, hidden) or (outer, inner, groups, hidden), of
            any strides but the last, 1; `weight` (hidden,) or (groups, hidden) and `y`, of x's shape or (rows, hidden),
            contiguous; `rstd` (rows,) float32 unless the variant has `no_rstd`.
        workspace: not read.
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
    modes = (member.of(problem) is member for member in (Gate.PRESENT, Order.NORM_FIRST, Roundings.ONCE))
    options = {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "PART_COL": launch.slice_col,
        "CHUNKS": launch.chunks,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "MODES": Modes("rstd" in tensors, launch.held, *modes),
        "NUM_STAGES": launch.num_stages if launch.looped else 0,
        "num_warps": launch.num_warps,
    }
    programs = parts_of(launch, rows, groups) * groups
    grid = (programs, triton.cdiv(problem.hidden, launch.slice_col)) if launch.slice_col else (programs,)
    return (KernelCall(_rms_norm_gated_forward_kernel, grid, args, options),)
