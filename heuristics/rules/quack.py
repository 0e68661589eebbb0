"""The launch rule of the CuTe RMSNorm in quack for Hopper.

In: a problem. Out: a config.

A block's threads are divided among rows: threads over threads per row is BLOCK_ROW here. Omitted: clusters, so there is
no answer for rows that need more than one block; keeping or reloading x in shared memory, and the pipeline of the
backward; a grid of the backward that does not shrink with the rows.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target

# (most hidden, threads per row)
_FORWARD_LADDER = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))
_BACKWARD_LADDER = ((64, 8), (128, 16), (256, 32), (512, 64), (4096, 128))
# (most hidden, programs per multiprocessor)
_PROGRAMS_LADDER = ((256, 16), (1024, 8), (2048, 4), (4096, 2))
# Longer rows need a cluster of blocks: in the forward beyond this many elements of 2 and of 4 bytes.
_FORWARD_MOST_HIDDEN = {2: 16384, 4: 32768}
_BACKWARD_MOST_HIDDEN = 8192


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none. Independent of the target."""
    hidden = problem.hidden
    if problem.operator == FORWARD and hidden <= _FORWARD_MOST_HIDDEN[ITEMSIZE[problem.dtype]]:
        threads = 128 if hidden <= 16384 else 256
        rows = threads // _step(_FORWARD_LADDER, hidden, 256)
        return RMSNormConfig("block_row" if rows > 1 else "row", rows, threads // 32)
    if problem.operator == BACKWARD and hidden <= _BACKWARD_MOST_HIDDEN:
        threads = 128 if hidden <= 4096 else 256
        rows = threads // _step(_BACKWARD_LADDER, hidden, 256)
        return RMSNormConfig("persistent", rows, threads // 32, 1, _step(_PROGRAMS_LADDER, hidden, 1), "reduce")
    return None


def _step(ladder: tuple[tuple[int, int], ...], hidden: int, default: int) -> int:
    return next((value for widest, value in ladder if hidden <= widest), default)


RULE = Rule("quack", "quack, CuTe, on Hopper", "quack, its RMSNorm kernels", choose)
