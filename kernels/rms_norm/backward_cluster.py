"""RMSNorm backward of few long rows in one launch: a row over a cluster, dweight as in `backward_columns`.

In: the arguments from `rms_norm_backward.calls`. Out: the kernel. Each block holds a part of the row's columns, and the
blocks exchange one number, their part of the row's sum, through distributed shared memory (PTX ISA, `mapa`,
`barrier.cluster`): Triton's own sums do not cross blocks. Other clusters sum columns as in `backward_columns`. Tensors
of the kernel have the cluster's blocks as their first axis, of which each block holds one. Part of the kernels'
fingerprint.
"""

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import extent, load_weight, weight_part


def _exchange(blocks: int) -> str:
    """Each block writes $1 into its place in the memory of every block; $0 is the sum over the places, in order."""
    adds = "".join(f"ld.volatile.shared.f32 w, [a+{4 * i}]; add.f32 v, v, w; " for i in range(1, blocks))
    return f"""{{
        .shared .align 8 .b32 places[{blocks}];
        .reg .u32 t, r, a, m;
        .reg .pred p;
        .reg .f32 v, w;
        mov.u32 t, %tid.x;
        mov.u32 r, %cluster_ctarank;
        mov.u32 a, places;
        shl.b32 r, r, 2;
        add.u32 m, a, r;
        setp.lt.u32 p, t, {blocks};
        @p mapa.shared::cluster.u32 m, m, t;
        @p st.shared::cluster.f32 [m], $1;
        barrier.cluster.arrive.release;
        barrier.cluster.wait.acquire;
        ld.volatile.shared.f32 v, [a];
        {adds}
        mov.f32 $0, v;
    }}"""


_EXCHANGE_2, _EXCHANGE_4, _EXCHANGE_8 = (tl.constexpr(_exchange(blocks)) for blocks in (2, 4, 8))


@triton.jit
def _arrive():
    tl.inline_asm_elementwise(
        *("{ barrier.cluster.arrive.relaxed; mov.u32 $0, 0; }", "=r", []), dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _wait():
    tl.inline_asm_elementwise(
        *("{ barrier.cluster.wait; mov.u32 $0, 0; }", "=r", []), dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _cluster_sum(b_part, BLOCKS: tl.constexpr):
    """(BLOCKS,) sums over the blocks of a cluster, the same bits in each."""
    EXCHANGE: tl.constexpr = _EXCHANGE_2 if BLOCKS == 2 else (_EXCHANGE_4 if BLOCKS == 4 else _EXCHANGE_8)
    return tl.inline_asm_elementwise(EXCHANGE, "=f,f", [b_part], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def _sum_columns(
    i_slice,
    dy_ptr,
    x_ptr,
    rstd_ptr,
    dweight_ptr,
    rows,
    n_col,
    s_x,
    s_dy,
    BLOCKS: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
):
    """The weight gradient of a slice of columns for each block."""
    o_block = (i_slice.to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)) * SLICE_COL
    o_col = o_block[:, None] + tl.arange(0, SLICE_COL)[None, :]
    b_sum = tl.zeros([BLOCKS, SLICE_ROW, SLICE_COL], dtype=tl.float32)
    for i_row in range(0, rows, SLICE_ROW):
        o_row = i_row + tl.arange(0, SLICE_ROW).to(tl.int64)
        mask = (o_row < rows)[None, :, None] & (o_col < n_col)[:, None, :]
        b_x = tl.load(x_ptr + o_row[None, :, None] * s_x + o_col[:, None, :], mask=mask, other=0.0).to(tl.float32)
        b_dy = tl.load(dy_ptr + o_row[None, :, None] * s_dy + o_col[:, None, :], mask=mask, other=0.0).to(tl.float32)
        b_rstd = tl.load(rstd_ptr + o_row, mask=o_row < rows, other=0.0)[None, :, None]
        b_sum += weight_part(b_dy, b_x * b_rstd, dy_ptr, ROUNDS_PRODUCT)
    b_dweight = tl.sum(b_sum, axis=1).to(dweight_ptr.dtype.element_ty)
    tl.store(dweight_ptr + o_col, b_dweight, mask=o_col < n_col)


@triton.jit(do_not_specialize=["rows", "hidden", "x_stride", "dy_stride", "dx_stride", "ds_stride"])
def rms_norm_backward_cluster_kernel(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    ds_ptr,
    rows,
    hidden,
    x_stride,
    dy_stride,
    dx_stride,
    ds_stride,
    offset,
    BLOCKS: tl.constexpr,
    BLOCK_COL: tl.constexpr,
    SLICE_ROW: tl.constexpr,
    SLICE_COL: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    HAS_COLUMN_MASK: tl.constexpr,
    HAS_DWEIGHT: tl.constexpr,
    ROUNDS_PRODUCT: tl.constexpr,
):
    """See `rms_norm_backward`; the grid has a cluster for each row, then, if any, one for each so many slices."""
    n_col = extent(hidden, ALIGNMENT)
    s_x = extent(x_stride, ALIGNMENT)
    s_dy = extent(dy_stride, ALIGNMENT)
    i_cluster = tl.program_id(0)
    if i_cluster < rows:
        _arrive()  # before a block writes into another one, that one has begun
        i_row = i_cluster.to(tl.int64)
        o_col = tl.arange(0, BLOCKS)[:, None] * BLOCK_COL + tl.arange(0, BLOCK_COL)[None, :]
        mask = tl.full([BLOCKS, BLOCK_COL], True, tl.int1)
        if HAS_COLUMN_MASK:
            mask = o_col < n_col
        b_rstd = tl.load(rstd_ptr + i_row)
        b_xhat = tl.load(x_ptr + i_row * s_x + o_col, mask=mask, other=0.0).to(tl.float32) * b_rstd
        b_dy = tl.load(dy_ptr + i_row * s_dy + o_col, mask=mask, other=0.0).to(tl.float32)
        b_g = b_dy * load_weight(weight_ptr, o_col, mask, offset)
        b_part = tl.sum(b_g * b_xhat, axis=1)
        _wait()
        b_mean = _cluster_sum(b_part, BLOCKS)[:, None] * (1.0 / hidden)
        b_dx = b_rstd * (b_g - b_xhat * b_mean)
        if ds_ptr is not None:
            p_ds = ds_ptr + i_row * extent(ds_stride, ALIGNMENT)
            b_dx += tl.load(p_ds + o_col, mask=mask, other=0.0).to(tl.float32)
        p_dx = dx_ptr + i_row * extent(dx_stride, ALIGNMENT)
        tl.store(p_dx + o_col, b_dx.to(dx_ptr.dtype.element_ty), mask=mask)
    elif HAS_DWEIGHT:
        _sum_columns(
            *(i_cluster - rows, dy_ptr, x_ptr, rstd_ptr, dweight_ptr, rows, n_col, s_x, s_dy),
            *(BLOCKS, SLICE_ROW, SLICE_COL, ROUNDS_PRODUCT),
        )
