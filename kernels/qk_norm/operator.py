"""The operators that normalize and rotate heads, and their gradients: config, buffers, spaces, default configs.

Out: registered `OperatorSpec`s. The spaces are products of knob values, not narrowed by measurements. The tensor that
is written in place has no value heads, which no launch reads, so that its bytes are those that a perfect kernel moves.
"""

from dataclasses import replace
from itertools import product
from typing import Annotated

from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight, Product
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import IN_OUT, INPUT, ITEMSIZE, OUTPUT, ROWS_HIDDEN, WEIGHT, Buffer, Problem
from normtune.kernels.qk_norm.launch import (
    BACKWARD,
    FAMILY,
    MAX_ELEMENTS_PER_THREAD,
    SIZES,
    Place,
    Positions,
    Rotary,
    RotationProducts,
    Tables,
    heads_of,
    resolve,
    resolve_backward,
    trial,
)
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2


class QKNormConfig(Config):
    """A config of RMSNorm of heads."""

    block_row: Annotated[int, "heads a program holds at once, each whole."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "depth of the software pipeline of a fixed grid."] = 1
    programs_per_sm: Annotated[
        int, "size of the fixed grid, programs a multiprocessor; 0 where the grid follows the heads."
    ] = 0


MAX_HIDDEN = 16384
# Of models.
HEAD_SIZES = (64, 80, 96, 112, 128, 160, 192, 256)
# Values of block_row, num_warps, num_stages and programs_per_sm, least and most elements per thread.
_SPACES = {
    "default": ((1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (1, 3), (4, 16), (2, 32)),
    "full": (
        *((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32), (1, 2, 3, 4), (1, 2, 4, 8, 16, 32)),
        (1, MAX_ELEMENTS_PER_THREAD),
    ),
}


def _buffers(problem: Problem) -> tuple[Buffer, ...]:
    """Inputs, then the output, in the order of a call."""
    heads, dtype, is_in_place = heads_of(problem), problem.dtype, Place.of(problem) is Place.IN_PLACE
    fused = (problem.rows, heads.written * problem.hidden)
    buffers = [
        Buffer("qkv", fused, dtype, IN_OUT if is_in_place else INPUT, ROWS_HIDDEN),
        *(problem.buffer(name, "hidden", WEIGHT) for name in ("weight_q", "weight_k")),
    ]
    if heads.rotary:
        buffers += [Buffer(name, (problem.rows, heads.table_columns), dtype, INPUT) for name in ("cos", "sin")]
        if Positions.of(problem) is Positions.GIVEN:
            buffers.append(problem.buffer("positions", "rows", INPUT, "int64"))
    if not is_in_place:
        buffers.append(Buffer("out", fused, dtype, OUTPUT, ROWS_HIDDEN))
    return tuple(buffers)


def _backward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    """Both weight gradients are one tensor, because one kernel ends their sums."""
    qkv, *others = _buffers(problem)
    gradients = [qkv._replace(name="dqkv", role=OUTPUT)]
    if Dweight.of(problem) is Dweight.COMPUTED:
        gradients.append(Buffer("dweights", (2, problem.hidden), "float32", OUTPUT))
    inputs = [one for one in others if one.role != OUTPUT]
    return (qkv._replace(name="dout", role=INPUT), qkv._replace(role=INPUT), *inputs, *gradients)


def _space(name: str, problem: Problem, target: Target) -> list[Config]:
    rows, warps, stages, programs, (least, most) = _SPACES[name]
    width = next_power_of_2(problem.hidden)
    chosen: set[Config] = {_default(problem, target)}
    for block_row, num_warps in product(rows, warps):
        if least <= block_row * width / (num_warps * target.warp_size) <= most:
            chosen.add(QKNormConfig(block_row, num_warps))
            chosen |= {QKNormConfig(block_row, num_warps, *knobs) for knobs in product(stages, programs)}
    return sorted(chosen)


def _backward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    looped = {config for config in _space(name, problem, target) if config.programs_per_sm}
    return sorted({*looped, _backward_default(problem, target)})


def _backward_default(problem: Problem, target: Target) -> Config:
    config = _default(problem, target)
    threads = max(128, min(target.max_threads, next_power_of_2(problem.hidden) // 8))
    return config._replace(num_warps=threads // target.warp_size, programs_per_sm=4)


def _default(problem: Problem, target: Target) -> Config:
    """Four warps with a head each, as in FlashInfer; a head of over 512 elements has a program of its own."""
    width = next_power_of_2(problem.hidden)
    if width <= 512:
        return QKNormConfig(4, max(1, 128 // target.warp_size))
    return QKNormConfig(1, max(128, width // 16) // target.warp_size)


qk_norm = register(
    OperatorSpec(
        name=FAMILY,
        modes=(Place, Rotary, Positions, Tables, Product, RotationProducts),
        config=QKNormConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_buffers,
        space=_space,
        resolve=resolve,
        trial=trial,
        default_config=_default,
        kernel_calls="normtune.kernels.qk_norm.kernels:calls",
        reference_module="normtune.kernels.qk_norm.reference",
        wide_buffers=("weight_q", "weight_k", "cos", "sin"),
        scalars={"eps": 1e-6, "offset": 0.25},
        sizes=SIZES,
        axes={"rows": (), "hidden": HEAD_SIZES},
        is_default=False,
        limiting=(Rotary.NONE, Tables.ELEMENTS),
        reference_bytes=120,
    )
)

qk_norm_backward = register(
    replace(
        qk_norm,
        name=BACKWARD,
        # The backward is that of the function without roundings, and never in place.
        modes=(Dweight, Rotary, Positions, Tables),
        buffers=_backward_buffers,
        space=_backward_space,
        resolve=resolve_backward,
        default_config=_backward_default,
        kernel_calls="normtune.kernels.qk_norm.kernels:backward_calls",
    )
)
