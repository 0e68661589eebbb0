"""Functions shared by the RMSNorm kernels: offsets and masks, loads and stores of tiles, the gradient of a tile.

In and out: values inside a kernel; Triton inlines each function. Part of the kernels' fingerprint.
"""

import triton
import triton.language as tl


@triton.jit
def extent(length, ALIGNMENT: tl.constexpr):
    """A row's length or stride, int64, marked as a multiple of `ALIGNMENT`, which lets the compiler widen accesses."""
    return tl.multiple_of(length.to(tl.int64), ALIGNMENT)


@triton.jit
def columns(first, n_col, BLOCK_COL: tl.constexpr, HAS_COLUMN_MASK: tl.constexpr):
    """(BLOCK_COL,) columns from `first` on, and the mask of those below `n_col`."""
    o_col = first + tl.arange(0, BLOCK_COL)
    m_col = tl.full([BLOCK_COL], True, tl.int1)
    if HAS_COLUMN_MASK:
        m_col = o_col < n_col
    return o_col, m_col


@triton.jit
def row_block(i_block, rows, BLOCK_ROW: tl.constexpr):
    """(BLOCK_ROW,) rows of block `i_block`, int64, and the mask of those below `rows`."""
    o_row = tl.full([BLOCK_ROW], BLOCK_ROW, tl.int64) * i_block + tl.arange(0, BLOCK_ROW)
    return o_row, o_row < rows


@triton.jit
def tile_mask(m_row, m_col, BLOCK_ROW: tl.constexpr):
    """(BLOCK_ROW, columns) mask of a tile. A block of one row needs no row mask: its program has an existing row."""
    mask = m_col[None, :]
    if BLOCK_ROW > 1:
        mask = m_row[:, None] & mask
    return mask


@triton.jit
def rounded(value, DTYPE: tl.constexpr):
    """A float32 value, rounded to `DTYPE` unless that is None."""
    if DTYPE is not None:
        value = tl.cast(tl.cast(value, DTYPE), tl.float32)  # scalars are Python's in the interpreter
    return value


@triton.jit
def as_column(b_rows):
    """(rows, 1) of (rows,); a scalar is unchanged."""
    if len(b_rows.shape) > 0:
        b_rows = b_rows[:, None]
    return b_rows


@triton.jit
def elements(ptr, stride, o_row, o_col):
    """Pointers to a tile (rows, columns) of a matrix."""
    return ptr + as_column(o_row) * stride + o_col


@triton.jit
def load_weight(weight_ptr, o_col, m_col, offset):
    """(columns,) weight + offset, float32."""
    return tl.load(weight_ptr + o_col, mask=m_col, other=0.0).to(tl.float32) + offset


@triton.jit
def load_tile(ptr, stride, o_row, o_col, mask):
    """A tile (rows, columns), float32."""
    return tl.load(elements(ptr, stride, o_row, o_col), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_tile(ptr, stride, o_row, o_col, mask, b_value):
    """Write a tile (rows, columns) in the element type of `ptr`."""
    tl.store(elements(ptr, stride, o_row, o_col), b_value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def gradient_of_x(b_dy, b_xhat, b_weight, b_rstd, inverse_hidden):
    """(rows, hidden) dx of whole rows; b_rstd (rows, 1), b_weight (hidden,)."""
    b_g = b_dy * b_weight[None, :]
    b_mean = tl.sum(b_g * b_xhat, axis=1)[:, None] * inverse_hidden
    return b_rstd * (b_g - b_xhat * b_mean)


@triton.jit
def weight_part(b_dy, b_xhat, dy_ptr, ROUNDS_PRODUCT: tl.constexpr):
    """Terms dy * xhat of the weight gradient, float32; with `ROUNDS_PRODUCT`, xhat and terms rounded to dy's dtype."""
    if ROUNDS_PRODUCT:
        b_xhat = b_xhat.to(dy_ptr.dtype.element_ty).to(tl.float32)
    b_part = b_dy * b_xhat
    if ROUNDS_PRODUCT:
        b_part = b_part.to(dy_ptr.dtype.element_ty).to(tl.float32)
    return b_part


@triton.jit
def product(b_left, b_right):
    """A product that is rounded before it is added: otherwise the compiler fuses some products with sums, not all."""
    return tl.fma(b_left, b_right, 0.0)


@triton.jit
def fetch_row(ptr, hidden):
    """Prefetch a row into the L2: one instruction of one thread (PTX ISA, `cp.async.bulk.prefetch.L2`, sm_90)."""
    # Address and size are rounded down to multiples of 16 bytes, so up to 30 bytes at the row's end are not fetched.
    first = ptr.to(tl.int64) & -16
    nbytes = (hidden * (ptr.dtype.element_ty.primitive_bitwidth // 8)) & -16
    tl.inline_asm_elementwise(
        """{
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [first, nbytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
