"""LayerNorm's forward: knobs, buffers, spaces, default config and spec.

Out: a registered `OperatorSpec`. Imports neither torch nor triton. The statistics are always stored, in float32: two
numbers a row cost nothing beside the row, and a mode without them would double the binaries.
"""

from functools import partial
from itertools import product
from typing import Annotated

from layer_norm_forward.launch import MAX_ELEMENTS_PER_THREAD, resolve
from normtune import Config, OperatorSpec, register
from normtune.kernels.problem import INPUT, ITEMSIZE, OUTPUT, WEIGHT, Buffer, Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2
from normtune.kernels.tiles.trial import trial


class LayerNormConfig(Config):
    """A config of LayerNorm's forward."""

    schedule: Annotated[str, "row, block_row (block_row rows a program), or persistent (a fixed grid of such blocks)."]
    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "depth of the software pipeline of the loop over blocks of rows."] = 1
    programs_per_sm: Annotated[int, "size of the fixed grid, programs a multiprocessor; 0 without one."] = 0


_WARPS = (1, 2, 4, 8, 16, 32)
# Values of block_row, num_stages and programs_per_sm; least elements per thread of a tile, without and in a loop; and
# warps of all programs on a multiprocessor.
_DEFAULT = (1, 2, 8, 32, 128), (1, 3), (1, 2, 4, 8), (4, 16), (8, 16, 32)
_FULL = (1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 3, 4), (1, 2, 4, 8, 16), (1, 1), (1, 2, 4, 8, 16, 32, 64)


def _space(name: str, problem: Problem, target: Target) -> list[Config]:
    rows, stages, programs, (least, least_looped), resident = _FULL if name == "full" else _DEFAULT
    configs: set[Config] = {_default_config(problem, target)}
    for block_row, warps in product(rows, _WARPS):
        elements = block_row * next_power_of_2(problem.hidden) / (warps * target.warp_size)
        if least <= elements <= MAX_ELEMENTS_PER_THREAD:
            configs.add(LayerNormConfig("row" if block_row == 1 else "block_row", block_row, warps))
        if least_looped <= elements <= MAX_ELEMENTS_PER_THREAD:
            for depth, count in product(stages, programs):
                if count * warps in resident:
                    configs.add(LayerNormConfig("persistent", block_row, warps, depth, count))
    return sorted(configs)


def _default_config(problem: Problem, target: Target) -> LayerNormConfig:
    """A row a program, of 16 elements a thread where a program may have as many threads."""
    warps = next_power_of_2(problem.hidden) // (16 * target.warp_size)
    return LayerNormConfig("row", 1, min(max(1, warps), target.max_threads // target.warp_size))


def _buffers(problem: Problem) -> tuple[Buffer, ...]:
    return (
        problem.buffer("x", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("bias", "hidden", WEIGHT),
        problem.buffer("y", "rows,hidden", OUTPUT),
        problem.buffer("mean", "rows", OUTPUT, "float32"),
        problem.buffer("rstd", "rows", OUTPUT, "float32"),
    )


layer_norm_forward = register(
    OperatorSpec(
        name="layer_norm_forward",
        modes=(),
        config=LayerNormConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=65536,
        buffers=_buffers,
        scalars={"eps": 1e-5},
        space=_space,
        resolve=resolve,
        trial=partial(trial, resolve),
        default_config=_default_config,
        kernel_calls="layer_norm_forward.kernels:calls",
        reference_module="layer_norm_forward.reference",
        wide_buffers=("weight", "bias"),
        is_default=False,
    )
)
