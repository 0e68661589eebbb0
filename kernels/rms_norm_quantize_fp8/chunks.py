"""A row in chunks: normalized and quantized by one program.

In: pointers. Out: as in `kernels`. A row scale takes a third pass over the chunks: over the norm where that stays in
registers, else over x. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

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
from normtune.kernels.tiles.tile import columns, extent, load_weight, row_block


@triton.jit
def _read(
    p_x,
    p_residual,
    o_col,
    m_col,
    IS_HELD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
):
    """A chunk of what is normalized: x in its dtype, or its sum with the residual, float32 unless it is rounded."""
    if IS_HELD:
        b_read = tl.load(p_x + o_col, mask=m_col, other=0.0)
    else:
        b_read = tl.load(p_x + o_col, mask=m_col, other=0.0, eviction_policy="evict_last")
    if HAS_RESIDUAL:
        if IS_HELD:
            b_add = tl.load(p_residual + o_col, mask=m_col, other=0.0)
        else:
            b_add = tl.load(p_residual + o_col, mask=m_col, other=0.0, eviction_policy="evict_last")
        b_read = b_read.to(tl.float32) + b_add.to(tl.float32)
        if ROUNDS_SUM:
            b_read = b_read.to(p_x.dtype.element_ty)
    return b_read


@triton.jit
def _chunk(
    p_x,
    p_residual,
    o_col,
    m_col,
    t_x,
    i_chunk: tl.constexpr,
    IS_HELD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROUNDS_SUM: tl.constexpr,
):
    """A chunk of what is normalized, float32: out of the registers, or again out of the cache."""
    if IS_HELD:  # noqa: SIM108
        b_read = t_x[i_chunk]
    else:
        b_read = _read(p_x, p_residual, o_col, m_col, IS_HELD, HAS_RESIDUAL, ROUNDS_SUM)
    return b_read.to(tl.float32)


@triton.jit(do_not_specialize=RUNTIME)
def quantize_split_kernel(
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
    CHUNKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    IS_HELD: tl.constexpr,
    NORM_IS_HELD: tl.constexpr,
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
    """One row a program; arguments as in `kernels`.

    IS_HELD: whether what is read stays in registers between its uses. NORM_IS_HELD: the same of a norm before its row
    scale is known.
    """
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    Q_DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    COUNT: tl.constexpr = BLOCK_COL // GROUP
    n_col = extent(hidden, ALIGNMENT)
    i_row = tl.program_id(0).to(tl.int64)
    p_x = x_ptr + i_row * extent(x_stride, ALIGNMENT)
    p_residual = residual_ptr
    if HAS_RESIDUAL:
        p_residual += i_row * extent(residual_stride, ALIGNMENT)
    p_q = q_ptr + i_row * extent(q_stride, ALIGNMENT)
    b_square = tl.zeros([BLOCK_COL], dtype=tl.float32)
    t_x = ()  # Triton adds tuples, but does not unpack them
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        b_read = _read(p_x, p_residual, o_col, m_col, IS_HELD, HAS_RESIDUAL, ROUNDS_SUM)
        if HAS_RESIDUAL and SCALING != "amax":
            tl.store(sum_ptr + i_row * extent(sum_stride, ALIGNMENT) + o_col, b_read.to(DTYPE), mask=m_col)
        t_x = t_x + (b_read,)  # noqa: RUF005
        b_x = b_read.to(tl.float32)
        b_square += b_x * b_x
    b_rstd = tl.rsqrt(tl.sum(b_square, axis=0) / hidden + eps)
    if HAS_RSTD:
        tl.store(rstd_ptr + i_row, b_rstd)
    b_most = tl.zeros([BLOCK_COL], dtype=tl.int32)
    t_norm = ()
    if SCALING == "row":
        for i_chunk in tl.static_range(CHUNKS):
            o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
            b_weight = load_weight(weight_ptr, o_col, m_col, offset)
            b_x = _chunk(p_x, p_residual, o_col, m_col, t_x, i_chunk, IS_HELD, HAS_RESIDUAL, ROUNDS_SUM)
            b_norm = norm(b_x, b_rstd, b_weight, DTYPE, ROUNDS_PRODUCT, ROUNDS_NORM)
            b_most = tl.maximum(b_most, magnitude(b_norm))
            if NORM_IS_HELD:
                t_norm = t_norm + (b_norm,)  # noqa: RUF005
        b_scale = scale_of(tl.max(b_most, axis=0), least_amax, LARGEST)
        tl.store(scale_ptr + i_row, b_scale)
    elif SCALING == "tensor":
        b_scale = scale_of_tensor(amax_ptr, scale_ptr, least_amax, LARGEST)
    elif SCALING == "static":
        b_scale = tl.load(scale_ptr)
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * BLOCK_COL, n_col, BLOCK_COL, HAS_COLUMN_MASK)
        if NORM_IS_HELD:
            b_norm = t_norm[i_chunk]
        else:
            b_weight = load_weight(weight_ptr, o_col, m_col, offset)
            b_x = _chunk(p_x, p_residual, o_col, m_col, t_x, i_chunk, IS_HELD, HAS_RESIDUAL, ROUNDS_SUM)
            b_norm = norm(b_x, b_rstd, b_weight, DTYPE, ROUNDS_PRODUCT, ROUNDS_NORM)
        if HAS_Y:
            tl.store(y_ptr + i_row * extent(y_stride, ALIGNMENT) + o_col, b_norm.to(DTYPE), mask=m_col)
        if HAS_AMAX:
            b_most = tl.maximum(b_most, magnitude(b_norm))
        if SCALING == "block":
            b_groups = tl.reshape(b_norm, [1, COUNT, GROUP])
            b_scales = scale_of(tl.max(magnitude(b_groups), axis=2), least_amax, LARGEST)
            o_row, m_row = row_block(tl.program_id(0), rows, 1)
            store_blocks(
                scale_ptr,
                b_scales,
                i_chunk * COUNT,
                tl.cdiv(n_col, GROUP),
                o_row,
                m_row,
                rows,
                scale_rows,
                COUNT,
                COLUMN_MAJOR,
            )
            b_q = tl.reshape(quantized(b_groups, b_scales[:, :, None], Q_DTYPE, LARGEST), [BLOCK_COL])
        elif SCALING != "amax":
            b_q = quantized(b_norm, b_scale, Q_DTYPE, LARGEST)
        if SCALING != "amax":
            tl.store(p_q + o_col, b_q, mask=m_col)
    if HAS_AMAX:
        end_amax(amax_ptr, tl.max(b_most, axis=0), ATOMIC)
