"""RMSNorm of the query and key heads of a fused QKV tensor, and the rotation of the norm.

    n = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) over a head, rounded to the dtype
    y1 = n1 * cos - n2 * sin, y2 = n2 * cos + n1 * sin for each pair of rotated elements, y = n for the others

In: a launch and tensors. Out: the kernel calls. All arithmetic is in float32. A program holds whole heads, of one token
or of neighbouring ones: no sum crosses programs.

Traffic of a perfect kernel: read and write the query and key heads of each token, out of place the value heads too;
read two weights and, for each token, a position and a row of both tables.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.mode import Product
from normtune.kernels.problem import Problem
from normtune.kernels.qk_norm.launch import HeadsLaunch
from normtune.kernels.qk_norm.modes import Positions, Rotary, RotationProducts, Tables, heads_of
from normtune.kernels.qk_norm.tile import (
    head_block,
    head_offsets,
    head_weight,
    load_pairs,
    load_table,
    normalized,
    product,
    store_pairs,
)
from normtune.kernels.tiles.tile import extent

_RUNTIME = ["tokens", "hidden", "heads", "heads_q", "heads_qk", "x_stride", "y_stride", "cos_stride", "sin_stride"]
# A grid has at most so many programs in its first dimension; further ones make a second.
_MOST_PROGRAMS = 2**30


@triton.jit
def _normalize_heads(
    i_block,
    x_ptr,
    weight_q_ptr,
    weight_k_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    y_ptr,
    tokens,
    hidden,
    heads,
    heads_q,
    heads_qk,
    x_stride,
    y_stride,
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
    HAS_OTHERS: tl.constexpr,
    IS_NEOX: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_ROTATION: tl.constexpr,
):
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    o_token, o_head, m_row = head_block(i_block, tokens, heads, BLOCK_ROW)
    p_x = x_ptr + head_offsets(o_token, o_head, x_stride, hidden, ALIGNMENT)
    p_y = y_ptr + head_offsets(o_token, o_head, y_stride, hidden, ALIGNMENT)
    # A weight is read for each head, not once a tile: it then has the tile's layout, without a way over shared memory.
    m_q = o_head < heads_q
    m_k = (o_head >= heads_q) & (o_head < heads_qk)
    p_q = weight_q_ptr + tl.zeros([BLOCK_ROW, 1], dtype=tl.int32)
    p_k = weight_k_ptr + tl.zeros([BLOCK_ROW, 1], dtype=tl.int32)
    b_is_other = o_head >= heads_qk
    b_square = tl.zeros([BLOCK_ROW], dtype=tl.float32)
    if ROTARY > 0:
        b_x1, b_x2 = load_pairs(p_x, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
        b_square += tl.sum(
            b_x1.to(tl.float32) * b_x1.to(tl.float32) + b_x2.to(tl.float32) * b_x2.to(tl.float32), axis=1
        )
    if BLOCK_REST > 0:
        o_rest = tl.arange(0, BLOCK_REST)[None, :]
        m_rest = tl.full([1, BLOCK_REST], True, tl.int1)
        if HAS_REST_MASK:
            m_rest = o_rest < extent(hidden, ALIGNMENT) - ROTARY
        b_rest = tl.load(p_x + ROTARY + o_rest, mask=m_row & m_rest, other=0.0)
        b_square += tl.sum(b_rest.to(tl.float32) * b_rest.to(tl.float32), axis=1)
    b_rstd = tl.rsqrt(b_square / hidden + eps)[:, None]
    if BLOCK_REST > 0:
        b_q = tl.load(p_q + ROTARY + o_rest, mask=m_q & m_rest, other=0.0)
        b_k = tl.load(p_k + ROTARY + o_rest, mask=m_k & m_rest, other=0.0)
        b_y = normalized(b_rest, b_rstd, head_weight(m_q, b_q, b_k, offset), DTYPE, ROUNDS_PRODUCT).to(DTYPE)
        if HAS_OTHERS:
            b_y = tl.where(b_is_other, b_rest, b_y)
        tl.store(p_y + ROTARY + o_rest, b_y, mask=m_row & m_rest)
    if ROTARY > 0:
        b_q1, b_q2 = load_pairs(p_q, m_q, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
        b_k1, b_k2 = load_pairs(p_k, m_k, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)
        b_n1 = normalized(b_x1, b_rstd, head_weight(m_q, b_q1, b_k1, offset), DTYPE, ROUNDS_PRODUCT)
        b_n2 = normalized(b_x2, b_rstd, head_weight(m_q, b_q2, b_k2, offset), DTYPE, ROUNDS_PRODUCT)
        o_position = o_token
        if HAS_POSITIONS:
            o_position = tl.load(positions_ptr + o_token, mask=m_row, other=0).to(tl.int64)
        p_cos = cos_ptr + o_position * extent(cos_stride, ALIGNMENT)
        p_sin = sin_ptr + o_position * extent(sin_stride, ALIGNMENT)
        b_cos1, b_cos2 = load_table(p_cos, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX, IS_WHOLE)
        b_sin1, b_sin2 = load_table(p_sin, m_row, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX, IS_WHOLE)
        b_y1 = product(b_n1, b_cos1, DTYPE, ROUNDS_ROTATION) - product(b_n2, b_sin1, DTYPE, ROUNDS_ROTATION)
        b_y2 = product(b_n2, b_cos2, DTYPE, ROUNDS_ROTATION) + product(b_n1, b_sin2, DTYPE, ROUNDS_ROTATION)
        b_y1 = b_y1.to(DTYPE)
        b_y2 = b_y2.to(DTYPE)
        if HAS_OTHERS:
            b_y1 = tl.where(b_is_other, b_x1, b_y1)
            b_y2 = tl.where(b_is_other, b_x2, b_y2)
        store_pairs(p_y, m_row, b_y1, b_y2, BLOCK_ROW, ROTARY, BLOCK_PAIR, IS_NEOX)


@triton.jit(do_not_specialize=_RUNTIME)
def _qk_norm_kernel(
    x_ptr,
    weight_q_ptr,
    weight_k_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    y_ptr,
    tokens,
    hidden,
    heads,
    heads_q,
    heads_qk,
    x_stride,
    y_stride,
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
    HAS_OTHERS: tl.constexpr,
    IS_NEOX: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
    ROUNDS_ROTATION: tl.constexpr,
    IS_LOOPED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    if IS_LOOPED:
        blocks = tl.cdiv(tokens.to(tl.int64) * heads, BLOCK_ROW)
        for i_block in tl.range(tl.program_id(0).to(tl.int64), blocks, tl.num_programs(0), num_stages=NUM_STAGES):
            _normalize_heads(
                *(i_block, x_ptr, weight_q_ptr, weight_k_ptr, cos_ptr, sin_ptr, positions_ptr, y_ptr),
                *(tokens, hidden, heads, heads_q, heads_qk, x_stride, y_stride, cos_stride, sin_stride, eps, offset),
                *(BLOCK_ROW, ROTARY, BLOCK_PAIR, BLOCK_REST, ALIGNMENT, HAS_REST_MASK, HAS_POSITIONS, HAS_OTHERS),
                *(IS_NEOX, IS_WHOLE, ROUNDS_PRODUCT, ROUNDS_ROTATION),
            )
    else:
        i_block = tl.program_id(0).to(tl.int64) + tl.program_id(1).to(tl.int64) * tl.num_programs(0)
        _normalize_heads(
            *(i_block, x_ptr, weight_q_ptr, weight_k_ptr, cos_ptr, sin_ptr, positions_ptr, y_ptr),
            *(tokens, hidden, heads, heads_q, heads_qk, x_stride, y_stride, cos_stride, sin_stride, eps, offset),
            *(BLOCK_ROW, ROTARY, BLOCK_PAIR, BLOCK_REST, ALIGNMENT, HAS_REST_MASK, HAS_POSITIONS, HAS_OTHERS),
            *(IS_NEOX, IS_WHOLE, ROUNDS_PRODUCT, ROUNDS_ROTATION),
        )


def calls(
    launch: HeadsLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel call of one problem.

    Args:
        launch: from `resolve`.
        problem: rows are tokens, hidden is the length of a head.
        tensors: those of the spec's `buffers`, contiguous in the last dimension. Positions are not checked: each must
            be a row of the tables.
        workspace: not read.
        eps: added to the mean square.
        offset: added to the weights, in float32.
    """
    heads = heads_of(problem)
    rounds_rotation = heads.rotary > 0 and RotationProducts.of(problem) is RotationProducts.ROUNDED
    x, cos, sin = tensors["qkv"], tensors.get("cos"), tensors.get("sin")
    y = tensors.get("out", x)
    args = (
        *(x, tensors["weight_q"], tensors["weight_k"], cos, sin, tensors.get("positions"), y),
        *(problem.rows, problem.hidden, heads.written, heads.heads_q, heads.heads_q + heads.heads_k),
        *(x.stride(0), y.stride(0), *(0 if table is None else table.stride(0) for table in (cos, sin)), eps, offset),
    )
    options = {
        "BLOCK_ROW": launch.block_row,
        "ROTARY": launch.rotary,
        "BLOCK_PAIR": launch.block_pair,
        "BLOCK_REST": launch.block_rest,
        "ALIGNMENT": launch.alignment,
        "HAS_REST_MASK": launch.has_rest_mask,
        "HAS_POSITIONS": Positions.of(problem) is Positions.GIVEN,
        "HAS_OTHERS": heads.written > heads.heads_q + heads.heads_k,
        "IS_NEOX": Rotary.of(problem) is Rotary.NEOX,
        "IS_WHOLE": Tables.of(problem) is Tables.ELEMENTS,
        "ROUNDS_PRODUCT": Product.of(problem) is Product.ROUNDED,
        "ROUNDS_ROTATION": rounds_rotation,
        "IS_LOOPED": launch.looped,
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }
    if rounds_rotation:  # a product of 16-bit numbers would be fused with the sum, and its rounding lost
        options["enable_fp_fusion"] = False
    grid = (min(launch.grid, _MOST_PROGRAMS), -(-launch.grid // _MOST_PROGRAMS))
    return (KernelCall(_qk_norm_kernel, grid, args, options),)
