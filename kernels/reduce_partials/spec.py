"""Spec of the operator that sums partial sums: buffers, spaces, default config.

In: nothing. Out: a registered `OperatorSpec`. A problem's rows are the rows of partial sums, as many as programs wrote
some, and its dtype is that of the sums. Configs are resolved in `launch`, the kernel is that of `tiles.partial_sums`,
the reference is in `reference`. The spaces are plain products that no GPU has narrowed yet.
"""

from itertools import product

from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import INPUT, ITEMSIZE, OUTPUT, Buffer, Problem
from normtune.kernels.reduce_partials.config import ReduceConfig
from normtune.kernels.reduce_partials.launch import MAX_ELEMENTS_PER_THREAD, resolve
from normtune.kernels.rms_norm.long_rows import MAX_HIDDEN
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

# Rows and columns of a tile, warps, least and most elements per thread.
_SPACES = {
    "quick": ((16, 64, 256), (16, 64), (4, 8), (4, 32)),
    "default": ((8, 16, 32, 64, 128, 256), (8, 16, 32, 64, 128), (2, 4, 8), (4, 32)),
    "full": (
        *((1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (4, 8, 16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16)),
        (1, MAX_ELEMENTS_PER_THREAD),
    ),
}


def _buffers(problem: Problem) -> tuple[Buffer, ...]:
    return problem.buffer("partials", "rows,hidden", INPUT, "float32"), problem.buffer("total", "hidden", OUTPUT)


def _space(name: str, problem: Problem, target: Target) -> list[Config]:
    """Tiles that are no more than half empty."""
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
    """Narrow columns, many programs, as RMSNorm's backward ends with 65 to 256 rows."""
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
        sources=(
            "normtune.kernels.reduce_partials.kernels",
            "normtune.kernels.reduce_partials.launch",
            "normtune.kernels.tiles.partial_sums",
            "normtune.kernels.tiles.tile",
        ),
        is_default=False,
    )
)
