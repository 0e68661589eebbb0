"""Launch rules of other libraries as configs of normtune, to score them on the same kernels.

The docstring of a rule's module lists the parts of the original that it omits.
"""

from normtune.heuristics.rules import (
    aiter,
    atom,
    liger,
    liger_1188,
    liger_1238,
    quack,
    sglang,
    te_cuda,
    te_rocm,
    te_rocm_autotune,
    tilegym,
    triton_autotune,
    vllm,
    vllm_gated,
)
from normtune.heuristics.rules.rule import Autotuned, Rule

RULES: dict[str, Rule] = {
    module.RULE.name: module.RULE
    for module in (
        *(liger, liger_1238, liger_1188),
        *(te_rocm, te_cuda, aiter, tilegym, atom, vllm, vllm_gated, sglang, quack),
    )
}
AUTOTUNED: dict[str, Autotuned] = {rule.RULE.name: rule.RULE for rule in (triton_autotune, te_rocm_autotune)}
