"""Shared parts of the forward kernels: a tile of x or of a sum, its rstd and its result, with optional roundings.

In and out: values inside a kernel. Each function is inlined. Part of the kernels' fingerprint.
"""

from collections import namedtuple

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import extent, load_tile, load_weight, store_tile

# The run-time arguments of the forward kernel as one value.
Arguments = namedtuple(
    "Arguments",
    "x_ptr weight_ptr y_ptr rstd_ptr residual_ptr s_ptr rows hidden x_stride y_stride residual_stride s_stride "
    "eps offset",
)
# Compile-time choices: whether rstd is stored, a row in chunks stays in registers, and what is rounded.
Modes = namedtuple("Modes", "stores_rstd holds_row rounds_sum rounds_product rounds_statistics")

# Integer arguments on which the forward kernels are not specialised.
RUNTIME = ["rows", "hidden", "x_stride", "y_stride", "residual_stride", "s_stride"]


@triton.jit
def rounded(value, ptr, IS_ROUNDED: tl.constexpr):
    """A float32 value; with `IS_ROUNDED`, rounded to the element type of `ptr`."""
    if IS_ROUNDED:
        value = tl.cast(tl.cast(value, ptr.dtype.element_ty), tl.float32)  # scalars are Python's in the interpreter
    return value


@triton.jit
def load_scale(weight_ptr, o_col, m_col, offset, y_ptr, ROUNDS_STATISTICS: tl.constexpr):
    """(columns,) float32 of weight + offset."""
    b_weight = load_weight(weight_ptr, o_col, m_col, rounded(offset, y_ptr, ROUNDS_STATISTICS))
    return rounded(b_weight, y_ptr, ROUNDS_STATISTICS)


@triton.jit
def load_sum(args, s_x, o_row, o_col, mask, ALIGNMENT: tl.constexpr, MODES: tl.constexpr, STORE_SUM: tl.constexpr):
    """(rows, columns) float32 of x, or of s = x + residual, which is stored as well."""
    b_x = load_tile(args.x_ptr, s_x, o_row, o_col, mask)
    if args.residual_ptr is not None:
        b_x += load_tile(args.residual_ptr, extent(args.residual_stride, ALIGNMENT), o_row, o_col, mask)
        if STORE_SUM:
            store_tile(args.s_ptr, extent(args.s_stride, ALIGNMENT), o_row, o_col, mask, b_x)
        b_x = rounded(b_x, args.s_ptr, MODES.rounds_sum)
    return b_x


@triton.jit
def rstd_of(b_x, y_ptr, hidden, eps, ROUNDS_STATISTICS: tl.constexpr):
    """(rows,) float32 of whole rows."""
    b_square = rounded(b_x * b_x, y_ptr, ROUNDS_STATISTICS)
    return tl.rsqrt(tl.sum(b_square, axis=1) / hidden + rounded(eps, y_ptr, ROUNDS_STATISTICS))


@triton.jit
def scaled(b_x, b_rstd, b_weight, y_ptr, ROUNDS_PRODUCT: tl.constexpr):
    """(rows, columns) float32 of y."""
    return rounded(b_x * b_rstd[:, None], y_ptr, ROUNDS_PRODUCT) * b_weight[None, :]
