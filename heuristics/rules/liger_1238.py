"""The launch rule that Liger-Kernel #1238 proposes: blocks of rows from 4096 rows and for up to 512 columns.

In: a problem. Out: a config. Everything except the switch is as shipped, in `liger`. The numbers of the proposal come
from one GPU, an RTX 5060 Ti. Nothing is omitted.
"""

from normtune.heuristics.rules import liger
from normtune.heuristics.rules.rule import Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

_BLOCK_HIDDEN = 512
_BLOCK_ROWS = 4096


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the proposed rule; None beyond 65536 columns. Independent of the target."""
    return liger.switched(problem.operator, problem.rows, problem.hidden, _BLOCK_HIDDEN, _BLOCK_ROWS)


RULE = Rule(
    *("liger_1238", "Liger-Kernel with proposal #1238", "Liger-Kernel #1238", choose),
    tree=lambda operator: liger.tree(operator, _BLOCK_HIDDEN, _BLOCK_ROWS),
)
