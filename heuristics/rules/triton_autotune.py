"""The autotuned Triton RMSNorm in flash-attention: every number of warps.

In: a problem and the target's warp. Out: the list of configs that `triton.autotune` times there: one row per program in
the forward, 8 programs per multiprocessor in the backward, each with every power of two of warps up to 1024 threads.

Omitted: it times again only for each hidden size, and keeps the winner at the first number of rows; residual, dropout
and second weights. There is no answer for rows of more than 64 KB, for which it raises an error.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Autotuned
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_MOST_THREADS = 1024
_MOST_BYTES = 65536
_PROGRAMS_PER_SM = 8


def configs(problem: Problem, target: Target) -> tuple[Config, ...]:
    """The list that is timed; empty if flash-attention has no answer."""
    too_long = next_power_of_2(problem.hidden) > _MOST_BYTES // ITEMSIZE[problem.dtype]
    if too_long or problem.operator not in (FORWARD, BACKWARD):
        return ()
    warps = [1 << power for power in range((_MOST_THREADS // target.warp_size).bit_length())]
    if problem.operator == FORWARD:
        return tuple(RMSNormConfig("row", 1, count) for count in warps)
    return tuple(RMSNormConfig("persistent", 1, count, 1, _PROGRAMS_PER_SM, "reduce") for count in warps)


RULE = Autotuned("triton.autotune", "flash-attention, Triton, autotuned", "flash-attention, its layer_norm", configs)
