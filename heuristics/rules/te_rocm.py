"""The launch rule of the Triton RMSNorm in Transformer Engine (ROCm), after #593 and #615, and its autotuning.

In: a problem and the target's number of multiprocessors. Out: a config; with autotuning the list of configs that
`triton.autotune` times there, again for each number of rows.

Differences: the number of warps without autotuning is 8, that of the backward. Rows packed into a program run one after
the other there and as one tile here. Long rows have no pipeline of their columns here and, in the forward, no fixed
grid; their backward leaves partial sums of the programs of the grid here, not of all rows. FP8 outputs, the margin of
multiprocessors and cache hints are not mapped. There is no answer if a chunk or a row exceeds what 8 warps hold here.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Autotuned, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_WARPS = 8
# Longer rows, in bytes, are read in chunks. The forward's chunks are larger than this limit.
_BLOCKED_BYTES = 16384
_FORWARD_CHUNK_BYTES = 65536
_FLAT_HIDDEN = 2048
# (most hidden, most rows per program)
_FORWARD_LADDER = ((128, 16), (256, 4), (512, 2))
_BACKWARD_LADDER = ((128, 4), (512, 2))
_PROGRAMS_PER_SM_KEPT = 8
_PACKED_PROGRAMS_PER_SM = 16
# With autotuning, whose pruning assumes 64 threads a warp.
_AUTOTUNED_WARPS = (1, 4, 8, 16)
_WARP_THREADS = 64
# Elements that 8 warps hold here.
_MOST_CHUNK = 16384
_MOST_ROW = 32768


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none."""
    if problem.operator not in (FORWARD, BACKWARD):
        return None
    itemsize = ITEMSIZE[problem.dtype]
    forward = problem.operator == FORWARD
    if problem.hidden > _BLOCKED_BYTES // itemsize:
        most = (_FORWARD_CHUNK_BYTES if forward else _BLOCKED_BYTES) // itemsize
        chunk = min(most, next_power_of_2(problem.hidden))
        if chunk > _MOST_CHUNK or next_power_of_2(problem.hidden) > _MOST_ROW:
            return None
        if forward:
            return RMSNormConfig("split", 1, _WARPS, block_col=chunk)
        return RMSNormConfig("split", 1, _WARPS, 1, 1, "reduce", chunk)
    if forward:
        packed = rows_per_program(problem.rows, problem.hidden, target.sms, _FORWARD_LADDER)
        if problem.hidden > _FLAT_HIDDEN:
            return RMSNormConfig("persistent", 1, _WARPS, 2, 1)
        return RMSNormConfig("block_row" if packed > 1 else "row", packed, _WARPS)
    packed = rows_per_program(problem.rows, problem.hidden, target.sms, _BACKWARD_LADDER)
    return RMSNormConfig("persistent", packed, _WARPS, 2, _PACKED_PROGRAMS_PER_SM if packed > 1 else 1, "reduce")


def rows_per_program(rows: int, hidden: int, sms: int, ladder: tuple[tuple[int, int], ...]) -> int:
    """Rows packed into a program: doubled while they divide the rows and leave 8 programs per multiprocessor."""
    cap = next((most for widest, most in ladder if hidden <= widest), 1)
    packed = 1
    while 2 * packed <= cap and rows % (2 * packed) == 0 and rows // (2 * packed) >= _PROGRAMS_PER_SM_KEPT * sms:
        packed *= 2
    if packed > 1:
        return packed
    if hidden <= 128 and rows % 4 == 0:
        return 4
    return 2 if hidden <= 512 and rows % 2 == 0 else 1


def autotuned(problem: Problem, target: Target) -> tuple[Config, ...]:
    """The configs of the rule with each number of warps that the pruning leaves; empty if the rule has no config."""
    launch = choose(problem, target)
    if launch is None:
        return ()
    counts = [count for count in _AUTOTUNED_WARPS if problem.hidden / 16 <= _WARP_THREADS * count <= problem.hidden * 2]
    return tuple(launch._replace(num_warps=count) for count in counts or _AUTOTUNED_WARPS)


_TITLE, _SOURCE = "Transformer Engine (ROCm), Triton", "Transformer Engine (ROCm) #593 and #615"
RULE = Rule("te_rocm", f"{_TITLE}, without autotuning", _SOURCE, choose)
AUTOTUNED = Autotuned("te_rocm.autotune", f"{_TITLE}, autotuned", _SOURCE, autotuned)
