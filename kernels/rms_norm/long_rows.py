"""Resolves a config to a launch on rows that are too long for one program: each program takes a chunk of the columns.

In: a config that is legal for rows of `MAX_TILED_HIDDEN` elements, problem, target. Out: `Launch`, whose grid is that
of one chunk. Pure arithmetic, no torch, no triton. Part of the kernels' fingerprint.

A row's sum is written by the programs of its chunks into the workspace, a float32 each, and read by the next kernel. So
a single row of a million elements still fills a GPU, and no register holds more than a chunk.
"""

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import MAX_WORKSPACE_BYTES, Launch, threads_of

# Longest row of the kernels in which a program holds or walks through a whole row.
MAX_TILED_HIDDEN = 65536
# Longest row of all: 256 chunks, whose sums each program of a row reads.
MAX_HIDDEN = 1 << 20
# Elements of a chunk per thread: one access of 16 bytes in 16 bits, up to two; the backward holds four such tensors.
LEAST_ELEMENTS_PER_THREAD, MOST_ELEMENTS_PER_THREAD = 8, 16


def long_row_forward(config: Config, problem: Problem, target: Target, alignment: int | None) -> Launch:
    """The launch of a forward: a program for each row of a chunk, whatever the schedule; errors as in `threads_of`.

    Of the config it takes the number of warps and, in `split`, the columns of a chunk.
    """
    threads = threads_of(config, target)
    wanted = config.block_col if config.schedule == "split" else 0
    block_col = min(max(wanted, LEAST_ELEMENTS_PER_THREAD * threads), MOST_ELEMENTS_PER_THREAD * threads)
    chunks = -(-problem.hidden // block_col)
    return Launch(
        looped=False,
        grid=problem.rows,
        block_row=1,
        block_col=block_col,
        num_warps=config.num_warps,
        num_stages=1,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        column_mask=problem.hidden % block_col != 0,
        workspace=problem.rows * chunks,
        chunks=chunks,
    )


def long_row_backward(
    config: Config, problem: Problem, target: Target, alignment: int | None, wants_dweight: bool
) -> Launch:
    """The launch of a backward; arguments and errors as in `long_row_forward`.

    With a weight gradient the programs of a chunk are at most `programs_per_sm` a multiprocessor, over all chunks, and
    stride over the rows. Each leaves partial sums of its columns, which are then reduced; a single one writes dweight.
    """
    launch = long_row_forward(config, problem, target, alignment)
    if not wants_dweight:
        return launch
    programs = max(1, config.programs_per_sm) * target.sms // launch.chunks
    grid = max(1, min(problem.rows, programs, MAX_WORKSPACE_BYTES // (4 * problem.hidden)))
    if grid == 1:
        return launch._replace(grid=1)
    return launch._replace(grid=grid, workspace=launch.workspace + grid * problem.hidden, finish="reduce")
