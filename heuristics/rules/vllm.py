"""The launch rule of the CUDA RMSNorm in vLLM, after #27931: one row a block, fewer threads where rows are many.

In: a problem. Out: a config of the forward; vLLM has no backward.

Left out: vectors of 16 bytes a thread, which the compiler chooses here; the fall to single elements where rows are not
aligned; the mode that is invariant to the batch. Threads that fill no power of two of warps are rounded up to one.
There is no answer where a row exceeds what those warps hold here, as a block does not loop over the columns.
"""

from math import gcd

from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm_config import RMSNormConfig
from normtune.kernels.rms_norm_launch import MAX_FORWARD_ELEMENTS_PER_THREAD, next_power_of_2
from normtune.kernels.target import Target

_FEW_ROWS = 256
_VECTOR_BYTES = 16


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None where it has none. The target plays no part."""
    if problem.operator != FORWARD:
        return None
    vector = gcd(_VECTOR_BYTES // ITEMSIZE[problem.dtype], problem.hidden)
    threads = min(problem.hidden // vector, 1024 if problem.rows < _FEW_ROWS else 256)
    warps = next_power_of_2(-(-threads // 32))
    if next_power_of_2(problem.hidden) > MAX_FORWARD_ELEMENTS_PER_THREAD * 32 * warps:
        return None
    return RMSNormConfig("row", 1, warps)


RULE = Rule("vllm", "vLLM, CUDA", "vLLM #27931", choose)
