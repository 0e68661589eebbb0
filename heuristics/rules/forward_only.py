"""Launch rules of libraries whose RMSNorm has no backward: ATOM, SGLang and vLLM.

In: a problem and the target's number of multiprocessors. Out: a config of the forward. A rule's docstring lists what it
omits. None has an answer if a row exceeds what its warps hold here.
"""

from math import gcd

from normtune.heuristics.rules.rule import FORWARD, Rule
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.launch import MAX_FORWARD_ELEMENTS_PER_THREAD
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

# Elements that 4 and 8 warps hold in the forward here.
_FOUR_WARPS_ROW, _EIGHT_WARPS_ROW = 16384, 32768
_MOST_GATED_BYTES = 65536


def atom(problem: Problem, target: Target) -> Config | None:
    """ATOM #697 and #708: two kernels joined, because each takes the shapes that the other does not.

    For 128 columns the one with a gate, which takes tiles of 32 rows from 65536 rows on, and elsewhere the one without
    a weight, whose number of warps follows the columns. Omitted: the gate, and the Gemma kernel, whose grid of 304
    programs is the number of compute units of one GPU.
    """
    hidden = problem.hidden
    if problem.operator != FORWARD or hidden > _EIGHT_WARPS_ROW:
        return None
    if hidden == 128 and problem.rows >= 65536:
        return RMSNormConfig("block_row", 32, 4)
    if hidden <= 512:
        return RMSNormConfig("row", 1, 1)
    return RMSNormConfig("row", 1, 4 if hidden <= 4096 else 8)


def sglang(problem: Problem, target: Target) -> Config | None:
    """SGLang, its one-pass Triton kernel: up to 16 rows per program for many rows.

    Omitted: the CUDA kernels that SGLang uses for the hidden sizes they were made for. SGLang never stores rstd; here
    the problem decides. Tiles beyond what 4 warps hold are lowered here as everywhere.
    """
    if problem.operator != FORWARD or problem.hidden > _FOUR_WARPS_ROW:
        return None
    rows = min(16, next_power_of_2(max(1, problem.rows // 512)))
    return RMSNormConfig("block_row" if rows > 1 else "row", rows, 4)


def vllm(problem: Problem, target: Target) -> Config | None:
    """The CUDA kernel in vLLM, after #27931: one row per block, fewer threads for many rows.

    Omitted: vectors of 16 bytes per thread, which the compiler chooses here; the fallback to single elements for
    unaligned rows; the batch-invariant mode. Threads are rounded up to a power of two of warps. A block does not loop
    over the columns.
    """
    if problem.operator != FORWARD:
        return None
    vector = gcd(16 // ITEMSIZE[problem.dtype], problem.hidden)
    threads = min(problem.hidden // vector, 1024 if problem.rows < 256 else 256)
    warps = next_power_of_2(-(-threads // 32))
    if next_power_of_2(problem.hidden) > MAX_FORWARD_ELEMENTS_PER_THREAD * 32 * warps:
        return None
    return RMSNormConfig("row", 1, warps)


def vllm_gated(problem: Problem, target: Target) -> Config | None:
    """The gated Triton kernel in vLLM (layernorm_guard): up to 4 rows per program for many rows.

    Omitted: the gate, and groups of columns: a row is one group. vLLM raises an error for rows of more than 64 KB.
    """
    block_col = next_power_of_2(problem.hidden)
    if problem.operator != FORWARD or block_col > _MOST_GATED_BYTES // ITEMSIZE[problem.dtype]:
        return None
    rows = min(next_power_of_2(-(-problem.rows // (2 * target.sms))), 4)
    return RMSNormConfig("block_row" if rows > 1 else "row", rows, min(max(block_col // 256, 1), 8))


RULES = (
    Rule("atom", "ATOM, Triton", "ATOM #697 and #708", atom),
    Rule("vllm", "vLLM, CUDA", "vLLM #27931", vllm),
    Rule("vllm_gated", "vLLM, gated, Triton", "vLLM, layernorm_guard", vllm_gated),
    Rule("sglang", "SGLang, one-pass Triton", "SGLang, its one-pass RMSNorm in Triton", sglang),
)
