"""The launch rule of the gated Triton RMSNorm in vLLM (layernorm_guard): up to 4 rows per program for many rows.

In: a problem and the target's number of multiprocessors. Out: a config of the forward; vLLM has no backward.

Omitted: the gate, and groups of columns: a row is one group. There is no answer for rows of more than 64 KB, for which
vLLM raises an error.
"""

from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_MOST_BYTES = 65536


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none."""
    block_col = next_power_of_2(problem.hidden)
    if problem.operator != FORWARD or block_col > _MOST_BYTES // ITEMSIZE[problem.dtype]:
        return None
    rows = min(next_power_of_2(-(-problem.rows // (2 * target.sms))), 4)
    return RMSNormConfig("block_row" if rows > 1 else "row", rows, min(max(block_col // 256, 1), 8))


RULE = Rule("vllm_gated", "vLLM, gated, Triton", "vLLM, layernorm_guard", choose)
