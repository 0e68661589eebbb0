"""Device functions of the quantizing kernels: magnitudes, the norm, scales and their storage.

In and out: values inside a kernel. Magnitudes are compared by their bits as integers: the order is the same, and NaN,
which a maximum of floats may lose, is the greatest. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

# Integer arguments on which the kernels are not specialised.
RUNTIME = ["rows", "hidden", "x_stride", "residual_stride", "sum_stride", "q_stride", "y_stride", "scale_rows"]


@triton.jit
def magnitude(b_value):
    """The bits of the absolute value, int32."""
    return b_value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def norm(b_x, b_rstd, b_weight, DTYPE: tl.constexpr, MODES: tl.constexpr):
    """The norm before quantization, float32; the arguments broadcast."""
    b_product = b_x * b_rstd
    if MODES.rounds_product:
        b_product = b_product.to(DTYPE).to(tl.float32)
    b_norm = b_product * b_weight
    if MODES.rounds_norm:
        b_norm = b_norm.to(DTYPE).to(tl.float32)
    return b_norm


@triton.jit
def scale_of(b_bits, least_amax, LARGEST: tl.constexpr):
    """Scales, float32, from the bits of the maxima."""
    b_amax = b_bits.to(tl.float32, bitcast=True)
    b_amax = tl.maximum(b_amax, least_amax, propagate_nan=tl.PropagateNan.ALL)
    return tl.div_rn(b_amax, LARGEST)


@triton.jit
def scale_of_tensor(amax_ptr, scale_ptr, least_amax, LARGEST: tl.constexpr):
    """The scale computed from the amax over all rows; program 0 also writes it."""
    b_scale = scale_of(tl.load(amax_ptr).to(tl.int32, bitcast=True), least_amax, LARGEST)
    if tl.program_id(0) == 0:
        tl.store(scale_ptr, b_scale)
    return b_scale


@triton.jit
def quantized(b_norm, b_scale, Q_DTYPE: tl.constexpr, LARGEST: tl.constexpr):
    """The quantized norm, multiplied by the reciprocal scale: divisions take several times as long."""
    b_scaled = b_norm * tl.div_rn(1.0, b_scale)
    return tl.clamp(b_scaled, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL).to(Q_DTYPE)


@triton.jit
def store_blocks(
    scale_ptr, b_scale, i_first, blocks, o_row, m_row, rows, scale_rows, COUNT: tl.constexpr, COLUMN_MAJOR: tl.constexpr
):
    """Write (rows, COUNT) scales from block `i_first` on; in column-major order also zeros behind the last row."""
    o_block = i_first + tl.arange(0, COUNT).to(tl.int64)
    m_block = o_block < blocks
    mask = m_row[:, None] & m_block[None, :]
    if COLUMN_MAJOR:
        tl.store(scale_ptr + o_block[None, :] * scale_rows + o_row[:, None], b_scale, mask=mask)
        o_pad = rows + tl.arange(0, 4)
        is_last = tl.max(((o_row == rows - 1) & m_row).to(tl.int32), axis=0) > 0
        m_pad = (o_pad < scale_rows)[:, None] & m_block[None, :] & is_last
        tl.store(scale_ptr + o_block[None, :] * scale_rows + o_pad[:, None], 0.0, mask=m_pad)
    else:
        tl.store(scale_ptr + o_row[:, None] * blocks + o_block[None, :], b_scale, mask=mask)


@triton.jit
def end_amax(amax_ptr, b_bits):
    """Make the output the maximum of itself and of a program's maximum, by an atomic operation."""
    tl.atomic_max(amax_ptr.to(tl.pointer_type(tl.int32), bitcast=True), b_bits, sem="relaxed")
