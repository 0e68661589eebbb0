"""Resolves configs to launches of kernels that work on rows: whole rows in tiles, or a row in chunks.

In: config with the knobs schedule, block_row, num_warps, num_stages, programs_per_sm and block_col; problem, target.
Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no triton. Part of the kernels'
fingerprint: a change here can change the time of a config.
"""

from typing import NamedTuple

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.target import Target

# Most bytes of partial sums of a weight gradient; a fixed grid of more programs is cut to it.
MAX_WORKSPACE_BYTES = 64 << 20
# Most elements of a row that is held in chunks, and of a chunk, per thread: beyond, too much spills.
MAX_SPLIT_ELEMENTS_PER_THREAD = 128
MAX_CHUNK_ELEMENTS_PER_THREAD = 64
# Chunks are unrolled.
MAX_CHUNKS = 16
# A row stays in registers between two uses up to this many of the 256 KB, the rest is for other values: 1.04 of the
# copy at hidden 16384 in bfloat16, backward, against 1.35 when read again, as 32768 must be.
MAX_HELD_BYTES = 160 << 10
# Most programs of a row that each read all of it, and the least columns that each writes: on an H200 one row of 4096 is
# fastest over 8 programs, one of 16384 over 16.
MAX_PARTS = 16
LEAST_PART_COLUMNS = 512
# The pipelined loop streams its tiles through shared memory; reductions and layout changes need some as well.
RESERVED_SHARED_BYTES = 8 << 10


class Launch(NamedTuple):
    """A launch of kernels that work on tiles of rows and columns.

    Attributes:
        looped: whether the kernel with a row loop runs (a fixed grid) or one program a row block.
        grid: programs of the main kernel.
        block_row, block_col: the tile that a program holds.
        num_warps, num_stages: as the compiler takes them.
        alignment: largest power of two up to 16 that divides hidden and every row stride, elements.
        column_mask: whether `block_col` exceeds hidden.
        workspace: float32 elements of partial sums; 0 when there is no second stage.
        finish: how sums over rows end: `none`, `reduce`, `dependent` or `columns`.
        chunks: chunks of `block_col` columns in which a row is worked on; 0 where it is one tile.
        held: whether chunks stay in registers between their two uses.
        slice_row, slice_col: the tile of a program of columns; 0 where there is none. In a forward, where each row has
            a program for each so many columns, which reads all of it; the grid is that of one of these.
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
    slice_row: int = 0
    slice_col: int = 0

    @property
    def binary(self) -> "Launch":
        """This launch without what does not specialise: two launches with equal `binary` run the same machine code."""
        return self._replace(grid=0, workspace=int(self.workspace > 0))

    @property
    def of_a_row(self) -> "Launch":
        """This launch without what counts rows and what sums over them: equal ones work on each row in the same way."""
        return self._replace(grid=0, workspace=0, finish="none", slice_row=0, slice_col=0)

    @property
    def in_place(self) -> "Launch":
        """A launch of the same bits whose outputs may be inputs: no program reads what another one overwrites."""
        return self if self.finish == "columns" else self._replace(slice_col=0)


def next_power_of_2(value: int) -> int:
    """The least power of two that is at least `value`; `value` is a positive integer."""
    return 1 << (value - 1).bit_length()


def reduce_tile(partials: int, hidden: int) -> tuple[int, int, int]:
    """(rows of partial sums, columns, warps) of a program that sums `partials` rows: narrow columns, many programs."""
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
        IllegalConfigError: there are more than the target has.
    """
    threads = config.num_warps * target.warp_size
    if threads > target.max_threads:
        raise IllegalConfigError(f"{threads} threads exceed {target.max_threads}")
    return threads


def tile(
    config: Config, problem: Problem, target: Target, alignment: int | None, max_elements: int, streamed_tiles: int
) -> Launch:
    """Whole rows in one tile: a program per block of rows, or a fixed grid of programs.

    Args:
        config: schedule `row`, `block_row`, `parts` or `persistent`.
        problem: rows, hidden and dtype.
        target: limits of the GPU.
        alignment: largest power of two up to 16 that divides hidden and all row strides; None for contiguous tensors.
        max_elements: of a tile, per thread; a block of rows is halved until it has no more.
        streamed_tiles: tiles that a pipelined loop reads at each step.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    block_col = next_power_of_2(problem.hidden)
    threads = threads_of(config, target)
    looped = config.schedule == "persistent"
    num_stages = config.num_stages if looped else 1
    # The compiler keeps one tile fewer than stages in shared memory: the last is in registers (seen for sm_90).
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
    return Launch(
        looped=looped,
        grid=grid,
        block_row=block_row,
        block_col=block_col,
        num_warps=config.num_warps,
        num_stages=num_stages,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        column_mask=block_col != problem.hidden,
        workspace=0,
        slice_col=part if part < block_col else 0,
    )


def _part(config: Config, problem: Problem, target: Target, block_col: int) -> int:
    """Columns of a row that each of its programs writes: they are as many as fill the GPU, a power of two."""
    most = min(MAX_PARTS, max(1, config.programs_per_sm) * target.sms // problem.rows)
    least = max(LEAST_PART_COLUMNS, config.num_warps * target.warp_size)
    parts = max(1, min(most, block_col // least))
    return block_col // (1 << (parts.bit_length() - 1))


def split(config: Config, problem: Problem, target: Target, alignment: int | None, held_bytes: int = 0) -> Launch:
    """One row at a time, its columns in chunks, in a fixed grid; two stages bring the next row into the L2.

    Args:
        config: with chunks of `block_col` columns.
        problem: rows, hidden and dtype.
        target: limits of the GPU.
        alignment: as in `tile`.
        held_bytes: bytes per column that stay in registers between two uses where a row of them fits; 0 for none.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    threads = threads_of(config, target)
    if config.block_col < 1:
        raise IllegalConfigError("split without block_col")
    block_col = min(config.block_col, next_power_of_2(problem.hidden))
    chunks = -(-problem.hidden // block_col)
    if chunks > MAX_CHUNKS:
        raise IllegalConfigError(f"{chunks} chunks exceed {MAX_CHUNKS}")
    if block_col > MAX_CHUNK_ELEMENTS_PER_THREAD * threads:
        raise IllegalConfigError(f"{block_col // threads} elements a thread exceed {MAX_CHUNK_ELEMENTS_PER_THREAD}")
    row = chunks * block_col
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
        held=0 < row * held_bytes <= MAX_HELD_BYTES,
    )
