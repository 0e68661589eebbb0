"""The two operators of gated RMSNorm: spaces, default configs, buffers and specs.

Out: registered `OperatorSpec`s. A row of several groups moves as many bytes as that many rows of a group's length, and
runs the same binary. So groups are measured, looked up and launched as rows x groups rows of `hidden` = group size.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight, Rstd
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import Buffer, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig, parts, rms_norm_backward, rms_norm_forward, with_buffers
from normtune.kernels.rms_norm_gated.launch import (
    MAX_ELEMENTS_PER_THREAD,
    Gate,
    Order,
    Roundings,
    held_chunk,
    resolve_backward,
    resolve_forward,
)
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import MAX_SPLIT_ELEMENTS_PER_THREAD, next_power_of_2
from normtune.kernels.tiles.trial import trial

MAX_HIDDEN = 65536
# Elements per thread of a row in chunks, whose weight gradient the backward sums in registers. In bfloat16 on sm_90 a
# thread spills at most 160 bytes with 64 of them and 824 to 2352 with 128, whatever the chunk. With 128 no recorded
# config takes less than 1.96 of the best time.
_MOST_SUMMED = 64
# Elements of a tile of the backward: larger ones spill 264 to 1080 bytes a thread, and none that was recorded takes
# less than 1.5 of the best time.
_MOST_TILE = 8192
# Longer rows also have programs with the most threads: with fewer, a thread of the backward would hold more.
_MOST_OF_512_THREADS = 16384
# Elements that a program holds in chunks. With more, 512 threads spill: 8 to 200 bytes each from 40 elements in float32
# on, and from 56 in bfloat16 (sm_90).
_MOST_HELD = 16384
# Elements of a held chunk per thread: chunks differ from one hidden size to the next, and a config should suit several.
_LEAST_HELD_ELEMENTS = 2
# The same for whole rows of the backward: the best configs had 8 to 24 of them at 23 shapes on an H200.
_HELD_BACKWARD = (2, 32)
# There rows in held chunks were fastest in two more stages from 256 rows on, and in none with fewer.
_LEAST_STAGED_ROWS = 256
# Columns of a held chunk, at least: 32 bytes in bfloat16, as much as the L2 reads at a time.
_LEAST_HELD_CHUNK = 16


class _KnobValues(NamedTuple):
    """A space: the product of values of the knobs, within bounds on elements per thread.

    Attributes:
        rows, warps, stages, programs, chunks: values of the knobs.
        least, most: elements of a tile per thread.
        most_split: elements per thread of a row in chunks.
        most_tile: elements of a tile.
        held: least and most elements per thread of rows in held chunks.
    """

    rows: tuple[int, ...]
    warps: tuple[int, ...]
    stages: tuple[int, ...]
    programs: tuple[int, ...]
    chunks: tuple[int, ...]
    least: int
    most: int
    most_split: int = MAX_SPLIT_ELEMENTS_PER_THREAD
    most_tile: int = MAX_HIDDEN
    held: tuple[int, int] = (_LEAST_HELD_ELEMENTS, MAX_ELEMENTS_PER_THREAD)

    def flat(self) -> list[Config]:
        """The configs with a program for each block of rows."""
        return [
            RMSNormConfig("row" if rows == 1 else "block_row", rows, warps)
            for rows, warps in product(self.rows, self.warps)
        ]

    def parts(self, problem: Problem, target: Target) -> list[Config]:
        """The configs with several programs for each row."""
        return parts(problem, target, self.warps, (1, 2), (self.least, self.most))

    def looped(self, finish: str) -> list[Config]:
        """The configs with a fixed grid."""
        knobs = product(self.rows, self.warps, self.stages, self.programs)
        return [RMSNormConfig("persistent", *values, finish) for values in knobs]

    def split(self, programs: tuple[int, ...], finish: str, hidden: int, target: Target) -> list[Config]:
        """The configs with rows in chunks."""
        is_long = hidden > _MOST_OF_512_THREADS
        warps = {*self.warps, target.max_threads // target.warp_size} if is_long else self.warps
        return [
            RMSNormConfig("split", 1, count, 1, per_sm, finish, chunk)
            for count, per_sm, chunk in product(warps, programs, self.chunks)
        ]

    def fits(self, config: Config, hidden: int, warp_size: int) -> bool:
        """Whether a tile, or a chunk and its rows, has enough elements for each thread, and not too many."""
        threads = warp_size * config.num_warps
        if config.schedule == "split":
            row = -(-hidden // config.block_col) * config.block_col
            return hidden > config.block_col >= 4 * threads and row <= self.most_split * threads
        if config.block_col:
            chunk = held_chunk(hidden, config.block_col)
            row = -(-hidden // chunk) * chunk
            least, most = (count * threads for count in self.held)
            is_narrower = 8 * row <= 7 * next_power_of_2(hidden)
            most = min(most, _MOST_HELD, self.most_tile)
            return is_narrower and least <= config.block_row * chunk and config.block_row * row <= most
        tile = config.block_row * next_power_of_2(hidden)
        return self.least * threads <= tile <= min(self.most * threads, self.most_tile)


# Decoding runs tens of rows of 64 to 256 elements, prefilling a million: from a warp per row to blocks of 64 rows.
_FORWARD = {
    "default": _KnobValues((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), (3,), (4, 16), (1024, 2048, 4096, 8192), 4, 32),
    "full": _KnobValues(
        *((1, 2, 4, 8, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32), (1, 2, 3, 4), (1, 2, 4, 8, 16)),
        *((512, 1024, 2048, 4096, 8192), 1, MAX_ELEMENTS_PER_THREAD),
        held=(1, MAX_ELEMENTS_PER_THREAD),
    ),
}
_BACKWARD = {
    "default": _KnobValues(
        *((1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16), (1, 3), (1, 2, 4), (1024, 2048, 4096, 8192)),
        *(4, 32, _MOST_SUMMED, _MOST_TILE, _HELD_BACKWARD),
    ),
    "full": _FORWARD["full"],
}


def _with_gate(spec: OperatorSpec, problem: Problem) -> tuple[Buffer, ...]:
    """RMSNorm's buffers, with z after x and dz after dx."""
    has_gate = Gate.of(problem) is Gate.PRESENT
    return with_buffers(spec, {"x": ("x", "z"), "dx": ("dx", "dz")} if has_gate else {}, problem)


def _forward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    space = _FORWARD[name]
    configs = space.flat() + space.looped("none") + space.split((0,), "none", problem.hidden, target)
    configs += _held(space.flat()) + space.parts(problem, target)
    return _chosen(configs, space, problem, target, _forward_default)


def _backward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    space = _BACKWARD[name]
    # As for RMSNorm: on a GPU with dependent launches they take up to 8 % less time than plain ones.
    finishes = ("reduce", "dependent") if name == "full" else ("dependent",)
    finishes = finishes if target.has_dependent_launch else ("reduce",)
    configs: list[Config] = []
    for finish in finishes:
        looped = held = space.looped(finish)
        if name == "default":
            held = [one for one in looped if (one.num_stages > 1) == (problem.rows >= _LEAST_STAGED_ROWS)]
        configs += looped + _held(held) + space.split((1, 2), finish, problem.hidden, target)
    return _chosen(configs, space, problem, target, _backward_default)


def _held(configs: list[Config]) -> list[Config]:
    """The same configs with rows in held chunks; the launches are the same if a row is one chunk."""
    return [config._replace(block_col=_LEAST_HELD_CHUNK) for config in configs]


def _chosen(
    configs: list[Config],
    space: _KnobValues,
    problem: Problem,
    target: Target,
    default: Callable[[Problem, Target], Config],
) -> list[Config]:
    fitting = {config for config in configs if space.fits(config, problem.hidden, target.warp_size)}
    return sorted({*fitting, default(problem, target)})


def _forward_default(problem: Problem, target: Target) -> Config:
    if problem.hidden > 8192:
        return _split(problem, target, 0, "none")
    return RMSNormConfig("row", 1, _default_warps(problem, target))


def _backward_default(problem: Problem, target: Target) -> Config:
    if problem.hidden > 8192:  # a whole row, and four more of its length, do not fit into the registers
        return _split(problem, target, 1, "reduce")
    return RMSNormConfig("persistent", 1, _default_warps(problem, target), 1, 4, "reduce")


def _split(problem: Problem, target: Target, programs: int, finish: str) -> Config:
    threads = 512 if problem.hidden <= _MOST_OF_512_THREADS else 1024
    return RMSNormConfig("split", 1, threads // target.warp_size, 1, programs, finish, 4096)


def _default_warps(problem: Problem, target: Target) -> int:
    """A warp for up to 512 elements of a row, as in ATOM's and vLLM's kernels for heads of 128; then 16 per thread."""
    threads = max(target.warp_size, min(target.max_threads, next_power_of_2(problem.hidden) // 16))
    return threads // target.warp_size


# RMSNorm's specs but for kernels, launches and what a gate adds.
rms_norm_gated_forward = register(
    replace(
        rms_norm_forward,
        name="rms_norm_gated_forward",
        modes=(Rstd, Order, Gate, Roundings),
        limiting=(Gate.NONE,),
        max_hidden=MAX_HIDDEN,
        buffers=partial(_with_gate, rms_norm_forward),
        space=_forward_space,
        resolve=resolve_forward,
        trial=partial(trial, resolve_forward),
        default_config=_forward_default,
        kernel_calls="normtune.kernels.rms_norm_gated.kernels:forward_calls",
        reference_module="normtune.kernels.rms_norm_gated.reference",
        reference_bytes=300,
        is_default=False,
    )
)

rms_norm_gated_backward = register(
    replace(
        rms_norm_backward,
        name="rms_norm_gated_backward",
        modes=(Dweight, Order, Gate),
        limiting=(Dweight.NONE, Gate.NONE),
        max_hidden=MAX_HIDDEN,
        buffers=partial(_with_gate, rms_norm_backward),
        space=_backward_space,
        resolve=resolve_backward,
        trial=partial(trial, resolve_backward),
        default_config=_backward_default,
        kernel_calls="normtune.kernels.rms_norm_gated.kernels:backward_calls",
        reference_module="normtune.kernels.rms_norm_gated.reference",
        reference_bytes=300,
        is_default=False,
    )
)
