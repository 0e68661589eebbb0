"""The launch rule that Liger-Kernel #1188 proposed and withdrew: fewer warps for short rows in the forward.

In: a problem. Out: a config. Everything except the warps of short rows in the forward is as shipped, in `liger`.
Nothing is omitted.
"""

from normtune.heuristics.rules import liger
from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

_SHORT_HIDDEN = 256
_SHORT_WARPS = 2


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the withdrawn rule; None beyond 65536 columns. Independent of the target."""
    shipped = liger.choose(problem.operator, problem.rows, problem.hidden)
    if shipped and problem.operator == FORWARD and shipped.schedule == "row" and problem.hidden <= _SHORT_HIDDEN:
        return shipped._replace(num_warps=_SHORT_WARPS)
    return shipped


RULE = Rule("liger_1188", "Liger-Kernel with withdrawn proposal #1188", "Liger-Kernel #1188", choose)
