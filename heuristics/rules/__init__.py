"""Launch rules of other libraries as configs of normtune, to score them on the same kernels.

The docstring of a rule's module lists the parts of the original that it omits.
"""

from normtune.heuristics.rules import (
    aiter,
    atom,
    liger,
    quack,
    sglang,
    te_cuda,
    te_rocm,
    tilegym,
    triton_autotune,
    vllm,
    vllm_gated,
)
from normtune.heuristics.rules.rule import Autotuned, Rule

_MODULES = (te_rocm, te_cuda, aiter, tilegym, atom, vllm, vllm_gated, sglang, quack)
RULES: dict[str, Rule] = {
    rule.name: rule for rule in (liger.RULE, liger.RULE_1238, liger.RULE_1188, *(module.RULE for module in _MODULES))
}
AUTOTUNED: dict[str, Autotuned] = {rule.name: rule for rule in (triton_autotune.RULE, te_rocm.AUTOTUNED)}
