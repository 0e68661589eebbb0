"""Resolves a config to a launch of the sum of partial sums, if it is legal.

In: config, problem, target. Out: `ReduceLaunch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernel's fingerprint: a change here can change the time of a config.
"""

from typing import NamedTuple

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2, threads_of

# Most elements of a tile per thread: the loads of a step, and the sums, are in registers.
MAX_ELEMENTS_PER_THREAD = 64


class ReduceLaunch(NamedTuple):
    """A launch of a program for each block of columns, which walks through all rows.

    Attributes:
        grid: programs.
        block_row, block_col: the tile that a program adds at a time.
        num_warps: as the compiler takes them.
        alignment: largest power of two up to 16 that divides hidden.
        workspace: none.
    """

    grid: int
    block_row: int
    block_col: int
    num_warps: int
    alignment: int
    workspace: int = 0

    @property
    def binary(self) -> "ReduceLaunch":
        """This launch without what does not specialise."""
        return self._replace(grid=0)


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> ReduceLaunch:
    """The launch of `reduce_partials`, the same for any number of rows; errors as in `tiles.launch.tile`."""
    threads = threads_of(config, target)
    block_col = min(config.block_col, next_power_of_2(problem.hidden))
    if min(block_col, config.block_row) < 1:
        raise IllegalConfigError(f"a tile of {config.block_row} x {config.block_col} has no element")
    # By the columns of the config: with those of a short row it would be legal there and illegal for longer ones.
    each = config.block_row * config.block_col // threads
    if each > MAX_ELEMENTS_PER_THREAD:
        raise IllegalConfigError(f"{each} elements a thread exceed {MAX_ELEMENTS_PER_THREAD}")
    return ReduceLaunch(
        grid=-(-problem.hidden // block_col),
        block_row=config.block_row,
        block_col=block_col,
        num_warps=config.num_warps,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
    )
