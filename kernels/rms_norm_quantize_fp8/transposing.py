"""Quantized RMSNorm in both layouts, (rows, hidden) and transposed (hidden, rows).

In: a `TransposingLaunch` and tensors. Out: the kernel calls. Either each program normalizes some rows and writes each
tile in both layouts, or a second launch transposes the output of `kernels`.

Traffic of a perfect kernel: read rows x hidden of x and hidden of weight, write 2 x rows x hidden bytes. A second
launch reads rows x hidden bytes again, from the cache if they fit there.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_quantize_fp8 import kernels
from normtune.kernels.rms_norm_quantize_fp8.amax import with_amax
from normtune.kernels.rms_norm_quantize_fp8.fp8 import end_amax, magnitude, norm, quantized
from normtune.kernels.rms_norm_quantize_fp8.launch import TransposingLaunch
from normtune.kernels.rms_norm_quantize_fp8.modes import modes_of
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, store_tile
from normtune.kernels.transpose_fp8 import kernel as transposition
from normtune.kernels.transpose_fp8.kernel import aligned_rows, store_transposed

# The runtime arguments of the kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "x_ptr residual_ptr weight_ptr scale_ptr sum_ptr q_ptr y_ptr q_t_ptr amax_ptr rstd_ptr rows hidden "
    "x_stride residual_stride sum_stride q_stride y_stride eps offset",
)


@triton.jit
def _load(args, o_row, o_col, mask, ALIGNMENT: tl.constexpr, MODES: tl.constexpr):
    """(rows, columns) float32, the norm's input: x, or x + residual."""
    b_x = load_tile(args.x_ptr, extent(args.x_stride, ALIGNMENT), o_row, o_col, mask)
    if MODES.has_residual:
        b_x += load_tile(args.residual_ptr, extent(args.residual_stride, ALIGNMENT), o_row, o_col, mask)
        if MODES.rounds_sum:
            b_x = b_x.to(args.x_ptr.dtype.element_ty).to(tl.float32)
    return b_x


@triton.jit
def _store(
    args,
    b_x,
    b_rstd,
    b_scale,
    b_scale_t,
    o_row,
    m_row,
    n_row,
    o_col,
    m_col,
    ALIGNMENT: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Write a tile of all outputs; returns the bits of the largest magnitude of its rows, int32."""
    mask = m_row[:, None] & m_col[None, :]
    b_weight = load_weight(args.weight_ptr, o_col, m_col, args.offset)
    b_norm = norm(b_x, b_rstd[:, None], b_weight[None, :], args.x_ptr.dtype.element_ty, MODES)
    if MODES.has_residual:
        store_tile(args.sum_ptr, extent(args.sum_stride, ALIGNMENT), o_row, o_col, mask, b_x)
    if MODES.has_y:
        store_tile(args.y_ptr, extent(args.y_stride, ALIGNMENT), o_row, o_col, mask, b_norm)
    b_q = quantized(b_norm, b_scale, args.q_ptr.dtype.element_ty, LARGEST)
    tl.store(args.q_ptr + o_row[:, None] * extent(args.q_stride, ALIGNMENT) + o_col[None, :], b_q, mask=mask)
    b_q_t = quantized(b_norm, b_scale_t, args.q_ptr.dtype.element_ty, LARGEST)
    store_transposed(args.q_t_ptr, b_q_t, o_row, m_row, o_col, m_col, n_row)
    return tl.max(tl.where(mask, magnitude(b_norm), 0), axis=1)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "residual_stride", "sum_stride", "q_stride", "y_stride"])
def _tile_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    scale_ptr,
    sum_ptr,
    q_ptr,
    y_ptr,
    q_t_ptr,
    amax_ptr,
    rstd_ptr,
    rows,
    hidden,
    x_stride,
    residual_stride,
    sum_stride,
    q_stride,
    y_stride,
    eps,
    offset,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    ROW_ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    MODES: tl.constexpr,
    LARGEST: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """BLOCK_ROW rows per program; IS_WHOLE: one tile has all columns, else the rows are read twice, tile by tile."""
    args = Arguments(
        *(x_ptr, residual_ptr, weight_ptr, scale_ptr, sum_ptr, q_ptr, y_ptr, q_t_ptr, amax_ptr, rstd_ptr),
        *(rows, hidden, x_stride, residual_stride, sum_stride, q_stride, y_stride, eps, offset),
    )
    n_col = extent(hidden, ALIGNMENT)
    o_row, m_row, n_row = aligned_rows(tl.program_id(0), rows, BLOCK_ROW, ROW_ALIGNMENT)
    b_scale = tl.load(scale_ptr)
    # Loaded again, so that the compiler takes it for another value: if a vector store and a store of single bytes share
    # one conversion to FP8, ptxas 12.8 loses the second.
    b_scale_t = tl.load(scale_ptr, volatile=True)
    if IS_WHOLE:
        o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        mask = m_row[:, None] & m_col[None, :]
        b_x = _load(args, o_row, o_col, mask, ALIGNMENT, MODES)
        b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / hidden + eps)
        b_most = _store(
            *(args, b_x, b_rstd, b_scale, b_scale_t, o_row, m_row, n_row, o_col, m_col, ALIGNMENT, MODES, LARGEST)
        )
    else:
        b_square = tl.zeros([BLOCK_ROW, BLOCK_COL], dtype=tl.float32)
        for first in tl.range(0, hidden, BLOCK_COL, num_stages=NUM_STAGES):
            o_col, m_col = columns(first, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            mask = m_row[:, None] & m_col[None, :]
            b_x = _load(args, o_row, o_col, mask, ALIGNMENT, MODES)
            b_square += b_x * b_x
        b_rstd = tl.rsqrt(tl.sum(b_square, axis=1) / hidden + eps)
        b_most = tl.zeros([BLOCK_ROW], dtype=tl.int32)
        for first in tl.range(0, hidden, BLOCK_COL, num_stages=NUM_STAGES):
            o_col, m_col = columns(first, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            mask = m_row[:, None] & m_col[None, :]
            b_x = _load(args, o_row, o_col, mask, ALIGNMENT, MODES)
            b_bits = _store(
                *(args, b_x, b_rstd, b_scale, b_scale_t, o_row, m_row, n_row, o_col, m_col, ALIGNMENT, MODES, LARGEST)
            )
            b_most = tl.maximum(b_most, b_bits)
    if MODES.has_rstd:
        tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)
    if MODES.has_amax:
        end_amax(amax_ptr, tl.max(b_most, axis=0))


def calls(
    launch: TransposingLaunch,
    problem: Problem,
    tensors: Mapping[str, Any],
    workspace: Any,
    eps: float,
    offset: float,
) -> tuple[KernelCall, ...]:
    """The kernel calls of one problem: those of `kernels.calls` and a transposition, or one kernel that does both.

    Arguments are those of `kernels.calls`, with a launch from `resolve_transposing` and a contiguous `q_t`.
    """
    if launch.transpose is not None:
        made = kernels.calls(launch.norm, problem, tensors, workspace, eps, offset)
        return (*made, transposition.call(launch.transpose, problem, tensors["q"], tensors["q_t"]))
    modes, tile = modes_of(problem), launch.norm
    of_rows = ("x", "residual", "sum", "q", "y")
    args = (
        *(tensors.get(name) for name in ("x", "residual", "weight", "scale", "sum", "q", "y", "q_t")),
        tensors.get("amax"),
        tensors.get("rstd"),
        *(problem.rows, problem.hidden),
        *(0 if tensors.get(name) is None else tensors[name].stride(0) for name in of_rows),
        *(eps, offset),
    )
    options = {
        "BLOCK_ROW": tile.block_row,
        "BLOCK_COL": tile.block_col,
        "ALIGNMENT": tile.alignment,
        "ROW_ALIGNMENT": launch.row_alignment,
        "HAS_COLUMN_MASK": tile.column_mask,
        "IS_WHOLE": not tile.looped,
        "MODES": modes.binary,
        "LARGEST": modes.largest,
        "NUM_STAGES": tile.num_stages,
        "num_warps": tile.num_warps,
    }
    main = KernelCall(_tile_kernel, (tile.grid,), args, options)
    return with_amax(modes, main, tensors.get("amax"))
