"""The launch rule that Liger-Kernel ships for RMSNorm, and a proposal to change it, on normtune's kernels.

In: operator, rows, hidden. Out: the config equivalent to Liger's launch. Source: Liger-Kernel 0.8.5, `ops/rms_norm.py`
(`_rms_norm_forward_kernel`, `_block_rms_norm_forward_kernel` and their backwards) and `ops/utils.py`
(`calculate_settings`). The rule depends on neither dtype nor GPU nor pass. Nothing is omitted.

Proposal #1238: blocks of rows from 4096 rows and for up to 512 columns, numbers from one GPU, an RTX 5060 Ti.
"""

from normtune.heuristics.rules.rule import Rule
from normtune.kernels.config import Config
from normtune.kernels.rms_norm.operator import liger_launches


def choose(operator: str, rows: int, hidden: int, block_hidden: int = 256, block_rows: int = 4096 * 8) -> Config | None:
    """The config of Liger's rule; None without an answer.

    Args:
        operator: plain name; the rule covers `rms_norm_forward` and `rms_norm_backward`.
        rows: number of rows.
        hidden: length of a row.
        block_hidden: the most padded columns of a row for several rows per program.
        block_rows: the fewest rows for several rows per program.
    """
    block_col = 1 << (hidden - 1).bit_length()
    both = liger_launches(operator, hidden)
    return both[block_col <= block_hidden and rows >= block_rows] if both else None


RULE = Rule(
    name="liger",
    title="Liger-Kernel 0.8.5",
    source="Liger-Kernel 0.8.5, ops/rms_norm.py and ops/utils.py",
    choose=lambda problem, _: choose(problem.operator, problem.rows, problem.hidden),
)
RULE_1238 = Rule(
    name="liger_1238",
    title="Liger-Kernel with proposal #1238",
    source="Liger-Kernel #1238",
    choose=lambda problem, _: choose(problem.operator, problem.rows, problem.hidden, 512, 4096),
)
