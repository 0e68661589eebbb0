"""The operators that normalize and rotate heads: their modes and named integers, and the launches of their configs.

In: config, problem, target. Out: `HeadsLaunch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton.

The rows of a problem are tokens, hidden is the length of a head. Its named integers are the heads of a token, `heads_q`
query heads, then `heads_k` key heads, of `heads` in all, the rest of which are value heads; and `rotary_dim`, the
number of elements of a head that are rotated. Each mode has its own binary.
"""

from collections.abc import Callable
from typing import NamedTuple

from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight, Mode
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import MAX_WORKSPACE_BYTES, RESERVED_SHARED_BYTES, next_power_of_2, threads_of

FAMILY, BACKWARD = "qk_norm", "qk_norm_backward"
# Values that a sweep takes: the heads of Llama 3 8B and Qwen3 8B, all of them rotated whole.
SIZES = {"heads_q": (32,), "heads_k": (8,), "heads": (48,), "rotary_dim": (128,)}


class Place(Mode):
    """Whether heads are written in place, or to a new tensor, which then also has the value heads."""

    IN_PLACE = ""
    NEW = "out_of_place"


class Rotary(Mode):
    """The pairs of a rotation: elements i and i + rotary_dim / 2, none, or neighbours."""

    NEOX = ""
    NONE = "no_rotary"
    GPTJ = "gptj"


class Positions(Mode):
    """Whether positions select the rows of the tables, or token i has row i."""

    GIVEN = ""
    IN_ORDER = "in_order"


class Tables(Mode):
    """Whether tables have a column for each pair of rotated elements, or for each element."""

    PAIRS = ""
    ELEMENTS = "whole_tables"


class RotationProducts(Mode):
    """Whether the products of a rotation are rounded to the dtype."""

    FLOAT32 = ""
    ROUNDED = "rounded_rotation"


class Heads(NamedTuple):
    """The heads of a token and what is rotated of them.

    Attributes:
        heads_q: query heads of a token.
        heads_k: key heads, behind them.
        written: heads that the kernel writes: query and key heads; unless in place also the value heads behind them.
        rotary: elements of a head that are rotated, its first ones: even, 0 for none, at most as many as a head has.
        table_columns: columns of each table.
    """

    heads_q: int
    heads_k: int
    written: int
    rotary: int
    table_columns: int


def heads_of(problem: Problem) -> Heads:
    """The heads of a problem of either operator."""
    key, sizes = problem.key, dict(problem.key.sizes)
    heads_qk = sizes["heads_q"] + sizes["heads_k"]
    is_in_place = key.family == FAMILY and Place.of(key) is Place.IN_PLACE
    rotary = 0 if Rotary.of(key) is Rotary.NONE else min(sizes["rotary_dim"], problem.hidden) // 2 * 2
    return Heads(
        sizes["heads_q"],
        sizes["heads_k"],
        heads_qk if is_in_place else max(sizes["heads"], heads_qk),
        rotary,
        rotary if Tables.of(key) is Tables.ELEMENTS else rotary // 2,
    )


# Of a tile, per thread: beside it are two weights, sine and cosine.
MAX_ELEMENTS_PER_THREAD = 64
# The backward also holds the gradients of the tile and of both weights.
MAX_BACKWARD_ELEMENTS_PER_THREAD = 32
# Most tiles of the elements that are not rotated.
_MOST_RESTS = 8
# Trial shapes of the gate: more passes of a fixed grid than a pipeline has stages, a grid of few programs, a cut tile.
_PASSES, _PROGRAMS = 6, 5


class HeadsLaunch(NamedTuple):
    """A launch of the kernel that normalizes heads.

    Attributes:
        looped: whether a fixed grid strides over blocks of heads, else a program has one block.
        grid: programs.
        block_row: heads that a program holds, of one token or of neighbouring ones.
        rotary: elements of a head that are rotated.
        block_pair: pairs of rotated elements in a tile, 0 for none.
        block_rest: the other elements of a head in a tile, 0 for none.
        rests: tiles of the other elements.
        num_warps, num_stages: as the compiler takes them.
        alignment: largest power of two up to 16 that divides hidden and every row stride, elements.
        has_rest_mask: whether `block_rest` exceeds the other elements.
        workspace: float32 elements of partial sums; 0 for none.
    """

    looped: bool
    grid: int
    block_row: int
    rotary: int
    block_pair: int
    block_rest: int
    num_warps: int
    num_stages: int
    alignment: int
    has_rest_mask: bool
    workspace: int = 0
    rests: int = 0

    @property
    def binary(self) -> "HeadsLaunch":
        """This launch without the fields that the binary does not depend on."""
        return self._replace(grid=0, workspace=int(self.workspace > 0))

    @property
    def row_sum(self) -> "HeadsLaunch":
        """This launch without grid and workspace: launches with equal `row_sum` give a head equal bits."""
        return self._replace(grid=0, workspace=0)


def _tiles(rotary: int, rest: int) -> tuple[int, int, int]:
    """Pairs in a tile, other elements in a tile, and tiles of these: one."""
    return next_power_of_2(rotary // 2) if rotary else 0, next_power_of_2(rest) if rest else 0, min(rest, 1)


def _even_tiles(rotary: int, rest: int) -> tuple[int, int, int]:
    """The same, but all tiles are equally wide, so that threads hold the same heads of each."""
    if not rotary or not rest:
        return _tiles(rotary, rest)
    block = max(next_power_of_2(rotary // 2), next_power_of_2(-(-rest // _MOST_RESTS)))
    return block, block, -(-rest // block)


def resolve(
    config: Config,
    problem: Problem,
    target: Target,
    alignment: int | None = None,
    max_elements: int = MAX_ELEMENTS_PER_THREAD,
    tiles: Callable[[int, int], tuple[int, int, int]] = _tiles,
) -> HeadsLaunch:
    """The launch of `qk_norm`: rows are tokens, hidden is the length of a head. Errors as in `tiles.launch.tile`.

    A block of heads is halved until a thread has at most `max_elements` of its tile.
    """
    heads, threads = heads_of(problem), threads_of(config, target)
    rest = problem.hidden - heads.rotary
    block_pair, block_rest, rests = tiles(heads.rotary, rest)
    # Columns of all tiles of a head. One more of an odd head counts for nothing, or an even one would have fewer.
    width = next_power_of_2(problem.hidden)
    if heads.rotary and rest > 1:
        width = 2 * block_pair + rests * block_rest
    looped = config.programs_per_sm > 0
    num_stages = config.num_stages if looped else 1
    # A pipeline buffers all that the loop reads. Weights and tables may be float32.
    others = 2 + 2 * heads.table_columns / max(1, heads.rotary)
    buffered = int((num_stages - 1) * width * (ITEMSIZE[problem.dtype] + 4 * others))
    block_row = config.block_row
    while block_row > 1 and (
        block_row * width > max_elements * threads or buffered * block_row > target.shared_bytes - RESERVED_SHARED_BYTES
    ):
        block_row //= 2
    if width > max_elements * threads:
        raise IllegalConfigError(f"{width // threads} elements a thread exceed {max_elements}")
    if buffered > target.shared_bytes - RESERVED_SHARED_BYTES:
        raise IllegalConfigError(
            f"{buffered} bytes of pipeline buffers exceed {target.shared_bytes - RESERVED_SHARED_BYTES}"
        )
    blocks = -(-problem.rows * heads.written // block_row)
    return HeadsLaunch(
        looped=looped,
        grid=min(blocks, config.programs_per_sm * target.sms) if looped else blocks,
        block_row=block_row,
        rotary=heads.rotary,
        block_pair=block_pair,
        block_rest=block_rest,
        num_warps=config.num_warps,
        num_stages=num_stages,
        alignment=alignment_of(problem.hidden) if alignment is None else alignment,
        has_rest_mask=rests * block_rest != rest,
        rests=rests,
    )


def resolve_backward(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> HeadsLaunch:
    """The launch of `qk_norm_backward`; arguments and errors as in `resolve`.

    Each program of the fixed grid writes a partial sum of both weight gradients, which a second kernel adds.
    """
    if config.programs_per_sm < 1:
        raise IllegalConfigError("a backward without a fixed grid")
    launch = resolve(config, problem, target, alignment, MAX_BACKWARD_ELEMENTS_PER_THREAD, _even_tiles)
    if Dweight.of(problem) is Dweight.NONE:
        return launch
    grid = min(launch.grid, MAX_WORKSPACE_BYTES // (8 * problem.hidden))
    return launch._replace(grid=grid, workspace=2 * grid * problem.hidden)


def trial(config: Config, launch: HeadsLaunch, problem: Problem, target: Target) -> tuple[Problem, HeadsLaunch]:
    """The problem and launch on which the gate checks a binary: few programs, many passes, a partial last block."""
    heads = heads_of(problem).written
    tokens = -(-_PROGRAMS * _PASSES * launch.block_row // heads)
    while launch.block_row > 1 and heads % launch.block_row and not tokens * heads % launch.block_row:
        tokens += 1
    problem = problem._replace(rows=tokens)
    if launch.looped:
        workspace = 2 * _PROGRAMS * problem.hidden if launch.workspace else 0
        return problem, launch._replace(grid=_PROGRAMS, workspace=workspace)
    return problem, resolve(config, problem, target, None)
