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

from normtune.kernels.call import KernelCall, arguments
from normtune.kernels.mode import Dweight, Rstd, names_of
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_gated.launch import Gate, Order, Roundings, parts_of, rows_and_groups, strides
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import (
    as_column,
    columns,
    elements,
    extent,
    load_tile,
    load_weight,
    row_block,
    store_tile,
    tile_mask,
)
from normtune.kernels.tiles.walk import walk


@triton.jit
def row_offsets(args, o_row, strides, ALIGNMENT: tl.constexpr):
    """(rows,) offsets of the first elements of a group's rows, int64, of a tensor with these three strides."""
    o_short = o_row.to(tl.int32)  # of a row that does not exist it may wrap; it is masked
    o_outer = (o_short // args.inner).to(tl.int64)
    o_inner = (o_short % args.inner).to(tl.int64)
    o_rows = o_outer * extent(strides[0], ALIGNMENT) + o_inner * extent(strides[1], ALIGNMENT)
    return o_rows + args.i_group.to(tl.int64) * extent(strides[2], ALIGNMENT)


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
    if MODES.gate == "PRESENT" and MODES.order == "GATE_FIRST":
        b_x = b_x * silu(b_z)
    return b_x


@triton.jit
def gated_output(args, b_xhat, b_z, b_weight, MODES: tl.constexpr):
    """The float32 y; unless it is rounded once, normalized values and their product with the weight are rounded."""
    if MODES.roundings == "ONCE":
        b_y = b_xhat * b_weight
    else:
        b_product = b_xhat.to(args.x_ptr.dtype.element_ty).to(tl.float32) * b_weight
        b_y = b_product.to(args.weight_ptr.dtype.element_ty).to(tl.float32)
    if MODES.gate == "PRESENT" and MODES.order == "NORM_FIRST":
        b_y = b_y * silu(b_z)
    return b_y


@triton.jit
def normalized(b_dy, b_x, b_z, b_rstd, MODES: tl.constexpr):
    """The normalized values, and the gradient of their product with the weight."""
    b_xhat = gated_input(b_x, b_z, MODES) * b_rstd
    if MODES.gate == "PRESENT" and MODES.order == "NORM_FIRST":
        b_dy = b_dy * silu(b_z)
    return b_xhat, b_dy


@triton.jit
def input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES: tl.constexpr):
    """Gradients dx and dz, given that of the normalized values' input; without a gate dz has no meaning."""
    b_dx = b_gradient
    b_dz = b_gradient
    if MODES.gate == "PRESENT":
        if MODES.order == "NORM_FIRST":
            b_dz = b_dy * (b_xhat * b_weight) * silu_derivative(b_z)
        else:
            b_dx = b_gradient * silu(b_z)
            b_dz = b_gradient * b_x * silu_derivative(b_z)
    return b_dx, b_dz


# Forward, in the three bodies of `tiles.walk`.

# Dimensions of a tensor whose strides a kernel takes.
_AXES = ("outer", "in", "group")
# Integer arguments on which the kernel is not specialised.
FORWARD_RUNTIME = [*("rows", "hidden", "groups", "inner"), *(f"{name}_{axis}" for name in ("x", "z") for axis in _AXES)]
# The run-time arguments of the kernel as one value, with the number of the program's group.
ForwardArguments = namedtuple(
    "ForwardArguments",
    "x_ptr z_ptr weight_ptr y_ptr rstd_ptr rows hidden groups inner x_strides z_strides eps offset i_group",
)
# The modes of a problem that the kernels read.
_FORWARD_MODES = (Rstd, Gate, Order, Roundings)
_BACKWARD_MODES = (Dweight, Gate, Order)


@triton.jit
def _load_gated(args, at, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    """What is normalized, and the gate where y needs it."""
    EVICTION: tl.constexpr = "evict_last" if PASS == "first" else ("evict_first" if PASS == "last" else "")
    IS_ONLY_SUMMED: tl.constexpr = PASS == "first" or PASS == "sum"
    o_x = row_offsets(args, at.o_row, args.x_strides, TILE.alignment)
    b_x = tl.load(elements(args.x_ptr, 1, o_x, at.o_col), mask=at.mask, other=0.0, eviction_policy=EVICTION)
    b_z = b_x
    if MODES.gate == "PRESENT" and not (IS_ONLY_SUMMED and MODES.order == "NORM_FIRST"):
        o_z = row_offsets(args, at.o_row, args.z_strides, TILE.alignment)
        b_z = tl.load(elements(args.z_ptr, 1, o_z, at.o_col), mask=at.mask, other=0.0, eviction_policy=EVICTION)
    return gated_input(b_x.to(tl.float32), b_z.to(tl.float32), MODES), b_z


@triton.jit
def _output_rows(args, o_row):
    """The rows of groups in y and rstd."""
    o_out = tl.program_id(0).to(tl.int64)  # of a program that has one row
    if len(o_row.shape) > 0:
        o_out = o_row * args.groups + args.i_group
    return o_out


@triton.jit
def _turn(args, at, t_x, b_weight, b_rstd, is_first, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    if PASS == "last" and MODES.rstd == "STORED":
        tl.store(args.rstd_ptr + _output_rows(args, at.o_row), b_rstd, mask=at.m_row)
    return b_rstd, t_x


@triton.jit
def _store_gated(args, at, b_x, b_z, b_weight, b_rstd, PASS: tl.constexpr, TILE: tl.constexpr, MODES: tl.constexpr):
    b_y = gated_output(args, b_x * as_column(b_rstd), b_z.to(tl.float32), b_weight, MODES)
    o_out = _output_rows(args, at.o_row)
    store_tile(args.y_ptr, extent(args.hidden, TILE.alignment), o_out, at.o_col, at.mask, b_y)
    if PASS != "last" and MODES.rstd == "STORED" and at.number == 0:
        tl.store(args.rstd_ptr + o_out, b_rstd, mask=at.m_row)
    return b_rstd


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
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    i_group = tl.program_id(0) % groups
    i_first, step = tl.program_id(0) // groups, tl.num_programs(0) // groups
    p_weight = weight_ptr + i_group.to(tl.int64) * extent(hidden, TILE.alignment)
    args = ForwardArguments(
        *(x_ptr, z_ptr, p_weight, y_ptr, rstd_ptr, rows, hidden, groups, inner),
        *((x_outer, x_in, x_group), (z_outer, z_in, z_group), eps, offset, i_group),
    )
    walk(args, i_first, step, _load_gated, _turn, _store_gated, None, False, TILE, MODES)


def _strides_by_name(**tensors: Any) -> dict[str, int]:
    """The strides of these tensors by the names of the kernels' arguments."""
    return {
        f"{name}_{axis}": stride
        for name, tensor in tensors.items()
        for axis, stride in zip(_AXES, strides(tensor), strict=True)
    }


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
    read = {**tensors, "z": z}
    numbers = {"rows": rows, "hidden": problem.hidden, "groups": groups, "inner": inner, "eps": eps, "offset": offset}
    args = arguments(_rms_norm_gated_forward_kernel, read, **numbers, **_strides_by_name(x=x, z=z))
    options = {
        "TILE": launch.tile,
        "MODES": names_of(_FORWARD_MODES, problem.variant),
        "num_warps": launch.num_warps,
    }
    programs = parts_of(launch, rows, groups) * groups
    grid = launch._replace(grid=programs).programs(problem.hidden)
    return (KernelCall(_rms_norm_gated_forward_kernel, grid, args, options),)


# Backward of rows that are too long for one tile: columns in chunks, each with its own sums. dy, x and z are read
# twice, the second time from the cache, because the sums of dweight take the registers.


@triton.jit
def rows_in_chunks(args, TILE: tl.constexpr, MODES: tl.constexpr):
    """Gradients of every n-th row of one group, and their partial sums of dweight."""
    CHUNKS: tl.constexpr = TILE.chunks
    COLS: tl.constexpr = TILE.cols
    n_col = extent(args.hidden, TILE.alignment)
    p_weight = args.weight_ptr + args.i_group.to(tl.int64) * n_col
    t_dweight = ()  # Triton adds tuples, but does not unpack them
    for _ in tl.static_range(CHUNKS):
        t_dweight = t_dweight + (tl.zeros([COLS], dtype=tl.float32),)  # noqa: RUF005
    for i_row in tl.range(tl.program_id(0) // args.groups, args.rows, tl.num_programs(0) // args.groups, num_stages=1):
        p_dy = args.dy_ptr + row_offsets(args, i_row, args.dy_strides, TILE.alignment)
        p_x = args.x_ptr + row_offsets(args, i_row, args.x_strides, TILE.alignment)
        p_z = args.z_ptr + row_offsets(args, i_row, args.z_strides, TILE.alignment)
        i_out = i_row.to(tl.int64) * args.groups + args.i_group
        p_dx = args.dx_ptr + i_out * n_col
        p_dz = args.dz_ptr + i_out * n_col
        b_rstd = tl.load(args.rstd_ptr + i_out)

        b_sum = tl.zeros([COLS], dtype=tl.float32)
        # No unrolling: the loads of all chunks at once would take the registers of the sums.
        for i_chunk in tl.range(0, CHUNKS, num_stages=1):
            o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_z = b_x
            if MODES.gate == "PRESENT":
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_sum += b_product * load_weight(p_weight, o_col, m_col, args.offset) * b_xhat
        b_mean = tl.sum(b_sum, axis=0) * (1.0 / args.hidden)

        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask)
            b_weight = load_weight(p_weight, o_col, m_col, args.offset)
            b_dy = tl.load(p_dy + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_x = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_z = b_x
            if MODES.gate == "PRESENT":
                b_z = tl.load(p_z + o_col, mask=m_col, other=0.0, eviction_policy="evict_first").to(tl.float32)
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_gradient = b_rstd * (b_product * b_weight - b_xhat * b_mean)
            b_dx, b_dz = input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES)
            tl.store(p_dx + o_col, b_dx.to(args.dx_ptr.dtype.element_ty), mask=m_col)
            if MODES.gate == "PRESENT":
                tl.store(p_dz + o_col, b_dz.to(args.dz_ptr.dtype.element_ty), mask=m_col)
            t_next = t_next + (t_dweight[i_chunk] + b_product * b_xhat,)  # noqa: RUF005
        t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.dweight == "COMPUTED":
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask)
            tl.store(p_out + o_col, t_dweight[i_chunk].to(args.dweight_ptr.dtype.element_ty), mask=m_col)


@triton.jit
def rows_in_registers(args, TILE: tl.constexpr, MODES: tl.constexpr):
    """The same of blocks of rows, whose chunks stay in registers; the last one may have a column mask."""
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    CHUNKS: tl.constexpr = TILE.chunks if TILE.chunks > 0 else 1
    n_col = extent(args.hidden, TILE.alignment)
    t_weight = ()  # Triton adds tuples, but does not unpack them
    # The sums over a tile's rows follow the loop: inside, they would cross warps once per tile.
    t_dweight = ()
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask and i_chunk == CHUNKS - 1)
        b_row = load_weight(args.weight_ptr + args.i_group.to(tl.int64) * n_col, o_col, m_col, args.offset)
        t_weight = t_weight + (b_row[None, :],)  # noqa: RUF005
        t_dweight = t_dweight + (tl.zeros([ROWS, COLS], dtype=tl.float32),)  # noqa: RUF005
    inverse_hidden = 1.0 / args.hidden
    for i_block in tl.range(
        tl.program_id(0) // args.groups,
        tl.cdiv(args.rows, ROWS),
        tl.num_programs(0) // args.groups,
        num_stages=TILE.num_stages,
    ):
        o_row, m_row = row_block(i_block, args.rows, ROWS)
        t_dy = ()
        t_x = ()
        t_z = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask and i_chunk == CHUNKS - 1)
            mask = tile_mask(m_row, m_col, ROWS)
            o_dy = row_offsets(args, o_row, args.dy_strides, TILE.alignment)
            t_dy = t_dy + (load_tile(args.dy_ptr, 1, o_dy, o_col, mask),)  # noqa: RUF005
            o_x = row_offsets(args, o_row, args.x_strides, TILE.alignment)
            t_x = t_x + (load_tile(args.x_ptr, 1, o_x, o_col, mask),)  # noqa: RUF005
            if MODES.gate == "PRESENT":
                o_z = row_offsets(args, o_row, args.z_strides, TILE.alignment)
                t_z = t_z + (load_tile(args.z_ptr, 1, o_z, o_col, mask),)  # noqa: RUF005
            else:
                t_z = t_x
        o_out = o_row * args.groups + args.i_group
        b_rstd = tl.load(args.rstd_ptr + o_out, mask=m_row, other=0.0)[:, None]
        b_sum = None
        for i_chunk in tl.static_range(CHUNKS):
            b_xhat, b_product = normalized(t_dy[i_chunk], t_x[i_chunk], t_z[i_chunk], b_rstd, MODES)
            b_part = b_product * t_weight[i_chunk] * b_xhat
            b_sum = b_part if i_chunk == 0 else b_sum + b_part
        b_mean = tl.sum(b_sum, axis=1)[:, None] * inverse_hidden
        t_next = ()
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask and i_chunk == CHUNKS - 1)
            mask = tile_mask(m_row, m_col, ROWS)
            b_dy, b_x, b_z, b_weight = t_dy[i_chunk], t_x[i_chunk], t_z[i_chunk], t_weight[i_chunk]
            b_xhat, b_product = normalized(b_dy, b_x, b_z, b_rstd, MODES)
            b_gradient = b_rstd * (b_product * b_weight - b_xhat * b_mean)
            b_dx, b_dz = input_gradients(b_gradient, b_dy, b_x, b_z, b_xhat, b_weight, MODES)
            store_tile(args.dx_ptr, n_col, o_out, o_col, mask, b_dx)
            if MODES.gate == "PRESENT":
                store_tile(args.dz_ptr, n_col, o_out, o_col, mask, b_dz)
            if MODES.dweight == "COMPUTED":
                t_next = t_next + (t_dweight[i_chunk] + b_product * b_xhat,)  # noqa: RUF005
        if MODES.dweight == "COMPUTED":
            t_dweight = t_next
    if MODES.has_dependent:
        gdc_launch_dependents()
    if MODES.dweight == "COMPUTED":
        p_out = args.dweight_ptr + tl.program_id(0).to(tl.int64) * n_col
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask and i_chunk == CHUNKS - 1)
            tl.store(
                p_out + o_col, tl.sum(t_dweight[i_chunk], axis=0).to(args.dweight_ptr.dtype.element_ty), mask=m_col
            )


# The run-time arguments of the kernel as one value.
BackwardArguments = namedtuple(
    "BackwardArguments",
    "dy_ptr x_ptr z_ptr weight_ptr rstd_ptr dx_ptr dz_ptr dweight_ptr rows hidden groups inner "
    "dy_strides x_strides z_strides offset i_group",
)
# Integer arguments on which the kernels are not specialised.
BACKWARD_RUNTIME = [
    *("rows", "hidden", "groups", "inner"),
    *(f"{name}_{axis}" for name in ("dy", "x", "z") for axis in _AXES),
]


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
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    """A program has rows of one group, whose chunks of columns stay in registers, or are loaded twice."""
    args = BackwardArguments(
        *(dy_ptr, x_ptr, z_ptr, weight_ptr, rstd_ptr, dx_ptr, dz_ptr, dweight_ptr, rows, hidden, groups, inner),
        *((dy_outer, dy_in, dy_group), (x_outer, x_in, x_group), (z_outer, z_in, z_group)),
        *(offset, tl.program_id(0) % groups),
    )
    if TILE.rows > 0:
        rows_in_registers(args, TILE, MODES)
    else:
        rows_in_chunks(args, TILE, MODES)


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
    read = {**tensors, "z": z, "dz": dz, "dweight": workspace if has_partials else dweight}
    numbers = {"rows": rows, "hidden": problem.hidden, "groups": groups, "inner": inner, "offset": offset}
    args = arguments(_rms_norm_gated_backward_kernel, read, **numbers, **_strides_by_name(dy=dy, x=x, z=z))
    has_dependent = has_partials and launch.finish == "dependent"
    modes = names_of(_BACKWARD_MODES, problem.variant, has_dependent=has_dependent)
    options = {"TILE": launch.tile, "MODES": modes, "num_warps": launch.num_warps}
    main = KernelCall(_rms_norm_gated_backward_kernel, (parts * groups,), args, options)
    if not has_partials:
        return (main,)
    return (main, reduction(launch._replace(grid=parts), groups * problem.hidden, workspace, dweight))
