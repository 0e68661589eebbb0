"""Quantized RMSNorm: q = clamp(norm / scale), norm = x * rstd * (weight + offset), in float32.

In: a `Launch` and tensors. Out: the kernel calls. The scale is the float32 dequantization factor: an argument
(`static`), or max(amax, least_amax) / largest value of the FP8 dtype, for each row (`row`), 128 columns of a row
(`block`) or all rows (`tensor`). `tensor` takes two passes over x: the kernel first computes only the amax (with the
scaling `amax`), then normalizes again and quantizes.

Traffic of a perfect kernel: read rows x hidden of x and hidden of weight, write rows x hidden bytes and the scales.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm_quantize_fp8.chunks import quantize_chunks
from normtune.kernels.rms_norm_quantize_fp8.fp8 import (
    RUNTIME,
    end_amax,
    magnitude,
    norm,
    quantized,
    scale_of,
    scale_of_tensor,
    store_blocks,
)
from normtune.kernels.rms_norm_quantize_fp8.modes import QuantizeModes, modes_of
from normtune.kernels.rms_norm_quantize_fp8.parts import quantize_part
from normtune.kernels.rms_norm_quantize_fp8.scales import BLOCK, padded_rows
from normtune.kernels.tiles.launch import MAX_HELD_BYTES, Launch
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask

# As in RMSNorm's forward: a longer row in chunks stays in registers, a shorter one is read again from the cache.
_MAX_READ_AGAIN_BYTES = 64 << 10
# A row of sums stays in registers if it takes at most half of them.
_MAX_SUM_BYTES = 128 << 10

# The runtime arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "x_ptr residual_ptr weight_ptr scale_ptr sum_ptr q_ptr y_ptr amax_ptr rstd_ptr rows hidden "
    "x_stride residual_stride sum_stride q_stride y_stride scale_rows eps offset least_amax",
)


@triton.jit
def _clear_amax_kernel(amax_ptr):
    tl.store(amax_ptr, 0.0)


@triton.jit
def _quantize_block(
    args,
    i_block,
    b_weight,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Quantize a block of rows; returns the bits of the largest magnitude of each row, int32 (`static`, `amax`)."""
    DTYPE: tl.constexpr = args.x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = args.q_ptr.dtype.element_ty
    n_col = extent(args.hidden, ALIGNMENT)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_row, m_row = row_block(i_block, args.rows, BLOCK_ROW)
    mask = tile_mask(m_row, m_col, BLOCK_ROW)
    b_x = load_tile(args.x_ptr, extent(args.x_stride, ALIGNMENT), o_row, o_col, mask)
    if MODES.has_residual:
        b_x += load_tile(args.residual_ptr, extent(args.residual_stride, ALIGNMENT), o_row, o_col, mask)
        if MODES.scaling != "amax":
            store_tile(args.sum_ptr, extent(args.sum_stride, ALIGNMENT), o_row, o_col, mask, b_x)
        if MODES.rounds_sum:
            b_x = b_x.to(DTYPE).to(tl.float32)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / args.hidden + args.eps)
    if MODES.has_rstd:
        tl.store(args.rstd_ptr + o_row, b_rstd, mask=m_row)
    b_norm = norm(b_x, b_rstd[:, None], b_weight[None, :], DTYPE, MODES)
    if MODES.has_y:
        store_tile(args.y_ptr, extent(args.y_stride, ALIGNMENT), o_row, o_col, mask, b_norm)
    b_bits = magnitude(b_norm)
    if MODES.scaling == "block":
        COUNT: tl.constexpr = BLOCK_COL // GROUP
        b_bits = tl.max(tl.reshape(b_bits, [BLOCK_ROW, COUNT, GROUP]), axis=2)
        b_scale = scale_of(b_bits, args.least_amax, LARGEST)
        store_blocks(
            *(args.scale_ptr, b_scale, 0, tl.cdiv(n_col, GROUP), o_row, m_row, args.rows, args.scale_rows),
            *(COUNT, MODES.is_column_major),
        )
        b_norm = tl.reshape(b_norm, [BLOCK_ROW, COUNT, GROUP])
        b_q = tl.reshape(quantized(b_norm, b_scale[:, :, None], Q_DTYPE, LARGEST), [BLOCK_ROW, BLOCK_COL])
    else:
        b_bits = tl.max(b_bits, axis=1)
        if MODES.scaling == "row":
            b_scale = scale_of(b_bits, args.least_amax, LARGEST)
            tl.store(args.scale_ptr + o_row, b_scale, mask=m_row)
            b_q = quantized(b_norm, b_scale[:, None], Q_DTYPE, LARGEST)
        elif MODES.scaling == "tensor":
            b_scale = scale_of_tensor(args.amax_ptr, args.scale_ptr, args.least_amax, LARGEST)
            b_q = quantized(b_norm, b_scale, Q_DTYPE, LARGEST)
        else:
            if MODES.scaling == "static":
                b_q = quantized(b_norm, tl.load(args.scale_ptr), Q_DTYPE, LARGEST)
            b_bits = tl.where(m_row, b_bits, 0)
    if MODES.scaling != "amax":
        tl.store(args.q_ptr + o_row[:, None] * extent(args.q_stride, ALIGNMENT) + o_col[None, :], b_q, mask=mask)
    return b_bits


@triton.jit(do_not_specialize=RUNTIME)
def _quantize_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    scale_ptr,
    sum_ptr,
    q_ptr,
    y_ptr,
    amax_ptr,
    rstd_ptr,
    rows,
    hidden,
    x_stride,
    residual_stride,
    sum_stride,
    q_stride,
    y_stride,
    scale_rows,
    eps,
    offset,
    least_amax,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    PART_COL: tl.constexpr,
    CHUNKS: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_HELD: tl.constexpr,
    NORM_IS_HELD: tl.constexpr,
    IS_LOOPED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """A program takes a row in chunks, a part of a row, or blocks of rows."""
    args = Arguments(
        *(x_ptr, residual_ptr, weight_ptr, scale_ptr, sum_ptr, q_ptr, y_ptr, amax_ptr, rstd_ptr, rows, hidden),
        *(x_stride, residual_stride, sum_stride, q_stride, y_stride, scale_rows, eps, offset, least_amax),
    )
    if CHUNKS > 0:
        b_most = quantize_chunks(
            *(args, CHUNKS, BLOCK_COL, GROUP, ALIGNMENT, HAS_COLUMN_MASK, IS_HELD, NORM_IS_HELD, MODES, LARGEST)
        )
    elif PART_COL > 0:
        b_most = quantize_part(args, PART_COL, BLOCK_COL, GROUP, ALIGNMENT, HAS_COLUMN_MASK, MODES, LARGEST)
    else:
        o_col, m_col = columns(0, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
        b_weight = load_weight(weight_ptr, o_col, m_col, offset)
        if IS_LOOPED:
            b_most = tl.zeros([BLOCK_ROW], dtype=tl.int32)
            i_first = tl.program_id(0)
            for i_block in tl.range(i_first, tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
                b_bits = _quantize_block(
                    *(args, i_block, b_weight, BLOCK_ROW, BLOCK_COL, GROUP, ALIGNMENT, HAS_COLUMN_MASK, MODES, LARGEST)
                )
                if MODES.has_amax:
                    b_most = tl.maximum(b_most, b_bits)
        else:
            b_most = _quantize_block(
                *(args, tl.program_id(0), b_weight, BLOCK_ROW, BLOCK_COL, GROUP),
                *(ALIGNMENT, HAS_COLUMN_MASK, MODES, LARGEST),
            )
    if MODES.has_amax:
        end_amax(amax_ptr, tl.max(b_most, axis=0))


def calls(
    launch: Launch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    eps: float,
    offset: float,
    least_amax: float = 0.0,
) -> tuple[KernelCall, ...]:
    """The kernel calls of one problem.

    Programs end in an atomic maximum of the output `amax`, whose result is independent of their order. A call before
    clears it, unless it accumulates. With the scaling `tensor` the call that quantizes comes last.

    Args:
        launch: from `resolve`.
        problem: rows, hidden, dtype and variant.
        tensors: as `buffers` of the spec lists them; last dimension contiguous, row strides of `x`, `residual`, `sum`,
            `q` and `y` free. Scales are contiguous.
        workspace: not read.
        eps: added to the mean square.
        offset: added to the weight, in float32.
        least_amax: smallest amax from which a scale is computed, so that rows of zeros have a positive scale.
    """
    modes = modes_of(problem)
    names = ("x", "residual", "weight", "scale", "sum", "q", "y")
    of_rows = ("x", "residual", "sum", "q", "y")
    amax = tensors.get("amax")
    before = tuple(tensors.get(name) for name in names)
    after = (
        tensors.get("rstd"),
        *(problem.rows, problem.hidden),
        *(0 if tensors.get(name) is None else tensors[name].stride(0) for name in of_rows),
        *(padded_rows(problem.rows), eps, offset, least_amax),
    )
    options = _options(launch, problem, modes)
    grid = (launch.grid, triton.cdiv(problem.hidden, launch.slice_col)) if launch.slice_col else (launch.grid,)
    main = KernelCall(_quantize_kernel, grid, (*before, amax, *after), options)
    is_cleared = modes.has_amax and not modes.accumulates
    clearing = [KernelCall(_clear_amax_kernel, (1,), (amax,), {"num_warps": 1})] if is_cleared else []
    if modes.scaling != "tensor":
        return (*clearing, main)
    measuring = options | {"MODES": options["MODES"]._replace(scaling="amax", has_y=False, has_rstd=False)}
    quantizing = options | {"MODES": options["MODES"]._replace(has_amax=False)}
    return (*clearing, main._replace(options=measuring), main._replace(options=quantizing))


def _options(launch: Launch, problem: Problem, modes: QuantizeModes) -> dict[str, Any]:
    row, itemsize = launch.chunks * launch.block_col, ITEMSIZE[problem.dtype]
    is_held = row * itemsize > _MAX_READ_AGAIN_BYTES
    if modes.has_residual:
        is_held = 0 < row * (itemsize if modes.rounds_sum else 4) <= _MAX_SUM_BYTES
    holds_norm = modes.scaling == "row" and 0 < 4 * row <= MAX_HELD_BYTES
    return {
        "BLOCK_ROW": launch.block_row,
        "BLOCK_COL": launch.block_col,
        "PART_COL": launch.slice_col,
        "CHUNKS": launch.chunks,
        "GROUP": min(BLOCK, launch.block_col),
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "IS_HELD": is_held or holds_norm,
        "NORM_IS_HELD": holds_norm,
        "IS_LOOPED": launch.looped,
        "NUM_STAGES": launch.num_stages,
        "MODES": modes.binary,
        "LARGEST": modes.largest,
        "num_warps": launch.num_warps,
    }
