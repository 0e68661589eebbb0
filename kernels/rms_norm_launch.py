"""Resolves a config to a launch of the RMSNorm kernels, if it is legal.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernels' fingerprint: a change here can change the time of a config.
"""

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, Launch
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.target import Target

# Most bytes of partial sums of a weight gradient; a fixed grid of more programs is cut to it.
MAX_WORKSPACE_BYTES = 64 << 20
# Most elements of a tile per thread: beyond, so much spills that no shape gains. The two numbers keep the widest row,
# 65536, legal with 32 warps. The backward holds x, dy, weight and the running weight gradient, the forward x alone.
MAX_FORWARD_ELEMENTS_PER_THREAD = 128
MAX_BACKWARD_ELEMENTS_PER_THREAD = 64
# In `split` the tile is a chunk; of a whole row only the running weight gradient is always held.
MAX_SPLIT_ELEMENTS_PER_THREAD = 128
MAX_CHUNK_ELEMENTS_PER_THREAD = 64
# Chunks are unrolled.
MAX_CHUNKS = 16
# x, dy and the weight gradient of a row stay in registers up to this many of the 256 KB, the rest is for other values:
# 1.04 of the copy at hidden 16384 in bfloat16 against 1.35 when read again, as 32768 must be.
MAX_HELD_BYTES = 160 << 10
# A program of columns walks through all rows: beyond 2048 of them partial sums are faster everywhere on the H200.
MAX_COLUMNS_ROWS = 4096
# Elements of x, and as many of dy, per thread and step of such a program.
_SLICE_ELEMENTS_PER_THREAD = 16
_MAX_SLICE_ROWS = 512
# The pipelined loop streams its tiles through shared memory; reductions and layout changes need some as well.
RESERVED_SHARED_BYTES = 8 << 10
_PARTIAL_FINISHES = ("reduce", "dependent")


def next_power_of_2(value: int) -> int:
    """The least power of two that is at least `value`; `value` is a positive integer."""
    return 1 << (value - 1).bit_length()


def resolve_forward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of `rms_norm_forward`.

    Args:
        config: schedule `row`, `block_row`, `persistent` or `split`.
        problem: rows, hidden and dtype of x.
        target: limits of the GPU.
        alignment: largest power of two up to 16 that divides hidden and all row strides; None for contiguous tensors.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    if config.schedule == "split":
        launch = _split(config, problem, target, alignment)
        return launch._replace(looped=False, grid=problem.rows, num_stages=1, held=False)
    if config.schedule not in ("row", "block_row", "persistent"):
        raise _unknown_schedule(config, problem)
    return _tile(config, problem, target, alignment, MAX_FORWARD_ELEMENTS_PER_THREAD, streamed_tiles=1)


def resolve_backward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of `rms_norm_backward`; arguments and errors as in `resolve_forward`.

    `persistent` and `split` with more than one program and a weight gradient leave partial sums, grid x hidden float32,
    which `reduce` or `dependent` sums; a target without dependent launches reduces. `row` and `block_row` finish as
    `columns`, up to `MAX_COLUMNS_ROWS` rows if there is a weight gradient.
    """
    wants_dweight = "no_dweight" not in problem.variant
    if config.schedule in ("row", "block_row"):
        if config.finish != "columns":
            raise IllegalConfigError(f"finish {config.finish!r} needs a grid of fixed size")
        return _columns(config, problem, target, alignment, wants_dweight)
    if config.schedule == "split":
        launch = _split(config, problem, target, alignment)
    elif config.schedule == "persistent":
        launch = _tile(config, problem, target, alignment, MAX_BACKWARD_ELEMENTS_PER_THREAD, streamed_tiles=2)
    else:
        raise _unknown_schedule(config, problem)
    if not wants_dweight or launch.grid == 1:
        return launch
    if config.finish not in _PARTIAL_FINISHES:
        raise IllegalConfigError(f"finish {config.finish!r} cannot end partial sums")
    grid = min(launch.grid, MAX_WORKSPACE_BYTES // (4 * problem.hidden))
    finish = config.finish if target.has_dependent_launch else "reduce"
    return launch._replace(grid=grid, workspace=grid * problem.hidden, finish=finish)


def reduce_tile(partials: int, hidden: int) -> tuple[int, int, int]:
    """(rows of partial sums, columns, warps) of a program that sums `partials` rows: narrow columns, many programs."""
    if hidden <= 256 and partials > 64:
        return 128, 8, 4
    if partials <= 64:
        return 64, 16, 4
    if partials <= 256:
        return 128, 16, 4
    return 256, 16, 8


def _unknown_schedule(config: Config, problem: Problem) -> IllegalConfigError:
    return IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")


def _threads(config: Config, target: Target) -> int:
    threads = config.num_warps * target.warp_size
    if threads > target.max_threads:
        raise IllegalConfigError(f"{threads} threads exceed {target.max_threads}")
    return threads


def _tile(
    config: Config, problem: Problem, target: Target, alignment: int | None, max_elements: int, streamed_tiles: int
) -> Launch:
    """Whole rows in one tile: a program per block of rows, or a fixed grid of programs."""
    block_col = next_power_of_2(problem.hidden)
    threads = _threads(config, target)
    looped = config.schedule == "persistent"
    num_stages = config.num_stages if looped else 1
    # The compiler keeps one tile fewer than stages in shared memory: the last is in registers (seen for sm_90).
    buffered = streamed_tiles * (num_stages - 1) * ITEMSIZE[problem.dtype]
    shared_bytes = target.shared_bytes - RESERVED_SHARED_BYTES

    block_row = 1 if config.schedule == "row" else config.block_row
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
    )


def _split(config: Config, problem: Problem, target: Target, alignment: int | None) -> Launch:
    """One row at a time, its columns in chunks, in a fixed grid; two stages bring the next row into the L2."""
    threads = _threads(config, target)
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
        held=row * (2 * ITEMSIZE[problem.dtype] + 4) <= MAX_HELD_BYTES,
    )


def _columns(config: Config, problem: Problem, target: Target, alignment: int | None, wants_dweight: bool) -> Launch:
    """A program per block of rows and, for the weight gradient, programs of `block_col` columns each."""
    rows = _tile(config, problem, target, alignment, MAX_BACKWARD_ELEMENTS_PER_THREAD, streamed_tiles=0)
    if not wants_dweight:
        return rows
    if problem.rows > MAX_COLUMNS_ROWS:
        raise IllegalConfigError(f"{problem.rows} rows exceed {MAX_COLUMNS_ROWS}, which a program of columns walks")
    if config.block_col < 1:
        raise IllegalConfigError("finish 'columns' without block_col")
    threads = config.num_warps * target.warp_size
    slice_col = min(config.block_col, next_power_of_2(problem.hidden))
    slice_row = max(1, min(_MAX_SLICE_ROWS, _SLICE_ELEMENTS_PER_THREAD * threads // slice_col))
    buffered = 2 * (config.num_stages - 1) * ITEMSIZE[problem.dtype] * slice_row * slice_col
    shared_bytes = target.shared_bytes - RESERVED_SHARED_BYTES
    if buffered > shared_bytes:
        raise IllegalConfigError(f"{buffered} bytes of pipeline buffers exceed {shared_bytes}")
    return rows._replace(
        grid=rows.grid + -(-problem.hidden // slice_col),
        num_stages=config.num_stages,
        finish="columns",
        slice_row=slice_row,
        slice_col=slice_col,
    )
