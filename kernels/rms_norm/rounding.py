"""What the forward kernels round to the dtype on the way, as the variant says.

In and out: values inside a kernel. Each function is inlined at its call. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import load_weight


@triton.jit
def rounded(value, ptr, IS_ROUNDED: tl.constexpr):
    """A float32 value, rounded to the element type of `ptr` where asked for."""
    if IS_ROUNDED:
        value = tl.cast(tl.cast(value, ptr.dtype.element_ty), tl.float32)  # scalars are Python's in the interpreter
    return value


@triton.jit
def load_scale(weight_ptr, o_col, m_col, offset, y_ptr, ROUNDS_STATISTICS: tl.constexpr):
    """(columns,) float32 of weight + offset."""
    b_weight = load_weight(weight_ptr, o_col, m_col, rounded(offset, y_ptr, ROUNDS_STATISTICS))
    return rounded(b_weight, y_ptr, ROUNDS_STATISTICS)
