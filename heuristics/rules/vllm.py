"""The launch rule of the CUDA RMSNorm in vLLM, after #27931: one row per block, fewer threads for many rows.

In: a problem. Out: a config of the forward; vLLM has no backward.

Omitted: vectors of 16 bytes per thread, which the compiler chooses here; the fallback to single elements for unaligned
rows; the batch-invariant mode. Threads are rounded up to a power of two of warps. There is no answer if a row exceeds
what those warps hold here, because a block does not loop over the columns.
"""

from math import gcd

from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.rms_norm.launch import MAX_FORWARD_ELEMENTS_PER_THREAD
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_FEW_ROWS = 256
_VECTOR_BYTES = 16


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none. Independent of the target."""
    if problem.operator != FORWARD:
        return None
    vector = gcd(_VECTOR_BYTES // ITEMSIZE[problem.dtype], problem.hidden)
    threads = min(problem.hidden // vector, 1024 if problem.rows < _FEW_ROWS else 256)
    warps = next_power_of_2(-(-threads // 32))
    if next_power_of_2(problem.hidden) > MAX_FORWARD_ELEMENTS_PER_THREAD * 32 * warps:
        return None
    return RMSNormConfig("row", 1, warps)


RULE = Rule("vllm", "vLLM, CUDA", "vLLM #27931", choose)
