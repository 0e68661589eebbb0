"""The two RMSNorm operators as the rest of normtune sees them: buffers, bytes, spaces.

In: nothing. Out: registered `OperatorSpec`s. How a config resolves is in rms_norm_launch, the kernels are in
rms_norm_forward and rms_norm_backward, the reference is in rms_norm_reference.
"""

from itertools import product

from normtune.heuristics.rules import liger
from normtune.kernels.config import Config
from normtune.kernels.operator import Flag, OperatorSpec, register
from normtune.kernels.problem import ITEMSIZE, Buffer, Problem
from normtune.kernels.rms_norm_launch import (
    MAX_BACKWARD_ELEMENTS_PER_THREAD,
    MAX_FORWARD_ELEMENTS_PER_THREAD,
    next_power_of_2,
    resolve_backward,
    resolve_forward,
)
from normtune.kernels.target import Target

MAX_HIDDEN = 65536

_FULL_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_FULL_WARPS = (1, 2, 4, 8, 16, 32)
_FULL_STAGES = (1, 2, 3, 4)
_FULL_PROGRAMS = (1, 2, 4, 8, 16)

# What the quick spaces hold beside Liger's configs: block_row, num_warps, num_stages, programs_per_sm (0: no loop), and
# the least and largest block of columns at which it is tried, at most six at each. Chosen greedily by what they save on
# average on the recorded H200 in bfloat16 and float32, most first; a config that serves neighbouring blocks of columns
# is preferred, because a table needs it measured all over a leaf. Against the best of the default space the best of
# these loses nothing on average forward (6.8 % at worst) and 0.35 % backward (8.2 % at worst).
_QUICK_FORWARD = (
    (2, 1, 1, 0, 64, 512),
    (1, 8, 1, 0, 1024, 8192),
    (1, 4, 1, 0, 2048, 4096),
    (8, 4, 1, 0, 64, 1024),
    (1, 1, 1, 0, 128, 1024),
    (1, 8, 4, 2, 8192, 16384),
    (32, 8, 1, 0, 64, 128),
    (2, 4, 1, 0, 512, 2048),
    (1, 16, 1, 0, 4096, 32768),
    (1, 4, 4, 2, 4096, 8192),
    (1, 4, 4, 16, 4096, 8192),
    (32, 16, 1, 0, 128, 256),
    (1, 2, 1, 0, 1024, 2048),
)
_QUICK_BACKWARD = (
    (1, 4, 4, 2, 1024, 4096),
    (4, 2, 4, 4, 128, 512),
    (1, 8, 4, 1, 2048, 8192),
    (32, 4, 1, 4, 64, 128),
    (2, 4, 4, 2, 512, 2048),
    (4, 8, 1, 1, 1024, 2048),
    (2, 16, 1, 1, 4096, 8192),
    (2, 1, 4, 4, 128, 512),
    (4, 4, 3, 2, 512, 1024),
    (4, 1, 4, 8, 64, 256),
    (1, 1, 2, 1, 64, 256),
    (1, 8, 3, 2, 2048, 8192),
    (16, 2, 1, 4, 64, 128),
    (2, 4, 3, 2, 1024, 2048),
    (1, 16, 3, 1, 4096, 8192),
    (4, 1, 1, 4, 256, 256),
    (32, 4, 4, 2, 64, 64),
    (4, 2, 3, 4, 256, 512),
    (1, 2, 3, 8, 512, 1024),
    (1, 8, 1, 1, 16384, 16384),
    (1, 16, 1, 1, 16384, 32768),  # 32 warps of 64 threads do not exist
)


def _forward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    shape = (problem.rows, problem.hidden)
    buffers = (
        Buffer("x", shape, problem.dtype, "input"),
        Buffer("weight", (problem.hidden,), problem.dtype, "weight"),
        Buffer("y", shape, problem.dtype, "output"),
    )
    return buffers if problem.variant else (*buffers, Buffer("rstd", (problem.rows,), "float32", "output"))


def _backward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    shape = (problem.rows, problem.hidden)
    buffers = (
        Buffer("dy", shape, problem.dtype, "input"),
        Buffer("x", shape, problem.dtype, "input"),
        Buffer("weight", (problem.hidden,), problem.dtype, "weight"),
        Buffer("rstd", (problem.rows,), "float32", "input"),
        Buffer("dx", shape, problem.dtype, "output"),
    )
    return buffers if problem.variant else (*buffers, Buffer("dweight", (problem.hidden,), problem.dtype, "output"))


def _elements(config: Config, hidden: int, warp_size: int) -> float:
    """Elements a thread of a config's tile, before `resolve` lowers it."""
    return config.block_row * next_power_of_2(hidden) / (warp_size * config.num_warps)


def _forward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    hidden, warp_size = problem.hidden, target.warp_size
    flat = [
        Config("row" if rows == 1 else "block_row", rows, warps) for rows, warps in product(_FULL_ROWS, _FULL_WARPS)
    ]
    looped = [
        Config("persistent", rows, warps, stages, programs)
        for rows, warps, stages, programs in product(_FULL_ROWS, _FULL_WARPS, _FULL_STAGES, _FULL_PROGRAMS)
    ]
    if name == "quick":
        chosen = _quick(_QUICK_FORWARD, hidden, "none")
    elif name == "full":
        chosen = [config for config in flat + looped if 1 <= _elements(config, hidden, warp_size) <= 128]
    else:
        chosen = [config for config in flat if _is_default_flat(config, hidden, warp_size)]
        chosen += [config for config in looped if _is_default_looped(config, hidden, warp_size)]
    return sorted({*chosen, *_liger_configs(rms_norm_forward.name, hidden)})


# The default spaces hold what the full space, tried on the 20 shapes of the grid `probe` in bfloat16 on an H200, showed
# to win by more than 1 % somewhere: no shape there loses more than 0.8 % against the full space (benchmarks/space.py).
# Leaving out a value named below cost the percentage beside it at the shape where it wins.


def _is_default_flat(config: Config, hidden: int, warp_size: int) -> bool:
    elements, block_col = _elements(config, hidden, warp_size), next_power_of_2(hidden)
    if config.block_row == 1 and config.num_warps == 32:
        return 4 <= elements <= 64
    if config.block_row not in (1, 2, 8, 16, 32):  # 32: 1.8 % at 32768 x 256
        return False
    if elements == 2:  # 1.0 % at 4096 x 128
        return config.block_row > 1 and config.num_warps == 8 and block_col <= 256
    if elements == 64:  # 1.4 % at 65536 x 768, 2.8 % at 1 x 32768
        return (config.block_row, config.num_warps) in ((8, 4), (1, 16))
    return 4 <= elements <= 32 and config.block_row * block_col <= 16384


def _is_default_looped(config: Config, hidden: int, warp_size: int) -> bool:
    return (
        config.num_stages == 4  # 4.0 % at 1024 x 5120
        and config.block_row in (1, 2)
        and config.programs_per_sm in (2, 8, 16)  # 2: 5.9 % at 1024 x 5120; 8: 1.4 % at 4096 x 1536
        and 16 <= _elements(config, hidden, warp_size) <= 64
    )


def _backward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    hidden, warp_size = problem.hidden, target.warp_size
    looped = [
        Config("persistent", rows, warps, stages, programs, "reduce")
        for rows, warps, stages, programs in product(_FULL_ROWS, _FULL_WARPS, _FULL_STAGES, _FULL_PROGRAMS)
    ]
    if name == "quick":
        chosen = _quick(_QUICK_BACKWARD, hidden, "reduce")
    elif name == "full":
        chosen = [config for config in looped if 1 <= _elements(config, hidden, warp_size) <= 64]
    else:
        chosen = [config for config in looped if _is_default_backward(config, hidden, warp_size)]
    return sorted({*chosen, *_liger_configs(rms_norm_backward.name, hidden)})


def _quick(table: tuple[tuple[int, ...], ...], hidden: int, finish: str) -> list[Config]:
    block_col = min(max(next_power_of_2(hidden), 64), 32768)
    found = []
    for rows, warps, stages, programs, least, most in table:
        if least <= block_col <= most and programs:
            found.append(Config("persistent", rows, warps, stages, programs, finish))
        elif least <= block_col <= most:
            found.append(Config("row" if rows == 1 else "block_row", rows, warps))
    return found


def _liger_configs(name: str, hidden: int) -> set[Config]:
    """What Liger-Kernel's rule and its open proposal (Liger-Kernel #1238) map to, so that both can be scored anywhere.

    The two differ in where a row gives way to a block of rows: both are in the space at every shape.
    """
    return {config for config in (liger.choose(name, 1, hidden), liger.choose(name, 1 << 20, 64)) if config}


def _is_default_backward(config: Config, hidden: int, warp_size: int) -> bool:
    elements, block_col = _elements(config, hidden, warp_size), next_power_of_2(hidden)
    rows, warps, stages, programs = config.block_row, config.num_warps, config.num_stages, config.programs_per_sm
    if block_col >= 16384:
        return rows == 1 and programs in (1, 2) and stages in (1, 2, 3) and elements <= 64
    if block_col <= 256 and (rows, warps, stages, programs) == (1, 1, 2, 1):  # 9.7 % at 1 x 64
        return True
    return (
        rows in (1, 2, 4, 16, 32)  # 2: 2.3 % at 32768 x 4096; 4: 2.5 % at 512 x 2048; 32: 1.7 % at 262144 x 64
        and stages in (1, 3, 4)  # 3: 2.7 % at 32768 x 4096; 4: 5.0 % at 1024 x 5120
        and elements in (8, 16, 32)
        and programs <= 8
        and programs * warps in (4, 8, 16)
    )


def _forward_default(problem: Problem, target: Target) -> Config:
    return Config("row", 1, _default_warps(problem, target, MAX_FORWARD_ELEMENTS_PER_THREAD))


def _backward_default(problem: Problem, target: Target) -> Config:
    warps = _default_warps(problem, target, MAX_BACKWARD_ELEMENTS_PER_THREAD)
    return Config("persistent", 1, warps, 1, 1, "reduce")


def _default_warps(problem: Problem, target: Target, most: int) -> int:
    """Eight warps, as Transformer Engine (ROCm) runs with autotuning off, and more only where eight are illegal."""
    warps = 8
    while next_power_of_2(problem.hidden) > most * warps * target.warp_size:
        warps *= 2
    return warps


rms_norm_forward = register(
    OperatorSpec(
        name="rms_norm_forward",
        flags=(Flag("store_rstd", "no_rstd"),),
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_forward_buffers,
        space=_forward_space,
        resolve=resolve_forward,
        default_config=_forward_default,
        kernel_module="normtune.kernels.rms_norm_forward",
        reference_module="normtune.kernels.rms_norm_reference",
        sources=("normtune.kernels.rms_norm_forward", "normtune.kernels.rms_norm_launch"),
    )
)

rms_norm_backward = register(
    OperatorSpec(
        name="rms_norm_backward",
        flags=(Flag("needs_dweight", "no_dweight"),),
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_backward_buffers,
        space=_backward_space,
        resolve=resolve_backward,
        default_config=_backward_default,
        kernel_module="normtune.kernels.rms_norm_backward",
        reference_module="normtune.kernels.rms_norm_reference",
        sources=("normtune.kernels.rms_norm_backward", "normtune.kernels.rms_norm_launch"),
    )
)
