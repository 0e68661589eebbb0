"""Shared parts of the kernels over heads: the heads of a program, pairs of elements, the rotation.

In and out: values inside a kernel. Each function is inlined at its call. Part of the kernels' fingerprint.

A head is read as two tiles with the first and the second elements of the rotated pairs, which a thread has at the same
places, and a tile of the other elements. So each element is read once, by the thread that writes it, and in place no
thread reads what another one has written.
"""

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import extent


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
