"""Modes and launches of the gated RMSNorm kernels, and the layout of their rows.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no
torch, no triton. Part of the kernels' fingerprint.
"""

from typing import Any

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight, Mode
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import MAX_WORKSPACE_BYTES, Launch, next_power_of_2, row_layout, split, tile


class Order(Mode):
    """Whether the gate multiplies the norm, or x before it is normalized."""

    NORM_FIRST = ""
    GATE_FIRST = "gate_first"


class Gate(Mode):
    """Whether there is a gate."""

    PRESENT = ""
    NONE = "no_gate"


class Roundings(Mode):
    """Whether y is rounded once, or wherever Hugging Face's formula rounds."""

    ONCE = ""
    HUGGING_FACE = "hugging_face"


# Most elements of a tile per thread: the forward holds x and z, the backward dy, x, z and the running weight gradient.
# The widest row, 65536, stays legal with 32 warps.
MAX_ELEMENTS_PER_THREAD = 64
_FINISHES = ("reduce", "dependent")


def resolve_forward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of `rms_norm_gated_forward`; each group counts as a row; errors as in `tile`.

    Schedules are `row`, `block_row`, `parts`, `persistent` and `split`. With `block_col`, `row` and `block_row` hold
    rows in chunks of at least so many columns (`held_chunk`), as `persistent` does in the backward.
    """
    if config.schedule == "split":
        return _split(config, problem, target, alignment)._replace(looped=False, grid=problem.rows)
    if config.schedule not in ("row", "block_row", "parts", "persistent"):
        raise _unknown_schedule(config, problem)
    streamed = 2 if Gate.of(problem) is Gate.PRESENT else 1
    least_chunk = config.block_col if config.schedule in ("row", "block_row") else 0
    return _tile(config, least_chunk, problem, target, alignment, streamed)


def held_chunk(hidden: int, least: int) -> int:
    """Columns of a chunk, of rows that a program holds in equal chunks.

    The largest power of two of which a multiple exceeds hidden by at most an eighth, or the smallest one that is at
    least `least`. So one config suits all hidden sizes: 192 are three chunks of 64, 256 are one.
    """
    chunk = next_power_of_2(hidden)
    while chunk >= 2 * least and 8 * (-hidden % chunk) > hidden:
        chunk //= 2
    return chunk


def _tile(
    config: Config, least_chunk: int, problem: Problem, target: Target, alignment: int | None, streamed: int
) -> Launch:
    """Whole rows in one tile; with a `least_chunk`, in several tiles, one for each chunk of columns."""
    chunk = held_chunk(problem.hidden, least_chunk) if least_chunk else problem.hidden
    if chunk >= problem.hidden:
        return tile(config, problem, target, alignment, MAX_ELEMENTS_PER_THREAD, streamed)
    chunks = -(-problem.hidden // chunk)
    most = MAX_ELEMENTS_PER_THREAD // chunks
    alignment = alignment_of(problem.hidden) if alignment is None else alignment
    return tile(config, problem._replace(hidden=chunk), target, alignment, most, streamed * chunks)._replace(
        column_mask=problem.hidden % chunk != 0,
        chunks=chunks,
        held=True,
    )


def resolve_backward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of `rms_norm_gated_backward`; arguments and errors as in `resolve_forward`.

    `persistent` and `split` with more than one program and a weight gradient leave partial sums, grid x hidden float32,
    which `reduce` or `dependent` sums; a target without dependent launches reduces.
    """
    if config.schedule == "split":
        launch = _split(config, problem, target, alignment)
    elif config.schedule == "persistent":
        streamed = 3 if Gate.of(problem) is Gate.PRESENT else 2
        launch = _tile(config, config.block_col, problem, target, alignment, streamed)
    else:
        raise _unknown_schedule(config, problem)
    if Dweight.of(problem) is Dweight.NONE or launch.grid == 1:
        return launch
    if config.finish not in _FINISHES:
        raise IllegalConfigError(f"finish {config.finish!r} cannot end partial sums")
    grid = min(launch.grid, MAX_WORKSPACE_BYTES // (4 * problem.hidden))
    finish = config.finish if target.has_dependent_launch else "reduce"
    return launch._replace(grid=grid, workspace=grid * problem.hidden, finish=finish)


def _split(config: Config, problem: Problem, target: Target, alignment: int | None) -> Launch:
    """As `tiles.launch.split`, without prefetched rows; the weight of a group is aligned as rows are."""
    launch = split(config, problem, target, alignment)
    layout = row_layout(1, launch.block_col, config, problem, target, launch.alignment)
    return launch._replace(num_stages=1, row_layout=layout)


def rows_and_groups(x: Any, rows: int) -> tuple[int, int, int]:
    """Rows, groups of each, and rows an outer stride, of a tensor (rows, hidden) or (outer, inner, groups, hidden).

    A tensor (rows, hidden) may stand for one of `rows` rows, the number of the problem.
    """
    if len(x.shape) == 2:
        return rows, 1, rows
    outer, inner, groups, _ = x.shape
    return outer * inner, groups, inner


def strides(tensor: Any) -> tuple[int, int, int]:
    """Outer, inner and group strides of a tensor of these shapes, elements."""
    return (0, tensor.stride(0), 0) if len(tensor.shape) == 2 else tuple(tensor.stride()[:3])


def parts_of(launch: Launch, rows: int, groups: int) -> int:
    """Programs that share the rows of one group."""
    blocks = -(-rows // launch.block_row)
    return min(blocks, max(1, launch.grid // groups)) if launch.looped else blocks


def _unknown_schedule(config: Config, problem: Problem) -> IllegalConfigError:
    return IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")
