"""How a config resolves to a launch of the RMSNorm kernels, and when it cannot.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernels' fingerprint: a change here can change what a config costs.
"""

from math import gcd

from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, Launch
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.target import Target

# Partial sums of a weight gradient may take this much, bytes; a fixed grid of more programs is cut to it.
MAX_WORKSPACE_BYTES = 64 << 20
# A tile of more elements a thread than this spills so much that no shape gains; the two numbers keep the widest row,
# 65536, legal with 32 warps. The backward holds x, dy, weight and the running weight gradient, the forward x alone.
MAX_FORWARD_ELEMENTS_PER_THREAD = 128
MAX_BACKWARD_ELEMENTS_PER_THREAD = 64
# The pipelined loop streams its tiles through shared memory; reductions and layout changes need some besides.
RESERVED_SHARED_BYTES = 8 << 10


def next_power_of_2(value: int) -> int:
    """The least power of two that is at least `value`; `value` is a positive integer."""
    return 1 << (value - 1).bit_length()


def alignment_of(*extents: int) -> int:
    """The largest power of two up to 16 that divides all extents (hidden and row strides, in elements)."""
    return gcd(16, *extents)


def resolve_forward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of `rms_norm_forward`.

    Args:
        config: schedule `row`, `block_row` or `persistent`.
        problem: rows, hidden and dtype of x.
        target: limits of the GPU.
        alignment: largest power of two up to 16 that divides hidden and all row strides; None for contiguous tensors.

    Raises:
        IllegalConfigError: the config cannot run this problem on this target.
    """
    if config.schedule not in ("row", "block_row", "persistent"):
        raise IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")
    return _resolve(config, problem, target, alignment, MAX_FORWARD_ELEMENTS_PER_THREAD, streamed_tiles=1)


def resolve_backward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of `rms_norm_backward`; arguments and errors as in `resolve_forward`, schedule `persistent` only.

    With more than one program and a weight gradient, the partial sums take grid x hidden float32.
    """
    if config.schedule != "persistent":
        raise IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")
    launch = _resolve(config, problem, target, alignment, MAX_BACKWARD_ELEMENTS_PER_THREAD, streamed_tiles=2)
    if "no_dweight" in problem.variant or launch.grid == 1:
        return launch
    if config.finish != "reduce":
        raise IllegalConfigError(f"finish {config.finish!r} cannot end partial sums")
    grid = min(launch.grid, MAX_WORKSPACE_BYTES // (4 * problem.hidden))
    return launch._replace(grid=grid, workspace=grid * problem.hidden)


def reduce_tile(partials: int) -> tuple[int, int, int]:
    """(rows of partial sums, columns, warps) of a program that sums `partials` rows: narrow columns, many programs."""
    if partials <= 64:
        return 64, 16, 4
    if partials <= 256:
        return 128, 16, 4
    return 256, 16, 8


def _resolve(
    config: Config, problem: Problem, target: Target, alignment: int | None, max_elements: int, streamed_tiles: int
) -> Launch:
    block_col = next_power_of_2(problem.hidden)
    threads = config.num_warps * target.warp_size
    if threads > target.max_threads:
        raise IllegalConfigError(f"{threads} threads exceed {target.max_threads}")
    looped = config.schedule == "persistent"
    num_stages = config.num_stages if looped else 1
    # The compiler keeps one tile fewer than stages in shared memory: the last is in registers (seen for sm_90).
    buffered = streamed_tiles * (num_stages - 1) * ITEMSIZE[problem.dtype]
    shared_bytes = target.shared_bytes - RESERVED_SHARED_BYTES

    block_row = 1 if config.schedule == "row" else config.block_row
    while block_row > 1 and (
        block_row * block_col > max_elements * threads or buffered * block_row * block_col > shared_bytes
    ):
        block_row //= 2
    tile = block_row * block_col
    if tile > max_elements * threads:
        raise IllegalConfigError(f"{tile // threads} elements a thread exceed {max_elements}")
    if buffered * tile > shared_bytes:
        raise IllegalConfigError(f"{buffered * tile} bytes of pipeline buffers exceed {shared_bytes}")

    grid = -(-problem.rows // block_row)
    if looped:
        grid = min(grid, config.programs_per_sm * target.sms)
    return Launch(
        looped=looped,
        grid=grid,
        block_row=block_row,
        block_col=block_col,
        num_warps=config.num_warps,
        num_stages=num_stages,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        column_mask=block_col != problem.hidden,
        workspace=0,
    )
