"""Resolves a config to a launch of the kernels that normalize and quantize, if it is legal.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernels' fingerprint: a change here can change the time of a config.
"""

from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_quantize_fp8.variants import BLOCK, Work, work_of
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch, split, tile

# As in RMSNorm's forward, which holds as much: beyond, so much spills that no shape gains.
MAX_ELEMENTS_PER_THREAD = 128
# One program reads the partial maxima of all others, 1024 at a time.
MAX_PARTIALS = 1 << 15
# The first CUDA architecture with instructions that convert to FP8 (PTX ISA, `cvt`).
_FIRST_SM = 89
# AMD's CDNA 3 converts to the fnuz dtypes in hardware; there the OCP dtypes are legal too, but converted in software.
_FNUZ_TARGETS = ("gfx942",)


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of one of the three operators.

    Args:
        config: schedule `row`, `block_row`, `persistent` or `split`.
        problem: rows, hidden and dtype of x; the variant decides on the rest.
        target: limits of the GPU.
        alignment: largest power of two up to 16 that divides hidden and all row strides; None for contiguous tensors.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    work = work_of(problem)
    check_target(work, target)
    if config.schedule == "split":
        launch = split(config, problem, target, alignment)
        if work.scaling == "block" and launch.block_col % BLOCK and launch.chunks > 1:
            raise IllegalConfigError(f"chunks of {launch.block_col} columns cut blocks of {BLOCK}")
        launch = launch._replace(looped=False, grid=problem.rows, num_stages=1)
    elif config.schedule in ("row", "block_row", "persistent"):
        launch = tile(config, problem, target, alignment, MAX_ELEMENTS_PER_THREAD, streamed_tiles=1 + work.has_residual)
    else:
        raise IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")
    if not work.has_amax:
        return launch
    if config.amax == "atomic":
        return launch._replace(finish="atomic")
    if config.amax != "reduce":
        raise IllegalConfigError(f"amax {config.amax!r} cannot end the maximum over all rows")
    if launch.grid > MAX_PARTIALS:
        raise IllegalConfigError(f"{launch.grid} partial maxima exceed {MAX_PARTIALS}")
    return launch._replace(finish="reduce", workspace=launch.grid)


def check_target(work: Work, target: Target) -> None:
    """Raise IllegalConfigError for a target that cannot convert to the dtype."""
    number = target.name.removeprefix("sm_")
    is_cuda = number != target.name
    if is_cuda and int(number) < _FIRST_SM:
        raise IllegalConfigError(f"{work.q_dtype} needs sm_{_FIRST_SM} or newer, this is {target.name}")
    if work.q_dtype.endswith("fnuz") and target.name not in _FNUZ_TARGETS:
        raise IllegalConfigError(f"{work.q_dtype} has no instructions on {target.name}")
