"""Resolves a config to a launch of the RMSNorm kernels, if it is legal.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernels' fingerprint: a change here can change the time of a config.
"""

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import (
    MAX_HELD_BYTES,
    MAX_WORKSPACE_BYTES,
    RESERVED_SHARED_BYTES,
    Launch,
    next_power_of_2,
    part_of_chunks,
    row_layout,
    split,
    threads_of,
    tile,
)

# Most elements of a tile per thread: beyond, so much spills that no shape gains. The two numbers keep the widest row,
# 65536, legal with 32 warps. The backward holds x, dy, weight and the running weight gradient, the forward x alone.
MAX_FORWARD_ELEMENTS_PER_THREAD = 128
MAX_BACKWARD_ELEMENTS_PER_THREAD = 64
# A program of columns walks through all rows: beyond 2048 of them partial sums are faster everywhere on the H200.
MAX_COLUMNS_ROWS = 4096
# Elements of x, and as many of dy, per thread and step of such a program.
SLICE_ELEMENTS_PER_THREAD = 16
_MAX_SLICE_ROWS = 512
# Of narrower slices, a tile a block of a cluster, Triton 3.6 and 3.7 sum rows across blocks, which does not compile.
_LEAST_CLUSTER_SLICE = 32
# Most bytes of x and dy that stay in registers where there are no sums: at 25600 in bfloat16 some spill, and a launch
# takes 0.89 of the time of one that reads rows again, at 29568 1.03.
_MAX_HELD_PAIR = 112 << 10
_PARTIAL_FINISHES = ("reduce", "dependent")
# Elements of a chunk per thread in a cluster: the fewest empty ones, then the wider chunk. Two or three blocks of 8192
# columns were as fast as twice as many of 4096, 224 and 229 us at 4096 x 32768 in bfloat16.
_CHUNK_ELEMENTS_PER_THREAD = (8, 16)
# Most narrow chunks in a loop over rows: with five, Triton 3.6 does not compile ("Maximum number of steps exceeded" in
# `TritonGPUPlanCTAPass`).
_MOST_LOOPED_NARROW_CHUNKS = 4
# Longest part in narrow chunks without a loop. It is that of a loop of 512 threads, so that few rows are summed in the
# same order as many.
_MOST_NARROW_COLUMNS = 16384
# Parts of a row, by schedule.
SPLITS = {"split": 1, "split_8": 8}
# Part of the multiprocessors that a fixed grid of clusters takes: a cluster lies within a group of them, whose numbers
# differ. On an H200 30 clusters of four blocks run at once, not 33: 303 us against 346 at 4096 x 32768 in bfloat16.
_ELEVENTHS = {2: 11, 4: 10}
# The blocks of such a cluster add their parts of a row in halves, as one program adds those of `split_8`.
HALVES = "cluster_halves"
# Blocks of a cluster, by schedule; eight are the most that every GPU with clusters has (CUDA C++ Programming Guide).
CLUSTERS = {"cluster_2": 2, "cluster_4": 4, "cluster_8": 8, HALVES: SPLITS["split_8"]}


def resolve_forward(
    config: Config,
    problem: Problem,
    target: Target,
    alignment: int | None = None,
    *,
    max_elements: int = MAX_FORWARD_ELEMENTS_PER_THREAD,
    read: int = 1,
) -> Launch:
    """The launch of `rms_norm_forward`, of a kernel that reads so many tensors (rows, hidden); errors as in `tile`.

    Schedules are `row`, `block_row`, `parts`, `persistent` and `split`. With `block_col`, `parts` sums a row in the
    chunks of `split`, to the same bits. `alignment` and `max_elements` are those of `tile`.
    """
    is_parts = config.schedule == "parts"
    if config.schedule == "split" or (is_parts and config.block_col):
        launch = split(config, problem, target, alignment)._replace(looped=False, grid=problem.rows, num_stages=1)
        return launch._replace(part_col=part_of_chunks(config, problem, target, launch)) if is_parts else launch
    if config.schedule not in ("row", "block_row", "parts", "persistent"):
        raise _unknown_schedule(config, problem)
    return tile(config, problem, target, alignment, max_elements, streamed_tiles=read)


def resolve_backward(
    config: Config, problem: Problem, target: Target, alignment: int | None = None, *, read: int = 2
) -> Launch:
    """The launch of `rms_norm_backward`; arguments and errors as in `resolve_forward`.

    `persistent`, `split` and clusters with more than one program and a weight gradient leave partial sums, grid x
    hidden float32, which `reduce` or `dependent` sums; a target without dependent launches reduces. `row`, `block_row`
    and clusters finish as `columns`, up to `MAX_COLUMNS_ROWS` rows if there is a weight gradient.
    """
    wants_dweight = Dweight.of(problem) is Dweight.COMPUTED
    blocks = CLUSTERS.get(config.schedule, 0)
    if config.schedule in ("row", "block_row") and config.finish != "columns":
        raise IllegalConfigError(f"finish {config.finish!r} needs a grid of fixed size")
    if config.schedule in ("row", "block_row") or (blocks and config.finish == "columns"):
        return _columns(config, problem, target, alignment, wants_dweight)
    if config.schedule in SPLITS:  # x, dy and the float32 weight gradient, if any
        held = 2 * ITEMSIZE[problem.dtype] + 4 * wants_dweight, MAX_HELD_BYTES if wants_dweight else _MAX_HELD_PAIR
        launch = split(config, problem, target, alignment, held, SPLITS[config.schedule])
    elif blocks in _ELEVENTHS:
        launch = _cluster(config, problem, target, alignment, looped=True)
        clusters = max(1, config.programs_per_sm) * (target.sms * _ELEVENTHS[blocks] // (11 * blocks))
        launch = launch._replace(
            grid=min(problem.rows, max(1, clusters)),
            num_stages=min(config.num_stages, 2) if target.has_row_fetch else 1,
        )
    elif blocks:
        raise IllegalConfigError(f"{config.schedule} has no grid of fixed size")
    elif config.schedule == "persistent":
        launch = tile(config, problem, target, alignment, MAX_BACKWARD_ELEMENTS_PER_THREAD, streamed_tiles=read)
    else:
        raise _unknown_schedule(config, problem)
    if not wants_dweight or launch.grid == 1:
        return launch
    if config.finish not in _PARTIAL_FINISHES:
        raise IllegalConfigError(f"finish {config.finish!r} cannot end partial sums")
    grid = min(launch.grid, MAX_WORKSPACE_BYTES // (4 * problem.hidden))
    finish = config.finish if target.has_dependent_launch else "reduce"
    return launch._replace(grid=grid, workspace=grid * problem.hidden, finish=finish)


def _unknown_schedule(config: Config, problem: Problem) -> IllegalConfigError:
    return IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")


def _columns(config: Config, problem: Problem, target: Target, alignment: int | None, wants_dweight: bool) -> Launch:
    """A program a block of rows, or a cluster a row; for the weight gradient, programs of `block_col` columns each."""
    blocks = CLUSTERS.get(config.schedule, 0)
    if blocks:
        rows = _cluster(config, problem, target, alignment)
    else:
        rows = tile(config, problem, target, alignment, MAX_BACKWARD_ELEMENTS_PER_THREAD, streamed_tiles=0)
    if not wants_dweight:
        return rows
    if problem.rows > MAX_COLUMNS_ROWS:
        raise IllegalConfigError(f"{problem.rows} rows exceed {MAX_COLUMNS_ROWS}, which a program of columns walks")
    if config.block_col < 1:
        raise IllegalConfigError("finish 'columns' without block_col")
    threads = config.num_warps * target.warp_size
    slice_col = max(_LEAST_CLUSTER_SLICE if blocks else 1, min(config.block_col, next_power_of_2(problem.hidden)))
    slice_row = max(1, min(_MAX_SLICE_ROWS, SLICE_ELEMENTS_PER_THREAD * threads // slice_col))
    num_stages = 1 if blocks else config.num_stages
    buffered = 2 * (num_stages - 1) * ITEMSIZE[problem.dtype] * slice_row * slice_col
    shared_bytes = target.shared_bytes - RESERVED_SHARED_BYTES
    if buffered > shared_bytes:
        raise IllegalConfigError(f"{buffered} bytes of pipeline buffers exceed {shared_bytes}")
    return rows._replace(
        grid=rows.grid + -(-problem.hidden // (slice_col * max(1, blocks))),
        num_stages=num_stages,
        finish="columns",
        slice_row=slice_row,
        slice_col=slice_col,
    )


def _cluster_chunk(config: Config, problem: Problem, threads: int, looped: bool) -> int:
    """Columns of a chunk of the part of a row that a block of a cluster has, in so many threads."""
    part = -(-problem.hidden // CLUSTERS[config.schedule])
    if config.schedule == HALVES:  # one access a thread, so that one program has its chunks of all parts in registers
        sizes = [16 // ITEMSIZE[problem.dtype] * threads]
    else:
        narrow, wide = (each * threads for each in _CHUNK_ELEMENTS_PER_THREAD)
        most = min(_MOST_NARROW_COLUMNS, _MOST_LOOPED_NARROW_CHUNKS * narrow) if looped else _MOST_NARROW_COLUMNS
        sizes = [wide] if part > most else [narrow, wide]
    block_col = min(sizes, key=lambda size: (-(-part // size) * size, -size))
    return max(threads, min(block_col, next_power_of_2(part)))


def _cluster(config: Config, problem: Problem, target: Target, alignment: int | None, looped: bool = False) -> Launch:
    """A row over the blocks of a cluster, each of which holds a part of its columns."""
    blocks = CLUSTERS[config.schedule]
    if not target.has_clusters:
        raise IllegalConfigError(f"{target.name} has no clusters of programs")
    threads = threads_of(config, target)
    part = -(-problem.hidden // blocks)
    if next_power_of_2(part) > MAX_BACKWARD_ELEMENTS_PER_THREAD * threads:
        raise IllegalConfigError(f"{part} columns of {threads} threads exceed {MAX_BACKWARD_ELEMENTS_PER_THREAD} each")
    block_col = _cluster_chunk(config, problem, threads, looped)
    chunks = -(-part // block_col)
    return Launch(
        looped=looped,
        grid=problem.rows,
        block_row=1,
        block_col=block_col,
        num_warps=config.num_warps,
        num_stages=1,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        column_mask=blocks * chunks * block_col != problem.hidden,
        workspace=0,
        chunks=chunks,
        parts=blocks,
        num_ctas=blocks,
        in_halves=config.schedule == HALVES,
        row_layout=row_layout(1, block_col, config, problem, target, 16),
    )
