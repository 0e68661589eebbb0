"""The transposition: knobs, buffers, spaces, default config and spec.

Out: a registered `OperatorSpec`. The dtype of its problems is bfloat16, that of the tensor before it was quantized,
because no problem has a dtype of 8 bits.
"""

from itertools import product
from typing import Annotated

from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import INPUT, OUTPUT, Buffer, Problem
from normtune.kernels.target import Target
from normtune.kernels.transpose_fp8.launch import resolve


class TransposeConfig(Config):
    """A config of the transposition."""

    block_row: Annotated[int, "rows of the tile that a program transposes."]
    block_col: Annotated[int, "columns of that tile."]
    num_warps: Annotated[int, "warps a program."] = 4


MAX_HIDDEN = 1 << 20
# The one FP8 dtype that Triton has for every GPU; the kernel moves bytes.
DTYPE = "float8_e5m2"
# Values of block_row, block_col and num_warps, least and most bytes a thread.
_SPACES = {
    "default": ((32, 64, 128), (32, 64, 128, 256), (2, 4, 8), 8, 128),
    "full": ((32, 64, 128, 256), (32, 64, 128, 256, 512), (1, 2, 4, 8, 16), 4, 256),
}
_DEFAULT = TransposeConfig(64, 64, 4)


def _buffers(problem: Problem) -> tuple[Buffer, ...]:
    return problem.buffer("x", "rows,hidden", INPUT, DTYPE), problem.buffer("y", "hidden,rows", OUTPUT, DTYPE)


def configs(name: str, target: Target) -> list[TransposeConfig]:
    """The configs of a space, for any problem."""
    rows, columns, warps, least, most = _SPACES[name]
    return [
        TransposeConfig(block_row, block_col, num_warps)
        for block_row, block_col, num_warps in product(rows, columns, warps)
        if least <= block_row * block_col / (num_warps * target.warp_size) <= most
    ]


def _space(name: str, problem: Problem, target: Target) -> list[Config]:
    return sorted({*configs(name, target), _DEFAULT})


transpose_fp8 = register(
    OperatorSpec(
        name="transpose_fp8",
        modes=(),
        config=TransposeConfig,
        dtypes=("bfloat16",),
        max_hidden=MAX_HIDDEN,
        buffers=_buffers,
        space=_space,
        resolve=resolve,
        default_config=lambda _, __: _DEFAULT,
        kernel_calls="normtune.kernels.transpose_fp8.kernels:calls",
        reference_module="normtune.kernels.transpose_fp8.reference",
        is_default=False,
    )
)
