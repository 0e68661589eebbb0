"""The two RMSNorm operators as the rest of normtune sees them: buffers, bytes, spaces.

In: nothing. Out: registered `OperatorSpec`s. How a config resolves is in rms_norm_launch, the kernels are in
rms_norm_forward and rms_norm_backward, the reference is in rms_norm_reference.
"""

from collections.abc import Iterable
from itertools import product

from normtune.kernels.config import Config
from normtune.kernels.operator import Flag, OperatorSpec, register
from normtune.kernels.problem import ITEMSIZE, Buffer, Problem
from normtune.kernels.rms_norm_launch import next_power_of_2, resolve_backward, resolve_forward
from normtune.kernels.target import Target

MAX_HIDDEN = 65536

_FULL_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_FULL_WARPS = (1, 2, 4, 8, 16, 32)
_FULL_STAGES = (1, 2, 3, 4)
_FULL_PROGRAMS = (1, 2, 4, 8, 16)


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


def _forward_bytes(problem: Problem) -> int:
    return sum(buffer.nbytes for buffer in _forward_buffers(problem))


def _backward_bytes(problem: Problem) -> int:
    return sum(buffer.nbytes for buffer in _backward_buffers(problem))


def _warps_like_liger(hidden: int) -> int:
    """num_warps of Liger-Kernel's calculate_settings (version 0.8.5), so that its rule can always be scored."""
    block_col = next_power_of_2(hidden)
    return 32 if block_col >= 32768 else 16 if block_col >= 8192 else 8 if block_col >= 2048 else 4


def _within(configs: Iterable[Config], hidden: int, least: int, most: int) -> list[Config]:
    """The configs whose tile gives each thread `least` to `most` elements."""
    block_col = next_power_of_2(hidden)
    return [c for c in configs if least <= c.block_row * block_col / (32 * c.num_warps) <= most]


def _forward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    flat = [Config("row" if rows == 1 else "block_row", rows, warps) for rows, warps in product(_FULL_ROWS, _FULL_WARPS)]
    liger = [Config("row", 1, _warps_like_liger(problem.hidden)), Config("block_row", 16, 4)]
    looped = [
        Config("persistent", rows, warps, stages, programs)
        for rows, warps, stages, programs in product(_FULL_ROWS, _FULL_WARPS, _FULL_STAGES, _FULL_PROGRAMS)
    ]
    return _merged(_within(flat + looped, problem.hidden, 1, 128), liger)


def _backward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    looped = [
        Config("persistent", rows, warps, stages, programs, "reduce")
        for rows, warps, stages, programs in product(_FULL_ROWS, _FULL_WARPS, _FULL_STAGES, _FULL_PROGRAMS)
    ]
    liger = [
        Config("persistent", 1, _warps_like_liger(problem.hidden), 1, 1, "reduce"),
        Config("persistent", 16, 4, 1, 1, "reduce"),
    ]
    return _merged(_within(looped, problem.hidden, 1, 64), liger)


def _merged(*groups: Iterable[Config]) -> list[Config]:
    return sorted({config for group in groups for config in group})


def _forward_default(hidden: int, dtype: str) -> Config:
    # Eight warps, as Transformer Engine (ROCm) runs with autotuning off, and more only where eight are illegal.
    return Config("row", 1, 16 if next_power_of_2(hidden) > 32768 else 8)


def _backward_default(hidden: int, dtype: str) -> Config:
    block_col = next_power_of_2(hidden)
    return Config("persistent", 1, 32 if block_col > 32768 else 16 if block_col > 16384 else 8, 1, 1, "reduce")


rms_norm_forward = register(
    OperatorSpec(
        name="rms_norm_forward",
        flags=(Flag("store_rstd", "no_rstd"),),
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_forward_buffers,
        bytes_moved=_forward_bytes,
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
        bytes_moved=_backward_bytes,
        space=_backward_space,
        resolve=resolve_backward,
        default_config=_backward_default,
        kernel_module="normtune.kernels.rms_norm_backward",
        reference_module="normtune.kernels.rms_norm_reference",
        sources=("normtune.kernels.rms_norm_backward", "normtune.kernels.rms_norm_launch"),
    )
)
