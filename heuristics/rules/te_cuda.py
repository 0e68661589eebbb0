"""The launch rule of the CUDA RMSNorm in Transformer Engine: four rows per block, a warp each, then a row for all four.

In: a problem and the target's warp. Out: a config.

Its tuned and its general kernels divide warps alike, so one ladder holds both; of rows beyond 4096 only those of 8192
have a backward in a single block. The number of programs per multiprocessor comes from the driver there and from an
estimate of registers here (a thread holds x in float32 and the weight as stored, in the backward dy and the running
weight gradient besides, and 32 more), rounded down to a power of two. Omitted: rows for several blocks, for which there
is no answer; FP8 outputs; cuDNN, which an environment variable chooses.
"""

from normtune.heuristics.rules.rule import BACKWARD, FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

_WARPS = 4
_FOUR_ROWS_HIDDEN = {FORWARD: 2048, BACKWARD: 1024}
_ONE_ROW_HIDDEN = {FORWARD: 8192, BACKWARD: 4096}
_LONG_BACKWARD = 8192
# Float32 values per element of a row in a thread's registers, by pass.
_HELD = {FORWARD: 1, BACKWARD: 3}
_OTHER_REGISTERS = 32
_MOST_REGISTERS = 255
_REGISTERS_PER_SM = 65536
_MOST_PROGRAMS = 16


def choose(problem: Problem, target: Target) -> Config | None:
    """The config of the rule; None if it has none."""
    operator, hidden = problem.operator, problem.hidden
    if operator not in (FORWARD, BACKWARD):
        return None
    if hidden > _ONE_ROW_HIDDEN[operator] and (operator == FORWARD or hidden != _LONG_BACKWARD):
        return None
    rows = _WARPS if hidden <= _FOUR_ROWS_HIDDEN[operator] else 1
    programs = _programs_per_sm(problem, rows, target)
    return RMSNormConfig("persistent", rows, _WARPS, 1, programs, "reduce" if operator == BACKWARD else "none")


def _programs_per_sm(problem: Problem, rows: int, target: Target) -> int:
    threads = _WARPS * target.warp_size
    elements = max(1, rows * next_power_of_2(problem.hidden) // threads)
    held = elements * (4 * _HELD[problem.operator] + ITEMSIZE[problem.dtype]) // 4
    fitting = _REGISTERS_PER_SM // (threads * min(held + _OTHER_REGISTERS, _MOST_REGISTERS))
    return min(_MOST_PROGRAMS, 1 << (fitting.bit_length() - 1))


RULE = Rule("te_cuda", "Transformer Engine, CUDA", "Transformer Engine, its RMSNorm kernels in CUDA", choose)
