"""The launch rule of the Triton RMSNorm kernels in ATOM #697 and #708.

In: a problem. Out: a config of the forward; ATOM has no backward.

Two kernels are joined, because each takes the shapes that the other does not: for 128 columns the one with a gate,
which takes tiles of 32 rows from 65536 rows on, and elsewhere the one without a weight, whose number of warps follows
the columns. Omitted: the gate, and the Gemma kernel, whose grid of 304 programs is the number of compute units of one
GPU. There is no answer if a row exceeds what 8 warps hold here.
"""

from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import Target

_GATED_HIDDEN = 128
_GATED_ROWS = 65536
# Elements that 8 warps hold in the forward here.
_MOST_ROW = 32768


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none. Independent of the target."""
    hidden = problem.hidden
    if problem.operator != FORWARD or hidden > _MOST_ROW:
        return None
    if hidden == _GATED_HIDDEN and problem.rows >= _GATED_ROWS:
        return RMSNormConfig("block_row", 32, 4)
    if hidden <= 512:
        return RMSNormConfig("row", 1, 1)
    return RMSNormConfig("row", 1, 4 if hidden <= 4096 else 8)


RULE = Rule("atom", "ATOM, Triton", "ATOM #697 and #708", choose)
