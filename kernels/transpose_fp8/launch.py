"""Resolves a config to a launch of the transposition, if it is legal.

In: config, problem, target. Out: `TransposeLaunch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch,
no triton. Part of the kernels' fingerprint: a change here can change the time of a config.
"""

from typing import NamedTuple

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import RESERVED_SHARED_BYTES, threads_of

# A sector of device memory, bytes: a shorter write takes as long as a whole one.
SECTOR = 32
# Bytes, four per register.
MAX_ELEMENTS_PER_THREAD = 256
# Programs in the second dimension of a grid (CUDA C++ Programming Guide, compute capabilities).
MAX_GRID_Y = 65535


class TransposeLaunch(NamedTuple):
    """A launch of the transposition.

    Attributes:
        grid: blocks of rows; there is a program for each block of rows and of columns.
        block_row, block_col, num_warps: as in the config.
        alignment: largest power of two up to 16 that divides hidden and the row stride, elements.
        row_alignment: 16 if that divides the number of rows, else 1.
        workspace: none.
    """

    grid: int
    block_row: int
    block_col: int
    num_warps: int
    alignment: int
    row_alignment: int
    workspace: int = 0

    @property
    def binary(self) -> "TransposeLaunch":
        """This launch reduced to the fields that determine its binary."""
        return self._replace(grid=0)

    @property
    def row_sum(self) -> tuple[()]:
        """Empty: nothing is summed."""
        return ()


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> TransposeLaunch:
    """The launch of a transposition.

    Args:
        config: block_row, block_col and num_warps.
        problem: rows and hidden.
        target: limits of the GPU.
        alignment: largest power of two up to 16 that divides hidden and the row stride; None for a contiguous tensor.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    check_tile(config.block_row, config.block_col, threads_of(config, target), target, MAX_ELEMENTS_PER_THREAD)
    blocks = -(-problem.hidden // config.block_col)
    if blocks > MAX_GRID_Y:
        raise IllegalConfigError(f"{blocks} blocks of columns exceed {MAX_GRID_Y}")
    return TransposeLaunch(
        grid=-(-problem.rows // config.block_row),
        block_row=config.block_row,
        block_col=config.block_col,
        num_warps=config.num_warps,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        row_alignment=row_alignment_of(problem.rows),
    )


def check_tile(block_row: int, block_col: int, threads: int, target: Target, most: int) -> None:
    """Raise IllegalConfigError for a tile of bytes that cannot be transposed, or holds over `most` bytes a thread."""
    for name, extent in (("block_row", block_row), ("block_col", block_col)):
        if extent < SECTOR or extent & (extent - 1):
            raise IllegalConfigError(f"{name} is {extent}: expected a power of two of at least {SECTOR}")
    tile = block_row * block_col
    if tile > most * threads:
        raise IllegalConfigError(f"{tile // threads} elements a thread exceed {most}")
    if tile > target.shared_bytes - RESERVED_SHARED_BYTES:
        raise IllegalConfigError(f"a tile of {tile} bytes exceeds {target.shared_bytes - RESERVED_SHARED_BYTES}")


def row_alignment_of(rows: int) -> int:
    """Alignment of a transposed row, elements: 16 or 1, so that there are two binaries."""
    return 16 if rows % 16 == 0 else 1
