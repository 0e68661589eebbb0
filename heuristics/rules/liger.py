"""The launch rule that Liger-Kernel ships for RMSNorm, and two proposals to change it, on normtune's kernels.

In: operator, rows, hidden. Out: the config equivalent to Liger's launch. Source: Liger-Kernel 0.8.5, `ops/rms_norm.py`
(`_rms_norm_forward_kernel`, `_block_rms_norm_forward_kernel` and their backwards) and `ops/utils.py`
(`calculate_settings`). The rule depends on neither dtype nor GPU nor pass. Nothing is omitted.

Proposal #1238: blocks of rows from 4096 rows and for up to 512 columns, numbers from one GPU, an RTX 5060 Ti. Withdrawn
proposal #1188: fewer warps for short rows in the forward.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import LIGER_MAX_HIDDEN, liger_launches
from normtune.kernels.tablefile.tree import Leaf, Split, Tree
from normtune.kernels.target import Target

NAME = "liger"
TITLE = "Liger-Kernel 0.8.5"

# The most padded columns of a row, and the fewest rows, for several rows per program.
_SHIPPED = 256, 4096 * 8
_PROPOSED = 512, 4096
# Of #1188.
_SHORT_HIDDEN, _SHORT_WARPS = 256, 2


def choose(operator: str, rows: int, hidden: int) -> Config | None:
    """The config of Liger's rule; None without an answer.

    Args:
        operator: plain name; the rule covers `rms_norm_forward` and `rms_norm_backward`.
        rows: number of rows.
        hidden: length of a row.
    """
    return switched(operator, rows, hidden, *_SHIPPED)


def switched(operator: str, rows: int, hidden: int, block_hidden: int, block_rows: int) -> Config | None:
    """The same as `choose`, with other bounds for several rows per program.

    Args:
        operator: plain name.
        rows: number of rows.
        hidden: length of a row.
        block_hidden: the most padded columns of a row for blocks of rows.
        block_rows: the fewest rows for blocks of rows.
    """
    block_col = 1 << (hidden - 1).bit_length()
    both = liger_launches(operator, hidden)
    return both[block_col <= block_hidden and rows >= block_rows] if both else None


def tree(operator: str, block_hidden: int, block_rows: int) -> Tree | None:
    """The answers of `switched` as a tree; None for an operator without a rule."""
    if operator not in (FORWARD, BACKWARD):
        return None

    def leaf(rows: int, hidden: int) -> Leaf:
        config = switched(operator, rows, hidden, block_hidden, block_rows)
        if config is None:
            raise AssertionError("the rule has an answer up to its longest row")
        return Leaf(config)

    short = leaf(1, 1024)
    blocks = Split("rows", block_rows, short, leaf(block_rows, block_hidden))
    # Rows with more columns than these get more warps.
    return Split(
        *("hidden", 4096),
        Split("hidden", 1024, Split("hidden", block_hidden, blocks, short), leaf(1, 4096)),
        Split("hidden", 16384, leaf(1, 16384), leaf(1, LIGER_MAX_HIDDEN)),
    )


def _fewer_warps(problem: Problem, target: Target) -> Config | None:
    """The config of #1188; None beyond 65536 columns."""
    shipped = choose(problem.operator, problem.rows, problem.hidden)
    if shipped and problem.operator == FORWARD and shipped.schedule == "row" and problem.hidden <= _SHORT_HIDDEN:
        return shipped._replace(num_warps=_SHORT_WARPS)
    return shipped


RULE = Rule(
    name=NAME,
    title=TITLE,
    source="Liger-Kernel 0.8.5, ops/rms_norm.py and ops/utils.py",
    choose=lambda problem, _: choose(problem.operator, problem.rows, problem.hidden),
    tree=lambda operator: tree(operator, *_SHIPPED),
)
RULE_1238 = Rule(
    name="liger_1238",
    title="Liger-Kernel with proposal #1238",
    source="Liger-Kernel #1238",
    choose=lambda problem, _: switched(problem.operator, problem.rows, problem.hidden, *_PROPOSED),
    tree=lambda operator: tree(operator, *_PROPOSED),
)
RULE_1188 = Rule("liger_1188", "Liger-Kernel with withdrawn proposal #1188", "Liger-Kernel #1188", _fewer_warps)
