"""The walk of a forward over rows, for all families: load, one factor for each row, store.

An entry kernel names three functions of its family, which Triton inlines:
    LOAD(args, at, PASS, TILE, MODES)
        two tiles: what is normalized, and what STORE needs beside it, or the same again.
    TURN(args, at, t_x, b_weight, b_rstd, is_first, PASS, TILE, MODES)
        runs when rows are summed. Gets their tiles that stay in registers, weight + offset if these are whole rows, and
        whether this program is the first of a row. Returns the factors for STORE, and the tiles.
    STORE(args, at, b_x, b_beside, b_weight, factors, PASS, TILE, MODES)
        writes the results of a tile. Returns what is reduced over a program's tiles, if its family reduces.

`PASS` tells them what a tile is:
    once   whole rows; all three functions
    sum    a whole row, of which this program stores a part; LOAD and TURN
    part   that part; LOAD and STORE
    chunk  a chunk of columns that stays in registers; LOAD
    first  a chunk that is loaded again; LOAD
    last   a chunk at its last use, from registers or the cache; LOAD, STORE, and TURN between
Rows are (rows,), or a scalar where a program has one row in chunks. Tiles then have columns alone.
"""

from collections import namedtuple

import triton
import triton.language as tl

from normtune.kernels.tiles.tile import columns, extent, load_weight, rounded, row_block, tile_mask

# Where a tile is: its rows, and which exist, None for a scalar; its columns; the mask of its elements; its number among
# the tiles that its program or, of parts, the programs of its row store.
At = namedtuple("At", "o_row m_row o_col mask number")


@triton.jit
def _weight(args, o_col, m_col, STATISTICS: tl.constexpr):
    """(columns,) float32 of weight + offset."""
    return rounded(load_weight(args.weight_ptr, o_col, m_col, rounded(args.offset, STATISTICS)), STATISTICS)


@triton.jit
def _rstd(args, b_square, STATISTICS: tl.constexpr):
    """1 / sqrt(mean + eps) of the squares of whole rows, (rows, columns) or (columns,), float32."""
    b_sum = tl.sum(b_square, axis=len(b_square.shape) - 1)
    return tl.rsqrt(b_sum / args.hidden + rounded(args.eps, STATISTICS))


@triton.jit
def walk(
    args,
    i_first,
    step,
    LOAD: tl.constexpr,
    TURN: tl.constexpr,
    STORE: tl.constexpr,
    STATISTICS: tl.constexpr,
    HAS_MAXIMUM: tl.constexpr,
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    """Normalize the rows of a program: a row in chunks, a part of a row, or blocks of rows.

    Args:
        args: a kernel's arguments, with weight_ptr, rows, hidden, eps and offset.
        i_first: the program's first block of rows, or row.
        step: blocks from one to the next, in a loop.
        LOAD: loads a tile.
        TURN: runs when the factors of rows are known.
        STORE: stores a tile.
        STATISTICS: dtype to which squares, eps and weight are rounded; None for float32.
        HAS_MAXIMUM: whether maxima of what STORE returns are returned.
        TILE: a `Tile`.
        MODES: for the functions of the family.

    Returns:
        With `HAS_MAXIMUM` maxima of the program, int32: (rows,), or (columns,) in chunks.
    """
    if TILE.chunks > 0:
        b_most = _chunks(args, i_first, LOAD, TURN, STORE, STATISTICS, HAS_MAXIMUM, TILE, MODES)
    elif TILE.part_cols > 0:
        b_most = _part(args, i_first, LOAD, TURN, STORE, STATISTICS, TILE, MODES)
    else:
        b_most = _blocks(args, i_first, step, LOAD, TURN, STORE, STATISTICS, HAS_MAXIMUM, TILE, MODES)
    return b_most


@triton.jit
def _blocks(
    args,
    i_first,
    step,
    LOAD: tl.constexpr,
    TURN: tl.constexpr,
    STORE: tl.constexpr,
    STATISTICS: tl.constexpr,
    HAS_MAXIMUM: tl.constexpr,
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    """Block `i_first` of rows; in a loop every `step`-th from there on."""
    ROWS: tl.constexpr = TILE.rows
    o_col, m_col = columns(0, extent(args.hidden, TILE.alignment), TILE.cols, TILE.has_column_mask)
    b_weight = _weight(args, o_col, m_col, STATISTICS)
    if TILE.is_looped:
        b_most = tl.zeros([ROWS], dtype=tl.int32)
        for i_block in tl.range(i_first, tl.cdiv(args.rows, ROWS), step, num_stages=TILE.num_stages):
            b_value = _block(args, i_block, b_weight, o_col, m_col, LOAD, TURN, STORE, STATISTICS, TILE, MODES)
            if HAS_MAXIMUM:
                b_most = tl.maximum(b_most, b_value)
    else:
        b_most = _block(args, i_first, b_weight, o_col, m_col, LOAD, TURN, STORE, STATISTICS, TILE, MODES)
    return b_most


@triton.jit
def _block(
    args,
    i_block,
    b_weight,
    o_col,
    m_col,
    LOAD: tl.constexpr,
    TURN: tl.constexpr,
    STORE: tl.constexpr,
    STATISTICS: tl.constexpr,
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    o_row, m_row = row_block(i_block, args.rows, TILE.rows)
    mask = tile_mask(m_row, m_col, TILE.rows)
    at = At(o_row, m_row, o_col, mask, 0)
    b_x, b_beside = LOAD(args, at, "once", TILE, MODES)
    b_x = b_x.to(tl.float32)
    b_rstd = _rstd(args, rounded(b_x * b_x, STATISTICS), STATISTICS)
    factors, t_x = TURN(args, at, (b_x,), b_weight, b_rstd, True, "once", TILE, MODES)
    return STORE(args, at, t_x[0], b_beside, b_weight, factors, "once", TILE, MODES)


# Few rows: several programs a row, each of which reads all of it and writes a part. Each sums the whole row in the same
# order, to the same bits, so none waits for another. All but one read it from the L2.


@triton.jit
def _part(
    args,
    i_row,
    LOAD: tl.constexpr,
    TURN: tl.constexpr,
    STORE: tl.constexpr,
    STATISTICS: tl.constexpr,
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    """A part of `TILE.part_cols` columns of one row; no output may be the memory of an input."""
    n_col = extent(args.hidden, TILE.alignment)
    i_part = tl.program_id(1)
    o_row, m_row = row_block(i_row, args.rows, 1)
    o_col, m_col = columns(0, n_col, TILE.cols, TILE.has_column_mask)
    o_part, m_part = columns(i_part * TILE.part_cols, n_col, TILE.part_cols, TILE.has_column_mask)
    row = At(o_row, m_row, o_col, tile_mask(m_row, m_col, 1), 0)
    part = At(o_row, m_row, o_part, tile_mask(m_row, m_part, 1), i_part)
    b_x, _ = LOAD(args, row, "sum", TILE, MODES)
    b_part, b_beside = LOAD(args, part, "part", TILE, MODES)
    b_x, b_part = b_x.to(tl.float32), b_part.to(tl.float32)
    b_weight = _weight(args, o_part, m_part, STATISTICS)
    b_rstd = _rstd(args, rounded(b_x * b_x, STATISTICS), STATISTICS)
    factors, _ = TURN(args, row, (b_x,), None, b_rstd, i_part == 0, "sum", TILE, MODES)
    return STORE(args, part, b_part, b_beside, b_weight, factors, "part", TILE, MODES)


# Rows in equal chunks of columns, which stay in registers or are loaded twice. A row that is no power of two fills its
# chunks where a tile of the next power of two computes columns that do not exist: 192 columns are three chunks of 64,
# of 256 a quarter would be masked.


@triton.jit
def _chunks(
    args,
    i_block,
    LOAD: tl.constexpr,
    TURN: tl.constexpr,
    STORE: tl.constexpr,
    STATISTICS: tl.constexpr,
    HAS_MAXIMUM: tl.constexpr,
    TILE: tl.constexpr,
    MODES: tl.constexpr,
):
    """A block of `TILE.rows` rows in chunks of columns; row `i_block` if that is 0.

    With several programs a row each of them reads all of it and writes `TILE.part_cols` columns, never in place.
    """
    ROWS: tl.constexpr = TILE.rows
    CHUNKS: tl.constexpr = TILE.chunks
    COLS: tl.constexpr = TILE.cols
    PART: tl.constexpr = TILE.part_cols if TILE.part_cols > 0 else CHUNKS * COLS
    IS_PART: tl.constexpr = PART < CHUNKS * COLS
    HAS_PART_MASK: tl.constexpr = TILE.has_column_mask or CHUNKS * COLS % PART != 0
    tl.static_assert(ROWS == 0 or not (IS_PART or HAS_MAXIMUM))
    n_col = extent(args.hidden, TILE.alignment)
    if ROWS > 0:
        o_row, m_row = row_block(i_block, args.rows, ROWS)
        b_square = tl.zeros([ROWS, COLS], dtype=tl.float32)
    else:
        o_row, m_row = i_block.to(tl.int64), None
        b_square = tl.zeros([COLS], dtype=tl.float32)
    t_x = ()  # Triton adds tuples, but does not unpack them
    t_beside = ()
    t_weight = ()
    for i_chunk in tl.static_range(CHUNKS):
        o_col, m_col = columns(i_chunk * COLS, n_col, COLS, TILE.has_column_mask and i_chunk == CHUNKS - 1)
        if ROWS > 0:
            t_weight = t_weight + (_weight(args, o_col, m_col, STATISTICS),)  # noqa: RUF005
            m_col = tile_mask(m_row, m_col, ROWS)
        at = At(o_row, m_row, o_col, m_col, i_chunk)
        b_read, b_beside = LOAD(args, at, "chunk" if TILE.is_held else "first", TILE, MODES)
        b_x = b_read.to(tl.float32)
        b_square += rounded(b_x * b_x, STATISTICS)
        if TILE.is_held:
            t_x = t_x + (b_read,)  # noqa: RUF005
            t_beside = t_beside + (b_beside,)  # noqa: RUF005
    b_rstd = _rstd(args, b_square, STATISTICS)
    i_first = 0
    if IS_PART:
        i_first = tl.program_id(1) * PART
    factors, t_x = TURN(args, at, t_x, None, b_rstd, i_first == 0, "last", TILE, MODES)
    b_most = tl.zeros([COLS], dtype=tl.int32)
    for i_chunk in tl.static_range((PART + COLS - 1) // COLS):
        o_col, m_col = columns(
            i_first + i_chunk * COLS, n_col, COLS, HAS_PART_MASK and (IS_PART or i_chunk == CHUNKS - 1)
        )
        if PART < COLS:  # with a tile of another shape the compiler would sum unaligned rows in another order
            m_col = m_col & (o_col < i_first + PART)
        if ROWS > 0:
            b_weight = t_weight[i_chunk]
            m_col = tile_mask(m_row, m_col, ROWS)
        else:
            b_weight = _weight(args, o_col, m_col, STATISTICS)
        at = At(o_row, m_row, o_col, m_col, i_chunk)
        if TILE.is_held:
            b_read, b_beside = t_x[i_chunk], t_beside[i_chunk]
        else:
            b_read, b_beside = LOAD(args, at, "last", TILE, MODES)
        b_x = b_read.to(tl.float32)
        b_value = STORE(args, at, b_x, b_beside, b_weight, factors, "last", TILE, MODES)
        if HAS_MAXIMUM:
            b_most = tl.maximum(b_most, b_value)
    return b_most
