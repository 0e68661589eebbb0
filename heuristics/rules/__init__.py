"""Launch rules of other libraries, each in the terms of this one, so that they can be scored on the same kernels.

In: a name. Out: `RULES`, all rules by name, and `find`. What a rule leaves out of its original stands in its file.
"""

from normtune.errors import UsageError
from normtune.heuristics.rules import aiter, atom, liger, liger_1238, quack, te_rocm, tilegym, vllm, vllm_gated
from normtune.heuristics.rules.rule import Rule

RULES: dict[str, Rule] = {
    module.RULE.name: module.RULE
    for module in (liger, liger_1238, te_rocm, aiter, tilegym, atom, vllm, vllm_gated, quack)
}


def find(name: str) -> Rule:
    """The rule of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in RULES:
        raise UsageError(f"unknown rule {name!r}: expected one of {', '.join(RULES)}")
    return RULES[name]
