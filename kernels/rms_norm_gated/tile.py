"""Shared parts of the gated RMSNorm kernels: rows of any strides, the gate, the elementwise gradients.

In and out: values inside a kernel. Each function is inlined at its call. Part of the kernels' fingerprint.

Memory is (outer, inner, groups, hidden): a row is a pair of `outer` and `inner`, each with a stride of its own, as
heads of a projection that also holds other tensors; each group of a row has its own mean square and its own columns of
the weight. A program works on one group, so that its weight and the sums of its gradient stay in registers.
"""

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import extent


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
