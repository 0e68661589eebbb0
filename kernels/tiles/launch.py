"""Resolves configs to launches of kernels over rows: tiles of whole rows, or rows in chunks of columns.

In: config with the knobs schedule, block_row, num_warps, num_stages, programs_per_sm and block_col; problem, target.
Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no triton. Part of the kernels'
fingerprint, because a change here can change the time of a config.
"""

from typing import NamedTuple

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.target import Target

# Most bytes of partial sums of a weight gradient; a fixed grid whose sums would exceed this is made smaller.
MAX_WORKSPACE_BYTES = 64 << 20
# Most elements per thread of a row in chunks, and of one chunk: with more, too many registers spill.
MAX_SPLIT_ELEMENTS_PER_THREAD = 128
MAX_CHUNK_ELEMENTS_PER_THREAD = 64
# Elements per thread of a tile with chunks of several parts of a row: with 16, up to 64 bytes spill.
_PART_ELEMENTS_PER_THREAD = 8
# Most chunks of a row: kernels unroll the loop over them.
MAX_CHUNKS = 16
# Largest row, with its sums, that stays in registers (256 KB) between its two uses: in the backward at hidden 16384 in
# bfloat16 this takes 1.04 of the time of a copy, against 1.35 when the row is read again, as 32768 must be.
MAX_HELD_BYTES = 160 << 10
# Longest row in chunks that a forward reads again out of the cache: 0.97 of the copy at hidden 16384 in float32. A
# longer one stays in registers: 1.04 of the copy at 32768, against 1.10 when read again.
MAX_READ_AGAIN_BYTES = 64 << 10
# Largest row of sums x + residual that stays in registers: half of them.
MAX_SUM_BYTES = 128 << 10
# Schedule `parts`: most programs per row, and fewest columns that each writes. On an H200 a single row of 4096 is
# fastest with 8 programs, one of 16384 with 16.
MAX_PARTS = 16
LEAST_PART_COLUMNS = 512
# Shared memory that pipeline buffers leave for reductions and layout conversions.
RESERVED_SHARED_BYTES = 8 << 10


class Tile(NamedTuple):
    """What a program of a kernel works on, as one constant.

    Attributes that are not listed are those of `Launch`.

    Attributes:
        rows, cols: of the tile or the chunk; rows is 0 where a program has one row in chunks.
        part_cols: columns of a row that a program writes; 0 for all.
        is_held: whether chunks stay in registers between their two uses.
        slice_rows, slice_cols: of the tile of a program that sums columns.
        is_clustered: whether a program is a cluster, whose blocks have the parts of a row.
        is_looped: whether a program loops over rows.
    """

    rows: int
    cols: int
    part_cols: int
    chunks: int
    parts: int
    tile_parts: int
    is_held: bool
    slice_rows: int
    slice_cols: int
    is_clustered: bool
    in_halves: bool
    is_looped: bool
    num_stages: int
    alignment: int
    has_column_mask: bool


class Launch(NamedTuple):
    """A launch of kernels over tiles of rows and columns.

    Attributes:
        looped: whether a fixed grid loops over the rows; else each block of rows has its own program.
        grid: programs of the main kernel, of `num_ctas` blocks each; where a row has several of them (`part_col`),
            those of one part.
        block_row, block_col: rows and columns of the tile, or of the chunk, that a program holds.
        num_warps, num_stages: as the compiler takes them.
        alignment: largest power of two up to 16 that divides hidden and every row stride, elements.
        column_mask: whether `block_col` exceeds hidden.
        workspace: float32 elements of partial sums; 0 when there is no second stage.
        finish: how sums over rows end: `none`, `reduce`, `dependent` or `columns`.
        chunks: chunks of `block_col` columns in each part of a row; 0 where a row is one tile.
        held: whether chunks of several rows, or of a backward, stay in registers between their two uses; a forward of
            one row decides in its calls.
        part_col: columns of a row that each of its programs writes; 0 for all columns.
        slice_row, slice_col: tile of a program that sums columns (finish `columns`); 0 without such programs.
        row_layout: from `row_layout`; None if the compiler's layout of a row is not known.
        parts: number of equal parts of a row, whose sums are added in order.
        tile_parts: parts of which a tile holds a chunk each, side by side.
        num_ctas: blocks of the cluster that a program is, each with a part of the row; 1 without clusters.
        in_halves: whether the sums of the parts are added in halves, else in order.
    """

    looped: bool
    grid: int
    block_row: int
    block_col: int
    num_warps: int
    num_stages: int
    alignment: int
    column_mask: bool
    workspace: int
    finish: str = "none"
    chunks: int = 0
    held: bool = False
    part_col: int = 0
    slice_row: int = 0
    slice_col: int = 0
    row_layout: tuple[int, int, int] | None = None
    parts: int = 1
    tile_parts: int = 1
    num_ctas: int = 1
    in_halves: bool = False

    @property
    def tile(self) -> Tile:
        """The constant of the kernel."""
        return Tile(
            rows=self.block_row if self.held or not self.chunks else 0,
            cols=self.block_col,
            part_cols=self.part_col,
            chunks=self.chunks,
            parts=self.parts,
            tile_parts=self.tile_parts,
            is_held=self.held,
            slice_rows=self.slice_row,
            slice_cols=self.slice_col,
            is_clustered=self.num_ctas > 1,
            in_halves=self.in_halves,
            is_looped=self.looped,
            num_stages=self.num_stages,
            alignment=self.alignment,
            has_column_mask=self.column_mask,
        )

    def programs(self, hidden: int) -> tuple[int, ...]:
        """The grid of a forward: rows or blocks of them, and, if they have parts, these."""
        return (self.grid, -(-hidden // self.part_col)) if self.part_col else (self.grid,)

    @property
    def binary(self) -> "Launch":
        """This launch without fields that the binary does not depend on."""
        return self._replace(grid=0, workspace=int(self.workspace > 0))

    @property
    def row_sum(self) -> "Launch":
        """The order in which a row is summed: launches with equal `row_sum` give a row the same bits.

        It is this launch without the fields that do not matter for that: the number of programs and the sums over rows;
        if `row_layout` is known, also the loop over rows, the rows of a tile, and the warps.
        """
        of_a_row = self._replace(grid=0, workspace=0, finish="none", slice_row=0, slice_col=0)
        if self.row_layout is None:  # a whole row may be laid out for its store, and a part in another way
            return of_a_row._replace(part_col=min(self.part_col, 1))
        alike = of_a_row._replace(looped=False, block_row=1, tile_parts=1, part_col=0, num_warps=1, num_stages=1)
        # The blocks of a cluster sum the parts of a row in the same order as one program does.
        return alike._replace(held=False, num_ctas=1) if self.parts > 1 else alike

    @property
    def in_place(self) -> "Launch":
        """This launch with one program per row in place of `parts`: the same bits, and outputs may be inputs."""
        return self._replace(part_col=0)


def next_power_of_2(value: int) -> int:
    """The least power of two that is at least `value`, a positive integer."""
    return 1 << (value - 1).bit_length()


def row_layout(
    block_row: int, block_col: int, config: Config, problem: Problem, target: Target, alignment: int
) -> tuple[int, int, int]:
    """Elements per access of a thread, lanes per row and warps per row of a tile, as Triton lays it out.

    An access is at most 16 bytes, at most as wide as the known alignment, and at most the thread's share of the tile
    (the pass `tritongpu-coalesce`); lanes and then warps are put along a row until it is covered
    (`BlockedEncodingAttr::get`).

    Args:
        block_row: rows of a program's tile, a power of two.
        block_col: columns of the tile, a power of two.
        config: number of warps.
        problem: dtype of the tensors.
        target: lanes of a warp.
        alignment: largest power of two up to 16 that divides hidden and all row strides; 16 if the weight is read as a
            tile of this shape, since it is aligned and the widest access determines the layout of all.
    """
    warps, lanes = config.num_warps, target.warp_size
    share = max(1, block_row * block_col // (warps * lanes))
    vector = min(16 // ITEMSIZE[problem.dtype], alignment, share)
    lanes = min(lanes, max(1, block_col // vector))
    return vector, lanes, min(warps, max(1, block_col // (vector * lanes)))


def reduce_tile(partials: int, hidden: int) -> tuple[int, int, int]:
    """(rows at a time, columns, warps) of a program that sums columns of `partials` rows.

    Few columns per program, so that there are many programs.
    """
    if hidden <= 256 and partials > 64:
        return 128, 8, 4
    if partials <= 64:
        return 64, 16, 4
    if partials <= 256:
        return 128, 16, 4
    return 256, 16, 8


def threads_of(config: Config, target: Target) -> int:
    """Threads of a program.

    Raises:
        IllegalConfigError: more than the target allows.
    """
    threads = config.num_warps * target.warp_size
    if threads > target.max_threads:
        raise IllegalConfigError(f"{threads} threads exceed {target.max_threads}")
    return threads


def tile(
    config: Config, problem: Problem, target: Target, alignment: int | None, max_elements: int, streamed_tiles: int
) -> Launch:
    """The launch of whole rows in one tile: a program per block of rows, several per row, or a fixed grid.

    Args:
        config: schedule `row`, `block_row`, `parts` or `persistent`.
        problem: rows, hidden and dtype.
        target: limits of the GPU.
        alignment: largest power of two up to 16 that divides hidden and all row strides; None for contiguous tensors.
        max_elements: most elements of a tile per thread; the rows of a tile are halved until it has no more.
        streamed_tiles: tiles that a pipelined loop reads at each step.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    block_col = next_power_of_2(problem.hidden)
    threads = threads_of(config, target)
    looped = config.schedule == "persistent"
    num_stages = config.num_stages if looped else 1
    # The compiler keeps one tile per stage in shared memory, except for the last stage, in registers (seen on sm_90).
    buffered = streamed_tiles * (num_stages - 1) * ITEMSIZE[problem.dtype]
    shared_bytes = target.shared_bytes - RESERVED_SHARED_BYTES

    block_row = config.block_row if config.schedule in ("block_row", "persistent") else 1
    while block_row > 1 and (
        block_row * block_col > max_elements * threads or buffered * block_row * block_col > shared_bytes
    ):
        block_row //= 2
    tile = block_row * block_col
    if tile > max_elements * threads:
        raise IllegalConfigError(f"{tile // threads} elements a thread exceed {max_elements}")
    if buffered * tile > shared_bytes:
        raise IllegalConfigError(f"{buffered * tile} bytes of pipeline buffers exceed {shared_bytes}")

    grid = -(-problem.rows // block_row)
    if looped:
        grid = min(grid, config.programs_per_sm * target.sms)
    part = _part(config, problem, target, block_col) if config.schedule == "parts" else block_col
    alignment = alignment_of(problem.hidden) if alignment is None else alignment
    return Launch(
        looped=looped,
        grid=grid,
        block_row=block_row,
        block_col=block_col,
        num_warps=config.num_warps,
        num_stages=num_stages,
        alignment=alignment,
        column_mask=block_col != problem.hidden,
        workspace=0,
        part_col=part if part < block_col else 0,
        row_layout=row_layout(block_row, block_col, config, problem, target, alignment),
    )


def _part(config: Config, problem: Problem, target: Target, block_col: int) -> int:
    """Columns that each program of a row writes, for a number of programs that is a power of two."""
    return block_col // _power_of_2_up_to(_parts(config, problem, target, block_col))


def part_of_chunks(config: Config, problem: Problem, target: Target, launch: Launch) -> int:
    """`part_col` of a launch in chunks: whole chunks, or a power of two that divides one; 0 for all columns."""
    parts = _parts(config, problem, target, problem.hidden)
    if parts < launch.chunks:
        return 0 if parts == 1 else -(-launch.chunks // parts) * launch.block_col
    part = launch.block_col // _power_of_2_up_to(parts // launch.chunks)
    return 0 if part >= problem.hidden else part


def _parts(config: Config, problem: Problem, target: Target, columns: int) -> int:
    """Programs per row of `columns`: at most as many as fill the GPU, with at least one column per thread."""
    most = min(MAX_PARTS, max(1, config.programs_per_sm) * target.sms // problem.rows)
    least = max(LEAST_PART_COLUMNS, config.num_warps * target.warp_size)
    return max(1, min(most, columns // least))


def _power_of_2_up_to(value: int) -> int:
    return 1 << (value.bit_length() - 1)


def split(
    config: Config,
    problem: Problem,
    target: Target,
    alignment: int | None,
    held: tuple[int, int] = (0, 0),
    parts: int = 1,
) -> Launch:
    """The launch of a fixed grid over rows in chunks of columns; two stages prefetch the next row into the L2.

    Args:
        config: `block_col` is the number of columns of a chunk, or of the chunks of all parts.
        problem: rows, hidden and dtype.
        target: limits of the GPU.
        alignment: as in `tile`.
        held: bytes per column that stay in registers between their two uses, and the most bytes of a row that may; 0
            for none.
        parts: equal parts of a row, a power of two; a tile has a chunk of as many of them as
            `_PART_ELEMENTS_PER_THREAD` allows.

    Raises:
        IllegalConfigError: as `tile`.
    """
    threads = threads_of(config, target)
    if config.block_col < parts:
        raise IllegalConfigError(f"{config.schedule} with block_col {config.block_col}")
    part = -(-problem.hidden // parts)
    block_col = min(config.block_col // parts, next_power_of_2(part))
    chunks = -(-part // block_col)
    if chunks > MAX_CHUNKS:
        raise IllegalConfigError(f"{chunks} chunks exceed {MAX_CHUNKS}")
    tile_parts = min(parts, max(1, _PART_ELEMENTS_PER_THREAD * threads // block_col))
    elements = tile_parts * block_col // threads
    if elements > MAX_CHUNK_ELEMENTS_PER_THREAD:
        raise IllegalConfigError(f"{elements} elements a thread exceed {MAX_CHUNK_ELEMENTS_PER_THREAD}")
    row = parts * chunks * block_col
    if row > MAX_SPLIT_ELEMENTS_PER_THREAD * threads:
        raise IllegalConfigError(f"{row // threads} elements a thread exceed {MAX_SPLIT_ELEMENTS_PER_THREAD}")
    return Launch(
        looped=True,
        grid=min(problem.rows, max(1, config.programs_per_sm) * target.sms),
        block_row=1,
        block_col=block_col,
        num_warps=config.num_warps,
        num_stages=min(config.num_stages, 2) if target.has_row_fetch else 1,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        column_mask=row != problem.hidden,
        workspace=0,
        chunks=chunks,
        held=0 < row * held[0] <= held[1],
        row_layout=row_layout(tile_parts, block_col, config, problem, target, 16),
        parts=parts,
        tile_parts=tile_parts,
        in_halves=parts > 1,
    )
