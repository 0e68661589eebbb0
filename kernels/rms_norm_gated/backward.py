"""Gated RMSNorm backward: dx, dz and, unless the weight is frozen, dweight; all arithmetic in float32.

With s = silu(z), s' its derivative, w = weight + offset, xhat the normalized values, m a mean over a group and
h = rstd * (g - xhat * m(g * xhat)):
    norm first   g = dy * s * w,   dx = h,       dz = dy * xhat * w * s',   dweight = sum over rows of dy * s * xhat
    gate first   g = dy * w,       dx = h * s,   dz = h * x * s',           dweight = sum over rows of dy * xhat
Gradients are those of the function without roundings, whatever the forward rounds.

In: a `Launch` and existing tensors. Out: the kernel calls. Part of the kernels' fingerprint.

A fixed grid strides over the rows of each group. A program keeps its part of dweight in registers and writes it once,
in float32, to its row of a workspace that a second kernel sums in a fixed order: no atomics, so the bits are always the
same. If a group has one program, that writes dweight. `backward_split` is for rows that do not fit into registers.

Traffic of a perfect kernel: read rows x hidden of dy, x and z, rows of rstd, hidden of weight; write rows x hidden of
dx and dz and hidden of dweight.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_gated.backward_split import rows_in_chunks
from normtune.kernels.rms_norm_gated.launch import parts_of, rows_and_groups, strides
from normtune.kernels.rms_norm_gated.modes import Gate, Order
from normtune.kernels.rms_norm_gated.tile import input_gradients, normalized, row_offsets
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask

# The run-time arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "dy_ptr x_ptr z_ptr weight_ptr rstd_ptr dx_ptr dz_ptr dweight_ptr rows hidden groups inner "
    "dy_outer dy_in dy_group x_outer x_in x_group z_outer z_in z_group offset",
)
Modes = namedtuple("Modes", "has_gate is_norm_first has_dweight has_dependent")
# Integer arguments on which the kernels are not specialised.
RUNTIME = [name for name in Arguments._fields if not name.endswith("_ptr") and name != "offset"]


@triton.jit(do_not_specialize=RUNTIME)
def _rms_norm_gated_backward_kernel(
    dy_ptr,
    x_ptr,
    z_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dz_ptr,
    dweight_ptr,
    rows,
    hidden,
    groups,
    inner,
    dy_outer,
    dy_in,
    dy_group,
    x_outer,
    x_in,
    x_group,
    z_outer,
    z_in,
    z_group,
    offset,
    BLOCK_ROW: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """With `BLOCK_ROW` a row is `CHUNKS` tiles of columns, all in registers; the last one may have a column mask."""
    if BLOCK_ROW == 0:
        args = Arguments(
            *(dy_ptr, x_ptr, z_ptr, weight_ptr, rstd_ptr, dx_ptr, dz_ptr, dweight_ptr, rows, hidden, groups, inner),
            *(dy_outer, dy_in, dy_group, x_outer, x_in, x_group, z_outer, z_in, z_group, offset),
        )
        rows_in_chunks(args, CHUNKS, BLOCK_COL, ALIGNMENT, HAS_COLUMN_MASK, MODES)
    else:
        n_col = extent(hidden, ALIGNMENT)
        i_group = tl.program_id(0) % groups
        t_weight = ()  # Triton adds tuples, but does not unpack them
        # The sums over a tile's rows follow the loop: inside, they would cross warps once per tile.
        t_dweight = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
            b_row = load_weight(weight_ptr + i_group.to(tl.int64) * n_col, o_col, m_col, offset)
            t_weight = t_weight + (b_row[None, :],)  # noqa: RUF005
            t_dweight = t_dweight + (tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
        inverse_hidden = 1.0 / hidden
        for i_block in tl.range(
            tl.program_id(0) // groups, tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0) // groups, num_stages=NUM_STAGES
        ):
            o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
            t_dy = ()
            t_x = ()
            t_z = ()
            for i_chunk in tl.static_range(CHUNKS):
                o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
                mask = tile_mask(m_row, m_col, BLOCK_ROW)
                o_dy = row_offsets(o_row, i_group, inner, dy_outer, dy_in, dy_group, ALIGNMENT)
                t_dy = t_dy + (load_tile(dy_ptr, 1, o_dy, o_col, mask),)  # noqa: RUF005
                o_x = row_offsets(o_row, i_group, inner, x_outer, x_in, x_group, ALIGNMENT)
                t_x = t_x + (load_tile(x_ptr, 1, o_x, o_col, mask),)  # noqa: RUF005
                if MODES.has_gate:
                    o_z = row_offsets(o_row, i_group, inner, z_outer, z_in, z_group, ALIGNMENT)
                    t_z = t_z + (load_tile(z_ptr, 1, o_z, o_col, mask),)  # noqa: RUF005
                else:
                    t_z = t_x
            o_out = o_row * groups + i_group
            b_rstd = tl.load(rstd_ptr + o_out, mask=m_row, other=0.0)[:, None]
            b_sum = None
            for i_chunk in tl.static_range(CHUNKS):
                b_xhat, b_product = normalized(t_dy[i_chunk], t_x[i_chunk], t_z[i_chunk], b_rstd, MODES)
                b_part = b_product * t_weight[i_chunk] * b_xhat
                b_sum = b_part if i_chunk == 0 else b_sum + b_part
            b_mean = tl.sum(b_sum, axis=1)[:, None] * inverse_hidden
            t_next = ()
            for i_chunk in tl.static_range(CHUNKS):
                o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
                mask = tile_mask(m_row, m_col, BLOCK_ROW)
                b_dy, b_x, b_z, b_weight = t_dy[i_chunk], t_x[i_chunk], t_z[i_chunk], t_weight[i_chunk]
                b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
                b_gradient = b_rstd * (b_product * b_weight - b_xhat * b_mean)
                b_dx, b_dz = input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES)
                store_tile(dx_ptr, n_col, o_out, o_col, mask, b_dx)
                if MODES.has_gate:
                    store_tile(dz_ptr, n_col, o_out, o_col, mask, b_dz)
                if MODES.has_dweight:
                    t_next = t_next + (t_dweight[i_chunk] + b_product * b_xhat,)  # noqa: RUF005
            if MODES.has_dweight:
                t_dweight = t_next
        if MODES.has_dependent:
            gdc_launch_dependents()
        if MODES.has_dweight:
            p_out = dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
            for i_chunk in tl.static_range(CHUNKS):
                o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
                tl.store(p_out + o_col, tl.sum(t_dweight[i_chunk], axis=0).to(dweight_ptr.dtype.element_ty), mask=m_col)


def calls(
    launch: Launch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one backward: the main kernel and, with partial sums, their reduction.

    Args:
        launch: from `resolve_backward`.
        problem: each group counts as a row.
        tensors: `dy`, `x` and, unless the variant has `no_gate`, `z`: (rows, hidden) or (outer, inner, groups, hidden),
            of any strides but the last, 1; `rstd` (rows,) float32; `weight` (hidden,) or (groups, hidden); `dx`, `dz`
            and, unless the variant has `no_dweight`, `dweight`, contiguous.
        workspace: `launch.workspace` float32 elements or more; not read if that is 0.
        eps: not read, as rstd includes it.
        offset: added to the weight, in float32.
    """
    dy, x, dx, dweight = tensors["dy"], tensors["x"], tensors["dx"], tensors.get("dweight")
    z, dz = tensors.get("z", x), tensors.get("dz", dx)
    rows, groups, inner = rows_and_groups(x, problem.rows)
    parts = parts_of(launch, rows, groups)
    has_partials = launch.workspace > 0 and parts > 1
    args = (
        *(dy, x, z, tensors["weight"], tensors["rstd"], dx, dz, workspace if has_partials else dweight),
        *(rows, problem.hidden, groups, inner, *strides(dy), *strides(x), *strides(z), offset),
    )
    modes = Modes(
        has_gate=Gate.of(problem) is Gate.PRESENT,
        is_norm_first=Order.of(problem) is Order.NORM_FIRST,
        has_dweight=dweight is not None,
        has_dependent=has_partials and launch.finish == "dependent",
    )
    is_held = launch.held or not launch.chunks
    options = {
        "BLOCK_ROW": launch.block_row if is_held else 0,
        "CHUNKS": launch.chunks or 1,
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "MODES": modes,
        "NUM_STAGES": launch.num_stages if is_held else 1,
        "num_warps": launch.num_warps,
    }
    main = KernelCall(_rms_norm_gated_backward_kernel, (parts * groups,), args, options)
    if not has_partials:
        return (main,)
    return (main, reduction(launch._replace(grid=parts), groups * problem.hidden, workspace, dweight))
