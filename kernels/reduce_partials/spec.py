"""The operator that adds partial sums: config, buffers, spaces, default config.

Out: a registered `OperatorSpec`. The rows of a problem are rows of partial sums, one for each program that wrote some;
its dtype is that of the result. The kernel is that of `tiles.partial_sums`. The spaces are products of knob values, not
narrowed by measurements.
"""

from itertools import product
from typing import Annotated

from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import INPUT, ITEMSIZE, OUTPUT, Buffer, Problem
from normtune.kernels.reduce_partials.launch import MAX_ELEMENTS_PER_THREAD, resolve
from normtune.kernels.rms_norm.long_rows import MAX_HIDDEN
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2


class ReduceConfig(Config):
    """A config of the sum of partial sums."""

    block_row: Annotated[int, "rows of partial sums a program adds at a time."]
    block_col: Annotated[int, "columns a program."]
    num_warps: Annotated[int, "warps a program."] = 4


# Rows and columns of a tile, warps, least and most elements per thread.
_SPACES = {
    "default": ((8, 16, 32, 64, 128, 256), (8, 16, 32, 64, 128), (2, 4, 8), (4, 32)),
    "full": (
        *((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (4, 8, 16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16)),
        (1, MAX_ELEMENTS_PER_THREAD),
    ),
}


def _buffers(problem: Problem) -> tuple[Buffer, ...]:
    return problem.buffer("partials", "rows,hidden", INPUT, "float32"), problem.buffer("total", "hidden", OUTPUT)


def _space(name: str, problem: Problem, target: Target) -> list[Config]:
    """The configs of a space whose tiles are at most half empty."""
    rows, columns, warps, (least, most) = _SPACES[name]
    fitting = {
        ReduceConfig(block_row, block_col, num_warps)
        for block_row, block_col, num_warps in product(rows, columns, warps)
        if least <= block_row * block_col / (num_warps * target.warp_size) <= most
        and block_row <= next_power_of_2(problem.rows)
        and block_col <= next_power_of_2(problem.hidden)
    }
    return sorted({*fitting, _default(problem, target)})


def _default(problem: Problem, target: Target) -> Config:
    """Narrow columns and many programs, as RMSNorm's backward takes for 65 to 256 rows."""
    return ReduceConfig(128, 16, 4)


reduce_partials = register(
    OperatorSpec(
        name="reduce_partials",
        modes=(),
        config=ReduceConfig,
        dtypes=tuple(ITEMSIZE),
        max_hidden=MAX_HIDDEN,
        buffers=_buffers,
        space=_space,
        resolve=resolve,
        default_config=_default,
        kernel_module="normtune.kernels.reduce_partials.kernels",
        reference_module="normtune.kernels.reduce_partials.reference",
        is_default=False,
    )
)
