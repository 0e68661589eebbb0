"""The launch rule of the one-pass Triton RMSNorm in SGLang: up to 16 rows per program for many rows.

In: a problem. Out: a config of the forward; SGLang has no backward.

Omitted: the CUDA kernels that SGLang uses for the hidden sizes they were made for. SGLang never stores rstd; here the
problem decides. Tiles beyond what 4 warps hold are lowered here as everywhere, and there is no answer if they hold no
row.
"""

from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_WARPS = 4
_ROWS_PER_PROGRAM = 512
_MOST_ROWS = 16
# Elements that 4 warps hold in the forward here.
_MOST_ROW = 16384


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none. Independent of the target."""
    if problem.operator != FORWARD or problem.hidden > _MOST_ROW:
        return None
    rows = min(_MOST_ROWS, next_power_of_2(max(1, problem.rows // _ROWS_PER_PROGRAM)))
    return RMSNormConfig("block_row" if rows > 1 else "row", rows, _WARPS)


RULE = Rule("sglang", "SGLang, one-pass Triton", "SGLang, its one-pass RMSNorm in Triton", choose)
