"""Gradients of RMSNorm of heads and of their rotation, all arithmetic in float32.

With dn the gradient dy rotated back, xhat = x * rstd, g = dn * (weight + offset) and m a mean over a head:
    dn1 = dy1 * cos + dy2 * sin, dn2 = dy2 * cos - dy1 * sin        dx = rstd * (g - xhat * m(g * xhat))
    dweight = sum over the heads of a kind, of all tokens, of dn * xhat
Gradients are those of the function without roundings. Value heads keep dy.

In: a launch and tensors. Out: the kernel calls. A fixed grid strides over blocks of heads. A program keeps its part of
both weight gradients in registers and writes it once, in float32, to its row of a workspace, which a second kernel sums
in a fixed order, so that the bits are always the same. rstd is computed again, since a program holds whole heads.

Traffic of a perfect kernel: read the heads of dout and qkv, write those of dqkv; two weights and their gradients and,
for each token, a position and a row of both tables.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.problem import Problem
from normtune.kernels.qk_norm.launch import HeadsLaunch
from normtune.kernels.qk_norm.modes import Positions, Rotary, Tables, heads_of
from normtune.kernels.qk_norm.tile import head_block, head_offsets, head_weight, load_pairs, load_table, store_pairs
from normtune.kernels.tiles.launch import Launch
from normtune.kernels.tiles.partial_sums import reduction
from normtune.kernels.tiles.tile import extent

_RUNTIME = [
    *("tokens", "hidden", "heads", "heads_q", "heads_qk"),
    *("dout_stride", "x_stride", "dx_stride", "cos_stride", "sin_stride"),
]


@triton.jit
def _back(b_dy, b_xhat, b_rstd, b_mean, b_weight):
    """The gradient of x, given that of the norm."""
    return b_rstd * (b_dy * b_weight - b_xhat * b_mean)


@triton.jit(do_not_specialize=_RUNTIME)
def _qk_norm_backward_kernel(
    dout_ptr,
    x_ptr,
    weight_q_ptr,
    weight_k_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    dx_ptr,
    partial_ptr,
    tokens,
    hidden,
    heads,
    heads_q,
    heads_qk,
    dout_stride,
    x_stride,
    dx_stride,
    cos_stride,
    sin_stride,
    eps,
    offset,
    BLOCK_ROW: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_PAIR: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_REST_MASK: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    IS_NEOX: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    DTYPE: tl.constexpr = dx_ptr.dtype.element_ty
    # The sums over a tile's heads follow the loop: inside, they would cross warps once per tile.
    if ROTARY > 0:
        b_dq1 = tl.zeros([BLOCK_ROW, BLOCK_PAIR], dtype=tl.float32)
        b_dq2 = tl.zeros([BLOCK_ROW, BLOCK_PAIR], dtype=tl.float32)
        b_dk1 = tl.zeros([BLOCK_ROW, BLOCK_PAIR], dtype=tl.float32)
        b_dk2 = tl.zeros([BLOCK_ROW, BLOCK_PAIR], dtype=tl.float32)
    if BLOCK_REST > 0:
        b_dq = tl.zeros([BLOCK_ROW, BLOCK_REST], dtype=tl.float32)
        b_dk = tl.zeros([BLOCK_ROW, BLOCK_REST], dtype=tl.float32)
        o_rest = tl.arange(0, BLOCK_REST)[None, :]
        m_rest = tl.full([1, BLOCK_REST], True, tl.int1)
        if HAS_REST_MASK:
            m_rest = o_rest < extent(hidden, ALIGNMENT) - ROTARY
    blocks = tl.cdiv(tokens.to(tl.int64) * heads, BLOCK_ROW)
    for i_block in tl.range(tl.program_id(0).to(tl.int64), blocks, tl.num_programs(0), num_stages=NUM_STAGES):
        o_token, o_head, m_row = head_block(i_block, tokens, heads, BLOCK_ROW)
        p_dout = dout_ptr + head_offsets(o_token, o_head, dout_stride, hidden, ALIGNMENT)
        p_x = x_ptr + head_offsets(o_token, o_head, x_stride, hidden, ALIGNMENT)
        p_dx = dx_ptr + head_offsets(o_token, o_head, dx_stride, hidden, ALIGNMENT)
        m_q = m_row & (o_head < heads_q)
        m_k = m_row & (o_head >= heads_q) & (o_head < heads_qk)
        b_is_other = o_head >= heads_qk
        p_q = weight_q_ptr + tl.zeros([BLOCK_ROW, 1], dtype=tl.int32)
        p_k = weight_k_ptr + tl.zeros([BLOCK_ROW, 1], dtype=tl.int32)
        b_square = tl.zeros([BLOCK_ROW], dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_ROW], dtype=tl.float32)
        if ROTARY > 0:
            b_x1, b_x2 = load_pairs(p_x, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
            b_g1, b_g2 = load_pairs(p_dout, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
            b_q1, b_q2 = load_pairs(p_q, m_q, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
            b_k1, b_k2 = load_pairs(p_k, m_k, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
            b_w1 = head_weight(m_q, b_q1, b_k1, offset)
            b_w2 = head_weight(m_q, b_q2, b_k2, offset)
            o_position = o_token
            if HAS_POSITIONS:
                o_position = tl.load(positions_ptr + o_token, mask=m_row, other=0).to(tl.int64)
            p_cos = cos_ptr + o_position * extent(cos_stride, ALIGNMENT)
            p_sin = sin_ptr + o_position * extent(sin_stride, ALIGNMENT)
            b_cos1, b_cos2 = load_table(p_cos, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX, IS_WHOLE)
            b_sin1, b_sin2 = load_table(p_sin, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX, IS_WHOLE)
            b_dn1 = b_g1.to(tl.float32) * b_cos1 + b_g2.to(tl.float32) * b_sin2
            b_dn2 = b_g2.to(tl.float32) * b_cos2 - b_g1.to(tl.float32) * b_sin1
            b_wide1 = b_x1.to(tl.float32)
            b_wide2 = b_x2.to(tl.float32)
            b_square += tl.sum(b_wide1 * b_wide1 + b_wide2 * b_wide2, axis=1)
        if BLOCK_REST > 0:
            b_wide = tl.load(p_x + ROTARY + o_rest, mask=m_row & m_rest, other=0.0).to(tl.float32)
            b_g = tl.load(p_dout + ROTARY + o_rest, mask=m_row & m_rest, other=0.0)
            b_q = tl.load(p_q + ROTARY + o_rest, mask=m_q & m_rest, other=0.0)
            b_k = tl.load(p_k + ROTARY + o_rest, mask=m_k & m_rest, other=0.0)
            b_w = head_weight(m_q, b_q, b_k, offset)
            b_dn = b_g.to(tl.float32)
            b_square += tl.sum(b_wide * b_wide, axis=1)
        b_rstd = tl.rsqrt(b_square / hidden + eps)[:, None]
        if ROTARY > 0:
            b_xhat1 = b_wide1 * b_rstd
            b_xhat2 = b_wide2 * b_rstd
            b_sum += tl.sum(b_dn1 * b_w1 * b_xhat1 + b_dn2 * b_w2 * b_xhat2, axis=1)
        if BLOCK_REST > 0:
            b_xhat = b_wide * b_rstd
            b_sum += tl.sum(b_dn * b_w * b_xhat, axis=1)
        b_mean = (b_sum / hidden)[:, None]
        if ROTARY > 0:
            b_dx1 = tl.where(b_is_other, b_g1, _back(b_dn1, b_xhat1, b_rstd, b_mean, b_w1).to(DTYPE))
            b_dx2 = tl.where(b_is_other, b_g2, _back(b_dn2, b_xhat2, b_rstd, b_mean, b_w2).to(DTYPE))
            store_pairs(p_dx, m_row, b_dx1, b_dx2, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
            if HAS_DWEIGHT:
                b_dq1 += tl.where(m_q, b_dn1 * b_xhat1, 0.0)
                b_dq2 += tl.where(m_q, b_dn2 * b_xhat2, 0.0)
                b_dk1 += tl.where(m_k, b_dn1 * b_xhat1, 0.0)
                b_dk2 += tl.where(m_k, b_dn2 * b_xhat2, 0.0)
        if BLOCK_REST > 0:
            b_dx = tl.where(b_is_other, b_g, _back(b_dn, b_xhat, b_rstd, b_mean, b_w).to(DTYPE))
            tl.store(p_dx + ROTARY + o_rest, b_dx, mask=m_row & m_rest)
            if HAS_DWEIGHT:
                b_dq += tl.where(m_q, b_dn * b_xhat, 0.0)
                b_dk += tl.where(m_k, b_dn * b_xhat, 0.0)
    if HAS_DWEIGHT:
        n_col = extent(hidden, ALIGNMENT)
        p_dq = partial_ptr + 2 * tl.program_id(0).to(tl.int64) * n_col + tl.zeros([1, 1], dtype=tl.int32)
        p_dk = p_dq + n_col
        m_all = tl.full([1, 1], True, tl.int1)
        if ROTARY > 0:
            b_sum1 = tl.sum(b_dq1, axis=0)[None, :]
            b_sum2 = tl.sum(b_dq2, axis=0)[None, :]
            store_pairs(p_dq, m_all, b_sum1, b_sum2, 1, ROTARY, BLOCK_PAIR, IS_NEOX)
            b_sum1 = tl.sum(b_dk1, axis=0)[None, :]
            b_sum2 = tl.sum(b_dk2, axis=0)[None, :]
            store_pairs(p_dk, m_all, b_sum1, b_sum2, 1, ROTARY, BLOCK_PAIR, IS_NEOX)
        if BLOCK_REST > 0:
            tl.store(p_dq + ROTARY + o_rest, tl.sum(b_dq, axis=0)[None, :], mask=m_rest)
            tl.store(p_dk + ROTARY + o_rest, tl.sum(b_dk, axis=0)[None, :], mask=m_rest)


def calls(
    launch: HeadsLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one backward: the main kernel and, with weight gradients, the reduction of partial sums.

    Args:
        launch: from `resolve_backward`.
        problem: rows are tokens, hidden is the length of a head.
        tensors: those of the spec's `buffers`, contiguous in the last dimension; `dweights` contiguous.
        workspace: `launch.workspace` float32 elements or more; not read if that is 0.
        eps: added to the mean square.
        offset: added to the weights, in float32.
    """
    heads = heads_of(problem)
    dout, x, dx, cos, sin = (tensors.get(name) for name in ("dout", "qkv", "dqkv", "cos", "sin"))
    assert dout is not None and x is not None and dx is not None
    has_dweight = launch.workspace > 0
    args = (
        *(dout, x, tensors["weight_q"], tensors["weight_k"], cos, sin, tensors.get("positions"), dx),
        workspace if has_dweight else None,
        *(problem.rows, problem.hidden, heads.written, heads.heads_q, heads.heads_q + heads.heads_k),
        *(
            dout.stride(0),
            x.stride(0),
            dx.stride(0),
            *(0 if table is None else table.stride(0) for table in (cos, sin)),
        ),
        *(eps, offset),
    )
    options = {
        "BLOCK_ROW": launch.block_row,
        "ROTARY": launch.rotary,
        "BLOCK_PAIR": launch.block_pair,
        "BLOCK_REST": launch.block_rest,
        "ALIGNMENT": launch.alignment,
        "HAS_REST_MASK": launch.has_rest_mask,
        "HAS_POSITIONS": Positions.of(problem) is Positions.GIVEN,
        "HAS_DWEIGHT": has_dweight,
        "IS_NEOX": Rotary.of(problem) is Rotary.NEOX,
        "IS_WHOLE": Tables.of(problem) is Tables.ELEMENTS,
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }
    main = KernelCall(_qk_norm_backward_kernel, (launch.grid,), args, options)
    if not has_dweight:
        return (main,)
    ending = Launch(False, launch.grid, 1, 1, 1, 1, launch.alignment, False, launch.workspace, "reduce")
    return (main, reduction(ending, 2 * problem.hidden, workspace, tensors["dweights"]))
