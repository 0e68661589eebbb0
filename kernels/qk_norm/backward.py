"""Gradients of RMSNorm of heads and of their rotation, all arithmetic in float32.

With dn the gradient dy rotated back, xhat = x * rstd, g = dn * (weight + offset) and m a mean over a head:
    dn1 = dy1 * cos + dy2 * sin, dn2 = dy2 * cos - dy1 * sin        dx = rstd * (g - xhat * m(g * xhat))
    dweight = sum over the heads of a kind, of all tokens, of dn * xhat
Gradients are those of the function without roundings. Value heads keep dy.

In: a launch and tensors. Out: the kernel calls. A fixed grid strides over blocks of heads of one kind: first of all
query heads, then of the key heads, then of the value heads. So a program reads a weight once, keeps its part of one
weight gradient in registers, and writes it, in float32, to its rows of a workspace, which a second kernel sums in a
fixed order: the bits are always the same. rstd is computed again, since a program holds whole heads.

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
        "BLOCK": launch.block_pair or launch.block_rest,
        "RESTS": launch.rests,
        "ALIGNMENT": launch.alignment,
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
