"""RMSNorm of the query and key heads of a fused QKV tensor, the rotation of the norm, and the gradients of both.

    n = x * rstd * (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) over a head, rounded to the dtype
    y1 = n1 * cos - n2 * sin, y2 = n2 * cos + n1 * sin for each pair of rotated elements, y = n for the others

With dn the gradient dy rotated back, xhat = x * rstd, g = dn * (weight + offset) and m a mean over a head:
    dn1 = dy1 * cos + dy2 * sin, dn2 = dy2 * cos - dy1 * sin        dx = rstd * (g - xhat * m(g * xhat))
    dweight = sum over the heads of a kind, of all tokens, of dn * xhat
Gradients are those of the function without roundings. Value heads keep dy.

In: a launch and tensors. Out: the kernel calls. All arithmetic is in float32. A program holds whole heads, of one token
or of neighbouring ones: in a forward no sum crosses programs. A head is read as two tiles with the first and the second
elements of the rotated pairs, which a thread has at the same places, and a tile of the other elements. So each element
is read once, by the thread that writes it, and in place no thread reads what another one has written.

In a backward a fixed grid strides over blocks of heads of one kind: first of all query heads, then of the key heads,
then of the value heads. So a program reads a weight once, keeps its part of one weight gradient in registers, and
writes it, in float32, to its rows of a workspace, which a second kernel sums in a fixed order: the bits are always the
same. rstd is computed again.

Traffic of a perfect forward: read and write the query and key heads of each token, out of place the value heads too;
read two weights and, for each token, a position and a row of both tables. Of a perfect backward: read the heads of dout
and qkv, write those of dqkv; read the same as well, and write two gradients of weights.
"""

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from normtune.kernels.call import KernelCall
from normtune.kernels.mode import Product
from normtune.kernels.problem import Problem
from normtune.kernels.qk_norm.launch import (
    HeadsLaunch,
    Positions,
    Rotary,
    RotationProducts,
    Tables,
    heads_of,
)
from normtune.kernels.tiles.launch import reduce_tile
from normtune.kernels.tiles.partial_sums import sum_call
from normtune.kernels.tiles.tile import extent

# Arguments of both kernels that make no binaries of their own.
_RUNTIME = [
    *("tokens", "hidden", "heads", "heads_q", "heads_qk"),
    *("dout_stride", "x_stride", "y_stride", "dx_stride", "cos_stride", "sin_stride"),
]
# A grid has at most so many programs in its first dimension; further ones make a second.
_MOST_PROGRAMS = 2**30


@triton.jit
def head_block(i_block, tokens, heads, BLOCK_ROW: tl.constexpr):
    """(BLOCK_ROW, 1) tokens, int64, and numbers within the token, int32, of the heads of a block; those that exist."""
    i_first = tl.cast(i_block, tl.int64) * BLOCK_ROW
    i_token = i_first // heads  # once a block: the rest is in 32 bits
    o_in_block = (i_first - i_token * heads).to(tl.int32) + tl.arange(0, BLOCK_ROW)[:, None]
    o_token = i_token + (o_in_block // heads).to(tl.int64)
    return o_token, o_in_block % heads, o_token < tokens


@triton.jit
def head_offsets(o_token, o_head, stride, hidden, ALIGNMENT: tl.constexpr):
    """(BLOCK_ROW, 1) offsets of the first elements of heads in a tensor of tokens that are `stride` apart."""
    return o_token * extent(stride, ALIGNMENT) + o_head.to(tl.int64) * extent(hidden, ALIGNMENT)


@triton.jit
def load_pairs(p_row, m_row, ROWS: tl.constexpr, ROTARY: tl.constexpr, BLOCK: tl.constexpr, IS_NEOX: tl.constexpr):
    """(ROWS, BLOCK) first and second elements of the pairs, in the dtype of memory."""
    HALF: tl.constexpr = ROTARY // 2
    if IS_NEOX:
        o_pair = tl.arange(0, BLOCK)[None, :]
        mask = m_row & (o_pair < HALF)
        return tl.load(p_row + o_pair, mask=mask, other=0.0), tl.load(p_row + HALF + o_pair, mask=mask, other=0.0)
    o_col = tl.arange(0, 2 * BLOCK)[None, :]
    b_both = tl.load(p_row + o_col, mask=m_row & (o_col < ROTARY), other=0.0)
    return tl.split(tl.reshape(b_both, [ROWS, BLOCK, 2]))


@triton.jit
def store_pairs(
    p_row,
    m_row,
    b_first,
    b_second,
    ROWS: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    """Store pairs in the layout of `load_pairs`."""
    HALF: tl.constexpr = ROTARY // 2
    if IS_NEOX:
        o_pair = tl.arange(0, BLOCK)[None, :]
        mask = m_row & (o_pair < HALF)
        tl.store(p_row + o_pair, b_first, mask=mask)
        tl.store(p_row + HALF + o_pair, b_second, mask=mask)
    else:
        o_col = tl.arange(0, 2 * BLOCK)[None, :]
        b_both = tl.reshape(tl.join(b_first, b_second), [ROWS, 2 * BLOCK])
        tl.store(p_row + o_col, b_both, mask=m_row & (o_col < ROTARY))


@triton.jit
def load_table(
    p_row,
    m_row,
    ROWS: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_NEOX: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """(ROWS, BLOCK) values for the first and the second elements of the pairs, float32."""
    if IS_WHOLE:
        b_first, b_second = load_pairs(p_row, m_row, ROWS, ROTARY, BLOCK, IS_NEOX)
        return b_first.to(tl.float32), b_second.to(tl.float32)
    o_pair = tl.arange(0, BLOCK)[None, :]
    b_value = tl.load(p_row + o_pair, mask=m_row & (o_pair < ROTARY // 2), other=0.0).to(tl.float32)
    return b_value, b_value


@triton.jit
def normalized(b_x, b_rstd, b_weight, DTYPE: tl.constexpr, ROUNDS_PRODUCT: tl.constexpr):
    """The norm, rounded to the dtype, as float32."""
    b_xhat = b_x.to(tl.float32) * b_rstd
    if ROUNDS_PRODUCT:
        b_xhat = b_xhat.to(DTYPE).to(tl.float32)
    return (b_xhat * b_weight).to(DTYPE).to(tl.float32)


@triton.jit
def product(b_value, b_factor, DTYPE: tl.constexpr, ROUNDS_ROTATION: tl.constexpr):
    """A term of a rotation."""
    b_product = b_value * b_factor
    if ROUNDS_ROTATION:
        b_product = b_product.to(DTYPE).to(tl.float32)
    return b_product


@triton.jit
def head_weight(m_q, b_q, b_k, offset):
    """(rows, columns) weight + offset, float32: of queries where `m_q`, else of keys."""
    return tl.where(m_q, b_q.to(tl.float32), b_k.to(tl.float32)) + offset


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
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    i_first, blocks, step = 0, 1, 1
    if IS_LOOPED:
        blocks = tl.cdiv(tokens.to(tl.int64) * heads, BLOCK_ROW)
        i_first, step = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    for i_block in tl.range(i_first, blocks, step, num_stages=NUM_STAGES):
        if not IS_LOOPED:
            i_block = tl.program_id(0).to(tl.int64) + tl.program_id(1).to(tl.int64) * tl.num_programs(0)
        o_token, o_head, m_row = head_block(i_block, tokens, heads, BLOCK_ROW)
        p_x = x_ptr + head_offsets(o_token, o_head, x_stride, hidden, ALIGNMENT)
        p_y = y_ptr + head_offsets(o_token, o_head, y_stride, hidden, ALIGNMENT)
        # A weight is read for each head, not once a tile: it then has the tile's layout, without shared memory.
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


@triton.jit
def _load_head(
    p_row,
    m_row,
    o_col,
    n_col,
    ROWS: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK: tl.constexpr,
    RESTS: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    """(ROWS, BLOCK) tiles of heads, all of one layout: of the pairs, if there are any, then of the other elements."""
    t_head = ()
    if ROTARY > 0:
        b_first, b_second = load_pairs(p_row, m_row, ROWS, ROTARY, BLOCK, IS_NEOX)
        t_head = (b_first, b_second)
    for i_rest in tl.static_range(RESTS):
        o_rest = ROTARY + i_rest * BLOCK + o_col
        t_head = t_head + (tl.load(p_row + o_rest, mask=m_row & (o_rest < n_col), other=0.0),)  # noqa: RUF005
    return t_head


@triton.jit
def _store_head(
    p_row,
    m_row,
    o_col,
    n_col,
    t_head,
    ROWS: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK: tl.constexpr,
    RESTS: tl.constexpr,
    IS_NEOX: tl.constexpr,
):
    """Store tiles in the order of `_load_head`."""
    PAIRS: tl.constexpr = 2 if ROTARY > 0 else 0
    if ROTARY > 0:
        store_pairs(p_row, m_row, t_head[0], t_head[1], ROWS, ROTARY, BLOCK, IS_NEOX)
    for i_rest in tl.static_range(RESTS):
        o_rest = ROTARY + i_rest * BLOCK + o_col
        tl.store(p_row + o_rest, t_head[PAIRS + i_rest], mask=m_row & (o_rest < n_col))


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
    BLOCK: tl.constexpr,
    RESTS: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    IS_NEOX: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    DTYPE: tl.constexpr = dx_ptr.dtype.element_ty
    # A head's tiles: both elements of its pairs, then the others.
    PAIRS: tl.constexpr = 2 if ROTARY > 0 else 0
    n_col = extent(hidden, ALIGNMENT)
    o_col = tl.arange(0, BLOCK)[None, :]
    m_one = tl.full([1, 1], True, tl.int1)
    p_q = weight_q_ptr + tl.zeros([1, 1], dtype=tl.int32)
    p_k = weight_k_ptr + tl.zeros([1, 1], dtype=tl.int32)
    # The blocks of all kinds of heads are numbered on, so that the programs of the fixed grid end together.
    i_program = tl.program_id(0).to(tl.int64)
    for i_kind in tl.range(0, 2):
        is_query = i_kind == 0
        i_first = tl.where(is_query, 0, heads_q)
        n_head = tl.where(is_query, heads_q, heads_qk - heads_q)
        blocks = tl.cdiv(tokens.to(tl.int64) * n_head, BLOCK_ROW)
        t_q = _load_head(p_q, m_one, o_col, n_col, 1, ROTARY, BLOCK, RESTS, IS_NEOX)
        t_k = _load_head(p_k, m_one, o_col, n_col, 1, ROTARY, BLOCK, RESTS, IS_NEOX)
        t_weight = ()  # Triton adds tuples, but does not unpack them
        # The sums over a tile's heads follow the loop: inside, they would cross warps once per tile.
        t_dweight = ()
        for i_tile in tl.static_range(PAIRS + RESTS):
            t_weight = t_weight + (head_weight(is_query, t_q[i_tile], t_k[i_tile], offset),)  # noqa: RUF005
            t_dweight = t_dweight + (tl.zeros([BLOCK_ROW, BLOCK], dtype=tl.float32),)  # noqa: RUF005
        for i_block in tl.range(i_program, blocks, tl.num_programs(0), num_stages=NUM_STAGES):
            o_token, o_head, m_row = head_block(i_block, tokens, n_head, BLOCK_ROW)
            o_head += i_first
            p_dout = dout_ptr + head_offsets(o_token, o_head, dout_stride, hidden, ALIGNMENT)
            p_x = x_ptr + head_offsets(o_token, o_head, x_stride, hidden, ALIGNMENT)
            p_dx = dx_ptr + head_offsets(o_token, o_head, dx_stride, hidden, ALIGNMENT)
            t_x = _load_head(p_x, m_row, o_col, n_col, BLOCK_ROW, ROTARY, BLOCK, RESTS, IS_NEOX)
            t_dy = _load_head(p_dout, m_row, o_col, n_col, BLOCK_ROW, ROTARY, BLOCK, RESTS, IS_NEOX)
            t_dn = ()
            if ROTARY > 0:
                o_position = o_token
                if HAS_POSITIONS:
                    o_position = tl.load(positions_ptr + o_token, mask=m_row, other=0).to(tl.int64)
                p_cos = cos_ptr + o_position * extent(cos_stride, ALIGNMENT)
                p_sin = sin_ptr + o_position * extent(sin_stride, ALIGNMENT)
                b_cos1, b_cos2 = load_table(p_cos, m_row, BLOCK_ROW, ROTARY, BLOCK, IS_NEOX, IS_WHOLE)
                b_sin1, b_sin2 = load_table(p_sin, m_row, BLOCK_ROW, ROTARY, BLOCK, IS_NEOX, IS_WHOLE)
                b_dy1 = t_dy[0].to(tl.float32)
                b_dy2 = t_dy[1].to(tl.float32)
                t_dn = (b_dy1 * b_cos1 + b_dy2 * b_sin2, b_dy2 * b_cos2 - b_dy1 * b_sin1)
            for i_tile in tl.static_range(PAIRS, PAIRS + RESTS):
                t_dn = t_dn + (t_dy[i_tile].to(tl.float32),)  # noqa: RUF005
            b_squares = tl.zeros([BLOCK_ROW, BLOCK], dtype=tl.float32)
            b_terms = tl.zeros([BLOCK_ROW, BLOCK], dtype=tl.float32)
            for i_tile in tl.static_range(PAIRS + RESTS):
                b_x = t_x[i_tile].to(tl.float32)
                b_squares += b_x * b_x
                b_terms += t_dn[i_tile] * t_weight[i_tile] * b_x
            b_rstd = tl.rsqrt(tl.sum(b_squares, axis=1) / hidden + eps)
            b_mean = (tl.sum(b_terms, axis=1) * b_rstd / hidden)[:, None]
            b_rstd = b_rstd[:, None]
            t_dx = ()
            t_sums = ()
            for i_tile in tl.static_range(PAIRS + RESTS):
                b_xhat = t_x[i_tile].to(tl.float32) * b_rstd
                b_dx = b_rstd * (t_dn[i_tile] * t_weight[i_tile] - b_xhat * b_mean)
                t_dx = t_dx + (b_dx.to(DTYPE),)  # noqa: RUF005
                t_sums = t_sums + (t_dweight[i_tile] + t_dn[i_tile] * b_xhat,)  # noqa: RUF005
            _store_head(p_dx, m_row, o_col, n_col, t_dx, BLOCK_ROW, ROTARY, BLOCK, RESTS, IS_NEOX)
            if HAS_DWEIGHT:
                t_dweight = t_sums
        i_program += tl.cdiv(blocks - i_program, tl.num_programs(0)) * tl.num_programs(0) - blocks
        if HAS_DWEIGHT:
            t_sums = ()
            for i_tile in tl.static_range(PAIRS + RESTS):
                t_sums = t_sums + (tl.sum(t_dweight[i_tile], axis=0)[None, :],)  # noqa: RUF005
            p_sum = partial_ptr + (2 * tl.program_id(0) + i_kind).to(tl.int64) * n_col + tl.zeros([1, 1], tl.int32)
            _store_head(p_sum, m_one, o_col, n_col, t_sums, 1, ROTARY, BLOCK, RESTS, IS_NEOX)
    n_head = heads - heads_qk  # value heads, whose gradient is dy
    blocks = tl.cdiv(tokens.to(tl.int64) * n_head, BLOCK_ROW)
    for i_block in tl.range(i_program, blocks, tl.num_programs(0), num_stages=NUM_STAGES):
        o_token, o_head, m_row = head_block(i_block, tokens, n_head, BLOCK_ROW)
        p_dout = dout_ptr + head_offsets(o_token, heads_qk + o_head, dout_stride, hidden, ALIGNMENT)
        p_dx = dx_ptr + head_offsets(o_token, heads_qk + o_head, dx_stride, hidden, ALIGNMENT)
        t_dy = _load_head(p_dout, m_row, o_col, n_col, BLOCK_ROW, ROTARY, BLOCK, RESTS, IS_NEOX)
        _store_head(p_dx, m_row, o_col, n_col, t_dy, BLOCK_ROW, ROTARY, BLOCK, RESTS, IS_NEOX)


def calls(
    launch: HeadsLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel call of one forward.

    Args:
        launch: from `resolve`.
        problem: rows are tokens, hidden is the length of a head.
        tensors: those of the spec's `buffers`, contiguous in the last dimension. Positions are not checked: each must
            be a row of the tables.
        workspace: not read.
        eps: added to the mean square.
        offset: added to the weights, in float32.
    """
    heads, x = heads_of(problem), tensors["qkv"]
    y = tensors.get("out", x)
    rounds_rotation = heads.rotary > 0 and RotationProducts.of(problem) is RotationProducts.ROUNDED
    read, sizes, strides, options = _shared(launch, problem, tensors)
    args = (x, *read, y, *sizes, x.stride(0), y.stride(0), *strides, eps, offset)
    options |= {
        "BLOCK_PAIR": launch.block_pair,
        "BLOCK_REST": launch.block_rest,
        "HAS_REST_MASK": launch.has_rest_mask,
        "HAS_OTHERS": heads.written > heads.heads_q + heads.heads_k,
        "ROUNDS_PRODUCT": Product.of(problem) is Product.ROUNDED,
        "ROUNDS_ROTATION": rounds_rotation,
        "IS_LOOPED": launch.looped,
    }
    if rounds_rotation:  # a product of 16-bit numbers would be fused with the sum, and its rounding lost
        options["enable_fp_fusion"] = False
    grid = (min(launch.grid, _MOST_PROGRAMS), -(-launch.grid // _MOST_PROGRAMS))
    return (KernelCall(_qk_norm_kernel, grid, args, options),)


def backward_calls(
    launch: HeadsLaunch, problem: Problem, tensors: Mapping[str, Any], workspace: Any, eps: float, offset: float
) -> tuple[KernelCall, ...]:
    """The kernel calls of one backward: the main kernel and, with weight gradients, the reduction of partial sums.

    Args:
        launch: from `resolve_backward`.
        problem: as in `calls`.
        tensors: as in `calls`; `dweights` contiguous.
        workspace: `launch.workspace` float32 elements or more; not read if that is 0.
        eps: as in `calls`.
        offset: as in `calls`.
    """
    dout, x, dx, has_dweight = tensors["dout"], tensors["qkv"], tensors["dqkv"], launch.workspace > 0
    read, sizes, strides, options = _shared(launch, problem, tensors)
    args = (
        *(dout, x, *read, dx, workspace if has_dweight else None, *sizes),
        *(dout.stride(0), x.stride(0), dx.stride(0), *strides, eps, offset),
    )
    options |= {"BLOCK": launch.block_pair or launch.block_rest, "RESTS": launch.rests, "HAS_DWEIGHT": has_dweight}
    main = KernelCall(_qk_norm_backward_kernel, (launch.grid,), args, options)
    if not has_dweight:
        return (main,)
    count, width = launch.grid, 2 * problem.hidden
    tile = reduce_tile(count, width)
    return main, sum_call(workspace, tensors["dweights"], count, width, tile, launch.alignment)


def _shared(
    launch: HeadsLaunch, problem: Problem, tensors: Mapping[str, Any]
) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """What both kernels take: tensors that are only read, sizes, strides of tables, and options."""
    heads = heads_of(problem)
    read = tuple(map(tensors.get, ("weight_q", "weight_k", "cos", "sin", "positions")))
    sizes = (problem.rows, problem.hidden, heads.written, heads.heads_q, heads.heads_q + heads.heads_k)
    strides = tuple(0 if table is None else table.stride(0) for table in read[2:4])
    options = {
        "BLOCK_ROW": launch.block_row,
        "ROTARY": launch.rotary,
        "ALIGNMENT": launch.alignment,
        "HAS_POSITIONS": Positions.of(problem) is Positions.GIVEN,
        "IS_NEOX": Rotary.of(problem) is Rotary.NEOX,
        "IS_WHOLE": Tables.of(problem) is Tables.ELEMENTS,
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }
    return read, sizes, strides, options
