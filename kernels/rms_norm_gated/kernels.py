"""The kernels of gated RMSNorm, forward and backward, all arithmetic in float32.

Memory is (outer, inner, groups, hidden): a row is a pair of `outer` and `inner`, each with a stride of its own, as
heads of a projection that also holds other tensors; each group of a row has its own mean square and its own columns of
the weight. A program works on one group, so that its weight and the sums of its gradient stay in registers. The number
of groups changes no binary.

Forward, with silu(z) = z * sigmoid(z):
    norm first   y = x * rstd * (weight + offset) * silu(z),   rstd = 1 / sqrt(mean(x^2) + eps)
    gate first   y = u * rstd * (weight + offset),             rstd = 1 / sqrt(mean(u^2) + eps), u = x * silu(z)
A perfect kernel reads rows x hidden of x and of z and hidden of weight, and writes rows x hidden of y and rows of rstd.

Backward, with s = silu(z), s' its derivative, w = weight + offset, xhat the normalized values, m a mean over a group
and h = rstd * (g - xhat * m(g * xhat)):
    norm first   g = dy * s * w,   dx = h,       dz = dy * xhat * w * s',   dweight = sum over rows of dy * s * xhat
    gate first   g = dy * w,       dx = h * s,   dz = h * x * s',           dweight = sum over rows of dy * xhat
Gradients are those of the function without roundings, whatever the forward rounds. A fixed grid strides over the rows
of each group. A program keeps its part of dweight in registers and writes it once, in float32, to its row of a
workspace that a second kernel sums in a fixed order: no atomics, so the bits are always the same. If a group has one
program, that writes dweight. A perfect kernel reads rows x hidden of dy, x and z, rows of rstd and hidden of weight,
and writes rows x hidden of dx and dz and hidden of dweight.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_gated.launch import Gate, Order, Roundings, parts_of, rows_and_groups, strides
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask


@triton.jit
def row_offsets(o_row, i_group, inner, s_outer, s_inner, s_group, ALIGNMENT: tl.constexpr):
    """(rows,) offsets of the first elements of a group's rows, int64."""
    o_short = o_row.to(tl.int32)  # of a row that does not exist it may wrap; it is masked
    o_outer = (o_short // inner).to(tl.int64)
    o_inner = (o_short % inner).to(tl.int64)
    s_rows = o_outer * extent(s_outer, ALIGNMENT) + o_inner * extent(s_inner, ALIGNMENT)
    return s_rows + i_group.to(tl.int64) * extent(s_group, ALIGNMENT)


@triton.jit
def silu(b_z):
    """Sigmoid linear unit, z * sigmoid(z)."""
    return b_z / (1.0 + tl.exp(-b_z))


@triton.jit
def silu_derivative(b_z):
    """The derivative of `silu`."""
    b_sigmoid = 1.0 / (1.0 + tl.exp(-b_z))
    return b_sigmoid * (1.0 + b_z * (1.0 - b_sigmoid))


@triton.jit
def gated_input(b_x, b_z, MODES: tl.constexpr):
    """The values that are normalized."""
    if MODES.has_gate and not MODES.is_norm_first:
        b_x = b_x * silu(b_z)
    return b_x


@triton.jit
def gated_output(args, b_xhat, b_z, b_weight, MODES: tl.constexpr):
    """The float32 y; unless it is rounded once, normalized values and their product with the weight are rounded."""
    if MODES.rounds_once:
        b_y = b_xhat * b_weight
    else:
        b_product = b_xhat.to(args.x_ptr.dtype.element_ty).to(tl.float32) * b_weight
        b_y = b_product.to(args.weight_ptr.dtype.element_ty).to(tl.float32)
    if MODES.has_gate and MODES.is_norm_first:
        b_y = b_y * silu(b_z)
    return b_y


@triton.jit
def normalized(b_dy, b_x, b_z, b_rstd, MODES: tl.constexpr):
    """The normalized values, and the gradient of their product with the weight."""
    b_xhat = gated_input(b_x, b_z, MODES) * b_rstd
    if MODES.has_gate and MODES.is_norm_first:
        b_dy = b_dy * silu(b_z)
    return b_xhat, b_dy


@triton.jit
def input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES: tl.constexpr):
    """Gradients dx and dz, given that of the normalized values' input; without a gate dz has no meaning."""
    b_dx = b_gradient
    b_dz = b_gradient
    if MODES.has_gate:
        if MODES.is_norm_first:
            b_dz = b_dy * (b_xhat * b_weight) * silu_derivative(b_z)
        else:
            b_dx = b_gradient * silu(b_z)
            b_dz = b_gradient * b_x * silu_derivative(b_z)
    return b_dx, b_dz


# Forward of few rows: several programs a group, each of which reads all of it and writes a part, as in RMSNorm.


@triton.jit
def normalize_part(
    args,
    PART_COL: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a part of `PART_COL` columns of a group of one row."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    o_row, m_row = row_block(tl.program_id(0) // args.groups, args.rows, 1)
    o_x = row_offsets(o_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
    o_z = row_offsets(o_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_part, m_part = columns(tl.program_id(1) * PART_COL, n_col, PART_COL, HAS_COLUMN_MASK)
    mask = tile_mask(m_row, m_col, 1)
    m_out = tile_mask(m_row, m_part, 1)
    b_x = load_tile(args.x_ptr, 1, o_x, o_col, mask)
    b_z = b_x
    if MODES.has_gate and not MODES.is_norm_first:
        b_z = load_tile(args.z_ptr, 1, o_z, o_col, mask)
    b_x_part = load_tile(args.x_ptr, 1, o_x, o_part, m_out)
    b_z_part = b_x_part
    if MODES.has_gate:
        b_z_part = load_tile(args.z_ptr, 1, o_z, o_part, m_out)
    b_weight = load_weight(args.weight_ptr + i_group.to(tl.int64) * n_col, o_part, m_part, args.offset)
    b_u = gated_input(b_x, b_z, MODES)
    b_rstd = tl.rsqrt(tl.sum(b_u * b_u, axis=1) / args.hidden + args.eps)
    b_xhat = gated_input(b_x_part, b_z_part, MODES) * b_rstd[:, None]
    b_y = gated_output(args, b_xhat, b_z_part, b_weight[None, :], MODES)
    o_out = o_row * args.groups + i_group
    store_tile(args.y_ptr, n_col, o_out, o_part, m_out, b_y)
    if MODES.stores_rstd and tl.program_id(1) == 0:
        tl.store(args.rstd_ptr + o_out, b_rstd, mask=m_row)


# Forward of several rows a program, each in equal chunks of columns that stay in registers. A row that is no power of
# two fills its chunks where a tile of the next power of two computes columns that do not exist: 192 columns are three
# chunks of 64, of 256 a quarter would be masked.


@triton.jit
def normalize_chunks(
    args,
    BLOCK_ROW: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize a block of rows; a column mask is that of the last chunk."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    o_row, m_row = row_block(tl.program_id(0) // args.groups, args.rows, BLOCK_ROW)
    o_x = row_offsets(o_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
    p_x = args.x_ptr + o_x[:, None]
    o_z = row_offsets(o_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
    p_z = args.z_ptr + o_z[:, None]
    p_weight = args.weight_ptr + i_group.to(tl.int64) * n_col
    b_square = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
    t_u = ()  # Triton adds tuples, but does not unpack them
    t_z = ()
    t_weight = ()
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        mask = tile_mask(m_row, m_col, BLOCK_ROW)
        t_weight = t_weight + (load_weight(p_weight, o_col, m_col, args.offset),)  # noqa: RUF005
        b_x = tl.load(p_x + o_col[None, :], mask=mask, other=0.0)
        b_z = b_x
        if MODES.has_gate:
            b_z = tl.load(p_z + o_col[None, :], mask=mask, other=0.0)
        b_u = gated_input(b_x.to(tl.float32), b_z.to(tl.float32), MODES)
        b_square += b_u * b_u
        t_u = t_u + (b_u,)  # noqa: RUF005
        t_z = t_z + (b_z,)  # noqa: RUF005
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=1) / args.hidden + args.eps)
    o_out = o_row * args.groups + i_group
    if MODES.stores_rstd:
        tl.store(args.rstd_ptr + o_out, b_rstd, mask=m_row)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK and i_chunk == CHUNKS - 1)
        b_y = gated_output(
            args, t_u[i_chunk] * b_rstd[:, None], t_z[i_chunk].to(tl.float32), t_weight[i_chunk][None, :], MODES
        )
        store_tile(args.y_ptr, n_col, o_out, o_col, tile_mask(m_row, m_col, BLOCK_ROW), b_y)


# Integer arguments on which the kernel is not specialised.
FORWARD_RUNTIME = [
    *("rows", "hidden", "groups", "inner"),
    *(f"{name}_{of}" for name in ("x", "z") for of in ("outer", "in", "group")),
]
# The run-time arguments of the kernel as one value.
ForwardArguments = namedtuple(
    "ForwardArguments",
    "x_ptr z_ptr weight_ptr y_ptr rstd_ptr rows hidden groups inner "
    "x_outer x_in x_group z_outer z_in z_group eps offset",
)
ForwardModes = namedtuple("ForwardModes", "stores_rstd holds_chunks has_gate is_norm_first rounds_once")


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


@triton.jit(do_not_specialize=FORWARD_RUNTIME)
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
    args = ForwardArguments(
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


def forward_calls(
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
        "MODES": ForwardModes("rstd" in tensors, launch.held, *modes),
        "NUM_STAGES": launch.num_stages if launch.looped else 0,
        "num_warps": launch.num_warps,
    }
    programs = parts_of(launch, rows, groups) * groups
    grid = (programs, triton.cdiv(problem.hidden, launch.slice_col)) if launch.slice_col else (programs,)
    return (KernelCall(_rms_norm_gated_forward_kernel, grid, args, options),)


# Backward of rows that are too long for one tile: columns in chunks, each with its own sums. dy, x and z are read
# twice, the second time from the cache, because the sums of dweight take the registers.


@triton.jit
def rows_in_chunks(
    args,
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
):
    """Gradients of every n-th row of one group, and their partial sums of dweight."""
    n_col = extent(args.hidden, ALIGNMENT)
    i_group = tl.program_id(0) % args.groups
    p_weight = args.weight_ptr + i_group.to(tl.int64) * n_col
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(CHUNKS):
        t_dweight = t_dweight + (tl.zeros([BLOCK_COL], dtype=tl.float32),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0) // args.groups, args.rows, tl.num_programs(0) // args.groups, num_stages=1):
        p_dy = args.dy_ptr + row_offsets(
            i_row, i_group, args.inner, args.dy_outer, args.dy_in, args.dy_group, ALIGNMENT
        )
        p_x = args.x_ptr + row_offsets(i_row, i_group, args.inner, args.x_outer, args.x_in, args.x_group, ALIGNMENT)
        p_z = args.z_ptr + row_offsets(i_row, i_group, args.inner, args.z_outer, args.z_in, args.z_group, ALIGNMENT)
        i_out = i_row.to(tl.int64) * args.groups + i_group
        p_dx = args.dx_ptr + i_out * n_col
        p_dz = args.dz_ptr + i_out * n_col
        b_rstd = tl.load(args.rstd_ptr + i_out)

        b_sum = tl.zeros([BLOCK_COL], dtype=tl.float32)
        # No unrolling: the loads of all chunks at once would take the registers of the sums.
        for i_chunk in tl.range(0, CHUNKS, num_stages=1):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_z = b_x
            if MODES.has_gate:
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_sum += b_product * load_weight(p_weight, o_col, m_col, args.offset) * b_xhat
        b_mean = tl.sum(b_sum, axis=0) * (1.0 / args.hidden)

        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(p_weight, o_col, m_col, args.offset)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_z = b_x
            if MODES.has_gate:
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_gradient = b_rstd * (b_product * b_weight - b_xhat * b_mean)
            b_dx, b_dz = input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=m_col)
            if MODES.has_gate:
                tl.store(p_dz + o_col, b_dz.to(args.dz_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i_chunk] + b_product * b_xhat,)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.has_dweight:
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(args.dweight_ptr.dtype.element_ty), mask=m_col)


# The run-time arguments of the kernel as one value.
BackwardArguments = namedtuple(
    "BackwardArguments",
    "dy_ptr x_ptr z_ptr weight_ptr rstd_ptr dx_ptr dz_ptr dweight_ptr rows hidden groups inner "
    "dy_outer dy_in dy_group x_outer x_in x_group z_outer z_in z_group offset",
)
BackwardModes = namedtuple("BackwardModes", "has_gate is_norm_first has_dweight has_dependent")
# Integer arguments on which the kernels are not specialised.
BACKWARD_RUNTIME = [name for name in BackwardArguments._fields if not name.endswith("_ptr") and name != "offset"]


@triton.jit(do_not_specialize=BACKWARD_RUNTIME)
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
        args = BackwardArguments(
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


def backward_calls(
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
    modes = BackwardModes(
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
