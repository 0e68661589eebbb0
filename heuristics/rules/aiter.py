"""The launch rule of the Triton RMSNorm in aiter: tiles of rows for short rows.

In: a problem and the target's number of multiprocessors. Out: a config. A forward that stores rstd is training.

Omitted: the forward without tiles, which has no answer because the schedule leaves its launch to older code; the second
kernel's tile of 128 x 64, because sums over programs end here as always; partial sums beyond 64 MB, for which the grid
is cut here. If the schedule names no number of warps, it is the 8 of the other kernels. There is no answer if a row
exceeds what 8 warps hold here.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.mode import Rstd
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_WARPS = 8
_PROGRAMS_PER_SM = 2
_PERSISTENT_HIDDEN = 512
_LARGE_ROWS = 8192
_LARGE_ROWS_HIDDEN = 2048
_TILE_ELEMENTS = 16384
# Elements that 8 warps hold in the backward here.
_MOST_ROW = 16384


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none."""
    rows, hidden = problem.rows, problem.hidden
    many_short = rows > _LARGE_ROWS and hidden <= _LARGE_ROWS_HIDDEN
    if problem.operator == FORWARD:
        training = Rstd.of(problem) is Rstd.STORED
        if many_short or (training and hidden <= _PERSISTENT_HIDDEN):
            return RMSNormConfig("block_row", _tile_rows(hidden, 32), _WARPS)
        return None
    if problem.operator != BACKWARD or hidden > _MOST_ROW:
        return None
    tile_rows = _tile_rows(hidden, 128)
    if hidden <= _PERSISTENT_HIDDEN:
        return RMSNormConfig("persistent", tile_rows, _WARPS, 1, _PROGRAMS_PER_SM, "reduce")
    if many_short:
        programs = -(-rows // tile_rows)  # one per tile
        return RMSNormConfig("persistent", tile_rows, _WARPS, 1, -(-programs // target.sms), "reduce")
    return RMSNormConfig("persistent", 1, _WARPS, 1, 1, "reduce")


def _tile_rows(hidden: int, most: int) -> int:
    return min(max(_TILE_ELEMENTS // next_power_of_2(hidden), 8), most)


RULE = Rule("aiter", "aiter, Triton", "aiter, the schedule module of the Triton RMSNorm", choose)
