"""The launch rule of the cuTile RMSNorm in TileGym.

In: a problem and the target's number of multiprocessors. Out: a config.

cuTile sizes its blocks of threads itself. So warps are the fewest from 4 to 32 with at most 32 elements of the tile per
thread (128 of the row if it is read in chunks). Omitted: hints on latency and on TMA; the cut to 32 programs if the
backward has at most 64 tiles. There is no answer if a row has more than 16 chunks.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import MAX_CHUNKS, MAX_SPLIT_ELEMENTS_PER_THREAD, next_power_of_2

_CHUNK_BYTES = 4096
_ELEMENTS_PER_THREAD = 32


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none."""
    block_col = next_power_of_2(problem.hidden)
    if problem.operator == BACKWARD:
        tile_rows = _backward_rows(problem.rows, block_col)
        warps = _warps(tile_rows * block_col, _ELEMENTS_PER_THREAD)
        return RMSNormConfig("persistent", tile_rows, warps, 1, 1, "reduce")
    if problem.operator != FORWARD:
        return None
    if problem.rows > 2 * target.sms:
        tile_rows = _forward_rows(block_col)
        return RMSNormConfig("persistent", tile_rows, _warps(tile_rows * block_col, _ELEMENTS_PER_THREAD), 1, 1)
    chunk = min(_CHUNK_BYTES // ITEMSIZE[problem.dtype], block_col)
    if -(-problem.hidden // chunk) > MAX_CHUNKS:
        return None
    return RMSNormConfig("split", 1, _warps(block_col, MAX_SPLIT_ELEMENTS_PER_THREAD), block_col=chunk)


def _forward_rows(block_col: int) -> int:
    if block_col <= 1024:
        return 16
    return 2 if block_col >= 16384 else 4


def _backward_rows(rows: int, block_col: int) -> int:
    return 4 if block_col <= 2048 or (rows >= 8192 and block_col <= 4096) else 1


def _warps(elements: int, elements_per_thread: int) -> int:
    """The fewest warps of 32 threads from 4 to 32 with at most `elements_per_thread` elements per thread; else 32."""
    return next((warps for warps in (4, 8, 16) if elements <= elements_per_thread * 32 * warps), 32)


RULE = Rule("tilegym", "TileGym, cuTile", "TileGym, the default mode of its cuTile RMSNorm", choose)
