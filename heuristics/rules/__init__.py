"""Launch rules of other libraries as configs of normtune, to score them on the same kernels.

The docstring of a rule's module or function lists the parts of the original that it omits.
"""

from normtune.heuristics.rules import aiter, forward_only, liger, quack, te_cuda, te_rocm, tilegym, triton_autotune
from normtune.heuristics.rules.rule import Autotuned, Rule

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        *(liger.RULE, liger.RULE_1238),
        *(te_rocm.RULE, te_cuda.RULE, aiter.RULE, tilegym.RULE, *forward_only.RULES, quack.RULE),
    )
}
AUTOTUNED: dict[str, Autotuned] = {rule.name: rule for rule in (triton_autotune.RULE, te_rocm.AUTOTUNED)}
