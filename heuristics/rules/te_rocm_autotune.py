"""The autotuned Triton RMSNorm in Transformer Engine (ROCm), after #593 and #615.

In: a problem and the target. Out: the list of configs that `triton.autotune` times there: the answer of `te_rocm` with
1, 4, 8 and 16 warps, minus those removed by its pruning, in which a warp has 64 threads. Differences and missing
answers are those of `te_rocm`.
"""

from normtune.heuristics.rules import te_rocm
from normtune.heuristics.rules.rule import Autotuned
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

_WARPS = (1, 4, 8, 16)
_THREADS = 64


def configs(problem: Problem, target: Target) -> tuple[Config, ...]:
    """The list that is timed; empty if `te_rocm` has no answer."""
    launch = te_rocm.choose(problem, target)
    if launch is None:
        return ()
    kept = [warps for warps in _WARPS if problem.hidden / 16 <= _THREADS * warps <= problem.hidden * 2]
    return tuple(launch._replace(num_warps=warps) for warps in kept or _WARPS)


RULE = Autotuned(
    "te_rocm.autotune",
    "Transformer Engine (ROCm), Triton, autotuned",
    "Transformer Engine (ROCm) #593 and #615",
    configs,
)
