"""RMSNorm whose result is quantized: q = clamp(norm / scale), norm = x * rstd * (weight + offset), in float32.

In: a `Launch` and existing tensors. Out: the kernel calls. Chooses nothing and allocates nothing. The scale is the
float32 factor that multiplies back, given (`static`), or max(amax, least_amax) / largest value of the FP8 dtype of each
row (`row`), of 128 columns of a row (`block`) or of all rows (`tensor`). The last one takes two passes over x: with the
SCALING `amax` a kernel takes the amax and writes nothing else, with `tensor` it normalizes again and quantizes.

Traffic of a perfect kernel: read rows x hidden of x and hidden of weight, write rows x hidden bytes and the scales.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm_quantize_fp8.amax import with_amax
from normtune.kernels.rms_norm_quantize_fp8.chunks import quantize_split_kernel
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
from normtune.kernels.rms_norm_quantize_fp8.parts import quantize_parts_kernel
from normtune.kernels.rms_norm_quantize_fp8.variants import BLOCK, Work, padded_rows, work_of
from normtune.kernels.tiles.launch import MAX_HELD_BYTES, Launch
from normtune.kernels.tiles.tile import columns, extent, load_tile, load_weight, row_block, store_tile, tile_mask

# As in RMSNorm's forward: a longer row in chunks stays in registers, a shorter one is read again out of the cache.
_MAX_READ_AGAIN_BYTES = 64 << 10
# A row of sums stays in registers up to half of them.
_MAX_SUM_BYTES = 128 << 10


@triton.jit
def _tile(
    x_ptr,
    residual_ptr,
    sum_ptr,
    scale_ptr,
    q_ptr,
    y_ptr,
    rstd_ptr,
    amax_ptr,
    i_block,
    rows,
    hidden,
    x_stride,
    residual_stride,
    sum_stride,
    q_stride,
    y_stride,
    scale_rows,
    b_weight,
    eps,
    least_amax,
    BLOCK_ROW: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    SCALING: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_RSTD: tl.constexpr,
    COLUMN_MAJOR: tl.constexpr,
):
    """Quantize a block of rows; returns the bits of the largest magnitude of each row, int32 (`static`, `amax`)."""
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    n_col = extent(hidden, ALIGNMENT)
    o_col, m_col = columns(0, n_col, BLOCK_COL, HAS_COLUMN_MASK)
    o_row, m_row = row_block(i_block, rows, BLOCK_ROW)
    mask = tile_mask(m_row, m_col, BLOCK_ROW)
    b_x = load_tile(x_ptr, extent(x_stride, ALIGNMENT), o_row, o_col, mask)
    if HAS_RESIDUAL:
        b_x += load_tile(residual_ptr, extent(residual_stride, ALIGNMENT), o_row, o_col, mask)
        if SCALING != "amax":
            store_tile(sum_ptr, extent(sum_stride, ALIGNMENT), o_row, o_col, mask, b_x)
        if ROUNDS_SUM:
            b_x = b_x.to(DTYPE).to(tl.float32)
    b_rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / hidden + eps)
    if HAS_RSTD:
        tl.store(rstd_ptr + o_row, b_rstd, mask=m_row)
    b_norm = norm(b_x, b_rstd[:, None], b_weight[None, :], DTYPE, ROUNDS_PRODUCT, ROUNDS_NORM)
    if HAS_Y:
        store_tile(y_ptr, extent(y_stride, ALIGNMENT), o_row, o_col, mask, b_norm)
    b_bits = magnitude(b_norm)
    if SCALING == "block":
        COUNT: tl.constexpr = BLOCK_COL // GROUP
        b_bits = tl.max(tl.reshape(b_bits, [BLOCK_ROW, COUNT, GROUP]), axis=2)
        b_scale = scale_of(b_bits, least_amax, LARGEST)
        store_blocks(scale_ptr, b_scale, 0, tl.cdiv(n_col, GROUP), o_row, m_row, rows, scale_rows, COUNT, COLUMN_MAJOR)
        b_norm = tl.reshape(b_norm, [BLOCK_ROW, COUNT, GROUP])
        b_q = tl.reshape(quantized(b_norm, b_scale[:, :, None], Q_DTYPE, LARGEST), [BLOCK_ROW, BLOCK_COL])
    else:
        b_bits = tl.max(b_bits, axis=1)
        if SCALING == "row":
            b_scale = scale_of(b_bits, least_amax, LARGEST)
            tl.store(scale_ptr + o_row, b_scale, mask=m_row)
            b_q = quantized(b_norm, b_scale[:, None], Q_DTYPE, LARGEST)
        elif SCALING == "tensor":
            b_q = quantized(b_norm, scale_of_tensor(amax_ptr, scale_ptr, least_amax, LARGEST), Q_DTYPE, LARGEST)
        else:
            if SCALING == "static":
                b_q = quantized(b_norm, tl.load(scale_ptr), Q_DTYPE, LARGEST)
            b_bits = tl.where(m_row, b_bits, 0)
    if SCALING != "amax":
        tl.store(q_ptr + o_row[:, None] * extent(q_stride, ALIGNMENT) + o_col[None, :], b_q, mask=mask)
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
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    SCALING: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_RSTD: tl.constexpr,
    COLUMN_MAJOR: tl.constexpr,
    HAS_AMAX: tl.constexpr,
    ATOMIC: tl.constexpr,
):
    o_col, m_col = columns(0, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_weight(weight_ptr, o_col, m_col, offset)
    b_bits = _tile(
        x_ptr,
        residual_ptr,
        sum_ptr,
        scale_ptr,
        q_ptr,
        y_ptr,
        rstd_ptr,
        amax_ptr,
        tl.program_id(0),
        rows,
        hidden,
        x_stride,
        residual_stride,
        sum_stride,
        q_stride,
        y_stride,
        scale_rows,
        b_weight,
        eps,
        least_amax,
        BLOCK_ROW,
        BLOCK_COL,
        ALIGNMENT,
        HAS_COLUMN_MASK,
        SCALING,
        GROUP,
        LARGEST,
        ROUNDS_PRODUCT,
        ROUNDS_NORM,
        HAS_RESIDUAL,
        ROUNDS_SUM,
        HAS_Y,
        HAS_RSTD,
        COLUMN_MAJOR,
    )
    if HAS_AMAX:
        end_amax(amax_ptr, tl.max(b_bits, axis=0), ATOMIC)


@triton.jit(do_not_specialize=RUNTIME)
def _quantize_persistent_kernel(
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
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    SCALING: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
    HAS_Y: tl.constexpr,
    HAS_RSTD: tl.constexpr,
    COLUMN_MAJOR: tl.constexpr,
    HAS_AMAX: tl.constexpr,
    ATOMIC: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    o_col, m_col = columns(0, extent(hidden, ALIGNMENT), BLOCK_COL, HAS_COLUMN_MASK)
    b_weight = load_weight(weight_ptr, o_col, m_col, offset)
    b_most = tl.zeros([BLOCK_ROW], dtype=tl.int32)
    for i_block in tl.range(tl.program_id(0), tl.cdiv(rows, BLOCK_ROW), tl.num_programs(0), num_stages=NUM_STAGES):
        b_bits = _tile(
            x_ptr,
            residual_ptr,
            sum_ptr,
            scale_ptr,
            q_ptr,
            y_ptr,
            rstd_ptr,
            amax_ptr,
            i_block,
            rows,
            hidden,
            x_stride,
            residual_stride,
            sum_stride,
            q_stride,
            y_stride,
            scale_rows,
            b_weight,
            eps,
            least_amax,
            BLOCK_ROW,
            BLOCK_COL,
            ALIGNMENT,
            HAS_COLUMN_MASK,
            SCALING,
            GROUP,
            LARGEST,
            ROUNDS_PRODUCT,
            ROUNDS_NORM,
            HAS_RESIDUAL,
            ROUNDS_SUM,
            HAS_Y,
            HAS_RSTD,
            COLUMN_MAJOR,
        )
        if HAS_AMAX:
            b_most = tl.maximum(b_most, b_bits)
    if HAS_AMAX:
        end_amax(amax_ptr, tl.max(b_most, axis=0), ATOMIC)


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

    With `amax` as an output those of `with_amax`: nothing depends on the order of programs, and the caller clears
    nothing. Of a tensor that is scaled as a whole, what quantizes comes after these.

    Args:
        launch: from `resolve`.
        problem: rows, hidden, dtype and variant.
        tensors: as `buffers` of the spec lists them; last dimension contiguous, row strides of `x`, `residual`, `sum`,
            `q` and `y` free. Scales are contiguous.
        workspace: a float32 element per program where `launch` asks for it.
        eps: added to the mean square.
        offset: added to the weight, in float32.
        least_amax: least divisor of scales that are computed: a row of zeros has no magnitude.
    """
    work = work_of(problem)
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
    options = _options(launch, problem, work)
    kernel, grid = _quantize_kernel, (launch.grid,)
    if launch.slice_col:
        kernel, grid = quantize_parts_kernel, (launch.grid, triton.cdiv(problem.hidden, launch.slice_col))  # type: ignore[assignment]
    elif launch.chunks:
        kernel = quantize_split_kernel
    elif launch.looped:
        kernel = _quantize_persistent_kernel
    args = (*before, workspace if launch.finish == "reduce" else amax, *after)
    if work.scaling != "tensor":
        return with_amax(launch, work, KernelCall(kernel, grid, args, options), amax, workspace)
    measuring = options | {"SCALING": "amax", "HAS_Y": False, "HAS_RSTD": False}
    quantizing = options | {"HAS_AMAX": False, "ATOMIC": False}
    measured = with_amax(launch, work, KernelCall(kernel, grid, args, measuring), amax, workspace)
    return (*measured, KernelCall(kernel, grid, (*before, amax, *after), quantizing))


def _options(launch: Launch, problem: Problem, work: Work) -> dict[str, Any]:
    options: dict[str, Any] = {
        "BLOCK_COL": launch.block_col,
        "ALIGNMENT": launch.alignment,
        "HAS_COLUMN_MASK": launch.column_mask,
        "SCALING": work.scaling,
        "GROUP": min(BLOCK, launch.block_col),
        "LARGEST": work.largest,
        "ROUNDS_PRODUCT": work.rounds_product,
        "ROUNDS_NORM": work.rounds_norm,
        "HAS_RESIDUAL": work.has_residual,
        "ROUNDS_SUM": work.rounds_sum,
        "HAS_Y": work.has_y,
        "HAS_RSTD": work.has_rstd,
        "COLUMN_MAJOR": work.is_column_major,
        "HAS_AMAX": work.has_amax,
        "ATOMIC": launch.finish == "atomic",
        "num_warps": launch.num_warps,
    }
    if launch.chunks:
        row, itemsize = launch.chunks * launch.block_col, ITEMSIZE[problem.dtype]
        is_held = row * itemsize > _MAX_READ_AGAIN_BYTES
        if work.has_residual:
            is_held = row * (itemsize if work.rounds_sum else 4) <= _MAX_SUM_BYTES
        holds_norm = work.scaling == "row" and 4 * row <= MAX_HELD_BYTES
        return options | {"CHUNKS": launch.chunks, "IS_HELD": is_held or holds_norm, "NORM_IS_HELD": holds_norm}
    if launch.slice_col:
        return options | {"PART_COL": launch.slice_col}
    options["BLOCK_ROW"] = launch.block_row
    return options | {"NUM_STAGES": launch.num_stages} if launch.looped else options
