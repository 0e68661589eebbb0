"""Resolves a config to a launch of the quantizing kernels, if it is legal.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernels' fingerprint: a change here can change the time of a config.
"""

from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_quantize_fp8.modes import QuantizeModes, modes_of
from normtune.kernels.rms_norm_quantize_fp8.scales import BLOCK
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch, split, tile
from normtune.kernels.transpose_fp8 import launch as transposition
from normtune.kernels.transpose_fp8.config import TransposeConfig
from normtune.kernels.transpose_fp8.launch import TransposeLaunch

# As in RMSNorm's forward: with more elements, spills cost more than any shape gains.
MAX_ELEMENTS_PER_THREAD = 128
# The first CUDA architecture with instructions that convert to FP8 (PTX ISA, `cvt`).
_FIRST_SM = 89
# AMD's CDNA 3 converts to the fnuz dtypes in hardware; it also runs the OCP dtypes, converted in software.
_FNUZ_TARGETS = ("gfx942",)


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of an operator that does not transpose; errors as in `tile`.

    Schedules are `row`, `block_row`, `parts`, `persistent` and `split`.
    """
    modes = modes_of(problem)
    check_target(modes, target)
    if config.schedule == "split":
        launch = split(config, problem, target, alignment)
        if modes.scaling == "block" and launch.block_col % BLOCK and launch.chunks > 1:
            raise IllegalConfigError(f"chunks of {launch.block_col} columns cut blocks of {BLOCK}")
        launch = launch._replace(looped=False, grid=problem.rows, num_stages=1, row_layout=None)
    elif config.schedule in ("row", "block_row", "parts", "persistent"):
        launch = tile(
            config, problem, target, alignment, MAX_ELEMENTS_PER_THREAD, streamed_tiles=1 + modes.has_residual
        )
        # A whole row is loaded in the layout of its FP8 store, 16 values a thread; a part in the default layout. Their
        # orders of summation differ.
        launch = launch._replace(held=launch.slice_col > 0, row_layout=None)
    else:
        raise IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")
    return launch


class TransposingLaunch(NamedTuple):
    """A launch of the operator that also transposes.

    Attributes:
        norm: launch of the normalizing kernel.
        transpose: the launch after it.
        workspace: none.
    """

    norm: Launch
    transpose: TransposeLaunch
    workspace: int = 0

    @property
    def grid(self) -> int:
        """Programs of the kernel that normalizes."""
        return self.norm.grid

    @property
    def binary(self) -> "TransposingLaunch":
        """This launch without the fields that the binary does not depend on."""
        return TransposingLaunch(self.norm.binary, self.transpose.binary)

    @property
    def row_sum(self) -> Launch:
        """The summation order of `norm`; a transposition sums nothing."""
        return self.norm.row_sum


def resolve_transposing(
    config: Config, problem: Problem, target: Target, alignment: int | None = None
) -> TransposingLaunch:
    """The launch of the operator that also transposes; errors as in `resolve`."""
    of_transpose = TransposeConfig(config.transpose_row, config.transpose_col, config.transpose_warps)
    transpose = transposition.resolve(of_transpose, problem, target, alignment)
    return TransposingLaunch(resolve(config, problem, target, alignment), transpose)


def check_target(modes: QuantizeModes, target: Target) -> None:
    """Raise IllegalConfigError for a target without conversions to the FP8 dtype."""
    number = target.name.removeprefix("sm_")
    is_cuda = number != target.name
    if is_cuda and int(number) < _FIRST_SM:
        raise IllegalConfigError(f"{modes.q_dtype} needs sm_{_FIRST_SM} or newer, this is {target.name}")
    if modes.q_dtype.endswith("fnuz") and target.name not in _FNUZ_TARGETS:
        raise IllegalConfigError(f"{modes.q_dtype} has no instructions on {target.name}")
