"""The two RMSNorm operators: knobs, spaces, default configs, buffers and specs; and Liger-Kernel's launches as configs.

Out: registered `OperatorSpec`s. Imports neither torch nor triton.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Annotated

from normtune.kernels.config import Config, identifier
from normtune.kernels.mode import Dweight, Product, Rstd, Statistics
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import INPUT, ITEMSIZE, OUTPUT, WEIGHT, Buffer, Problem
from normtune.kernels.rms_norm.launch import (
    CLUSTERS,
    HALVES,
    MAX_BACKWARD_ELEMENTS_PER_THREAD,
    MAX_FORWARD_ELEMENTS_PER_THREAD,
    SPLITS,
    resolve_backward,
    resolve_forward,
)
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import LEAST_PART_COLUMNS, Launch, next_power_of_2
from normtune.kernels.tiles.trial import trial

SCHEDULES = ("row", "block_row", "parts", "persistent", *SPLITS, *CLUSTERS)
FINISHES = ("none", "reduce", "dependent", "columns")
LIGER_MAX_HIDDEN = 65536


class RMSNormConfig(Config):
    """A config of RMSNorm."""

    schedule: Annotated[
        str,
        "row, block_row (block_row rows a program), parts (several programs a row, each writes a part), persistent (a "
        "fixed grid strides over the rows), split, split_8 (eight parts), cluster_2 to cluster_8 (a row over so many "
        "blocks of a cluster), or cluster_halves (over eight, which add in the order of split_8).",
    ]
    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[
        int, "depth of the software pipeline of the row loop; in split, 2 fetches the next row into the L2."
    ] = 1
    programs_per_sm: Annotated[
        int,
        "size of the fixed grid, or of that of parts, programs a multiprocessor; 0 where the grid follows the rows.",
    ] = 0
    finish: Annotated[
        str, "how sums over rows end, none, reduce, dependent (reduce, brought early) or columns (own programs)."
    ] = "none"
    block_col: Annotated[
        int,
        "columns a chunk in split and in parts that sum as split does, of eight chunks in split_8; columns a program "
        "with finish columns, else the least columns of held chunks.",
    ] = 0

    def constant_name(self) -> str:
        """`BLOCK_ROW_16_WARPS_4`, `PERSISTENT_ROWS_2_WARPS_8_STAGES_3_REDUCE`.

        The columns of a chunk or slice follow the word that they belong to: `SPLIT_4096_WARPS_16`,
        `ROW_WARPS_4_COLUMNS_32`, `ROW_WARPS_4_CHUNKS_16`.
        """
        of_chunks = self.schedule in SPLITS
        parts = [identifier(self.schedule)]
        if of_chunks and self.block_col:
            parts.append(str(self.block_col))
        if self.schedule == "block_row":
            parts.append(str(self.block_row))
        elif self.block_row != 1:
            parts.append(f"rows_{self.block_row}")
        parts.append(f"warps_{self.num_warps}")
        if self.num_stages != 1:
            parts.append(f"stages_{self.num_stages}")
        if self.programs_per_sm:
            parts.append(f"per_sm_{self.programs_per_sm}")
        if self.finish != "none":
            parts.append(identifier(self.finish))
        if self.block_col and not of_chunks:
            parts.append(str(self.block_col) if self.finish == "columns" else f"chunks_{self.block_col}")
        return "_".join(parts).upper()


def liger_launches(operator: str, hidden: int) -> tuple[RMSNormConfig, ...]:
    """Liger-Kernel 0.8.5's launches: a row per program, and a block of 16 rows; empty for rows that it does not take.

    Source: `ops/rms_norm.py` and `ops/utils.py` (`calculate_settings`). Versions and proposals (Liger-Kernel #1238)
    differ in the threshold between the two.
    """
    block_col = 1 << (hidden - 1).bit_length()
    warps = 32 if block_col >= 32768 else 16 if block_col >= 8192 else 8 if block_col >= 2048 else 4
    if operator == "rms_norm_forward" and hidden <= LIGER_MAX_HIDDEN:
        return RMSNormConfig("row", 1, warps), RMSNormConfig("block_row", 16, 4)
    if operator == "rms_norm_backward" and hidden <= LIGER_MAX_HIDDEN:
        return RMSNormConfig("persistent", 1, warps, 1, 1, "reduce"), RMSNormConfig("persistent", 16, 4, 1, 1, "reduce")
    return ()


# The full spaces hold each value that is best by 0.2 % at one of 10,686 recorded shapes and variants of an H200 and
# an H100 (`python benchmarks/knob_values.py`), but for rows of a forward's loop, which gain at three of them (2.5 %).
_FULL_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_FULL_WARPS = (1, 2, 4, 8, 16, 32)
_FULL_STAGES = (1, 2, 3, 4)
_FULL_PROGRAMS = (1, 2, 4, 8, 16)
_FULL_CHUNKS = (512, 1024, 2048, 4096, 8192)
_FULL_SLICES = (16, 32, 64)
_FULL_PARTS = (1, 2, 4)
_SPLIT_WARPS = (2, 4, 8, 16, 32)
_LOOPED_FORWARD_ROWS = (1, 2, 4)
_LOOPED_FORWARD_STAGES = (2, 3, 4)
_COLUMNS_ROWS = (1, 2, 4, 8, 16, 32, 64)
_CLUSTER_WARPS = (2, 4, 8, 16)
_CLUSTER_SLICES = {
    "cluster_2": (32, 64),
    "cluster_4": (32, 64, 256, 512),
    "cluster_8": (32, 64, 128, 256, 512, 1024),
    HALVES: (32, 64),
}
# With fewer rows a fixed grid of clusters has one each, and reads its partial sums for nothing.
_LEAST_LOOPED_CLUSTERS = 128
# Beside programs of columns a row is spread over a cluster up to so many rows: with 512 and more that takes 1.1 to 1.3
# times as long as in chunks.
_MOST_CLUSTER_ROWS = 448
# With more rows no config with the finish `columns` won on the recorded H200.
_MOST_COLUMNS_ROWS = 2048


def _elements(config: Config, hidden: int, warp_size: int) -> float:
    """Elements per thread of a config's tile, before `resolve` lowers it."""
    return config.block_row * next_power_of_2(hidden) / (warp_size * config.num_warps)


@cache
def _flat() -> tuple[Config, ...]:
    return tuple(
        RMSNormConfig("row" if rows == 1 else "block_row", rows, warps)
        for rows, warps in product(_FULL_ROWS, _FULL_WARPS)
    )


@cache
def _looped(
    finishes: tuple[str, ...], rows: tuple[int, ...] = _FULL_ROWS, stages: tuple[int, ...] = _FULL_STAGES
) -> tuple[Config, ...]:
    """All persistent configs; a plan asks for them once a problem, and making them took half of its time."""
    knobs = product(rows, _FULL_WARPS, stages, _FULL_PROGRAMS, finishes)
    return tuple(RMSNormConfig("persistent", *values) for values in knobs)


def parts(
    problem: Problem, target: Target, warps: Iterable[int], programs: Iterable[int], elements: tuple[int, int]
) -> list[Config]:
    """The configs in which a row has several programs that each read all of it.

    `warps` and `programs` are values of the knobs; `elements`, the least and most elements of a row per thread.
    """
    configs = [RMSNormConfig("parts", 1, count, 1, per_sm) for count, per_sm in product(warps, programs)]
    columns = next_power_of_2(problem.hidden)
    return [
        config
        for config in configs
        if elements[0] <= _elements(config, problem.hidden, target.warp_size) <= elements[1]
        and columns >= 2 * max(LEAST_PART_COLUMNS, config.num_warps * target.warp_size)
        and 2 * problem.rows <= config.programs_per_sm * target.sms
    ]


def _in_parts(split: list[Config], problem: Problem, target: Target, programs: Iterable[int]) -> list[Config]:
    """The configs of rows in chunks with several programs a row, where rows are few."""
    return [
        config._replace(schedule="parts", programs_per_sm=per_sm)
        for config, per_sm in product(split, programs)
        if 2 * problem.rows <= per_sm * target.sms
    ]


def forward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    """The space `default` or `full` of a forward, sorted."""
    hidden, warp_size = problem.hidden, target.warp_size
    flat, looped = _flat(), _looped(("none",), _LOOPED_FORWARD_ROWS, _LOOPED_FORWARD_STAGES)
    split: list[Config] = [
        RMSNormConfig("split", 1, warps, block_col=chunk) for warps, chunk in product(_SPLIT_WARPS, _FULL_CHUNKS[1:])
    ]
    split = [config for config in split if hidden > config.block_col >= 4 * warp_size * config.num_warps]
    if name == "full":
        chosen = [config for config in (*flat, *looped) if 1 <= _elements(config, hidden, warp_size) <= 128]
        chosen += split + parts(problem, target, _FULL_WARPS, _FULL_PARTS, (4, 128))
        chosen += _in_parts(split, problem, target, _FULL_PARTS)
    else:
        chosen = [config for config in flat if _is_default_flat(config, hidden, warp_size)]
        chosen += [config for config in looped if _is_default_looped(config, problem, warp_size)]
        split = [config for config in split if _is_default_split(config, hidden)]
        # For batch-invariant functions: few rows in the order in which many are summed. Up to 7 % slower than `parts`
        # of whole rows, 15 to 30 % faster than `split`.
        long = [config for config in split if hidden > 8192 and config.num_warps >= 16]
        chosen += split + _in_parts(long, problem, target, (1,))
        chosen += parts(problem, target, (4, 8, 16, 32), (1, 2), (8, 64))
    return sorted({*chosen, *liger_launches("rms_norm_forward", hidden)})


# The default spaces hold configs that won by more than 1 % somewhere on an H200: out of the full space tried on 20
# shapes from corners to the middle, and for `split`, `columns`, `parts` and clusters, which came later,
# out of twice as many configs tried on the recording grid. Against these the default space loses 0.01 % on average
# backward, 0.02 % forward, 2.2 % at worst. The percentage beside a value below is the loss without it at the shape
# where it wins.


def _is_default_flat(config: Config, hidden: int, warp_size: int) -> bool:
    elements, block_col = _elements(config, hidden, warp_size), next_power_of_2(hidden)
    if config.block_row == 1 and config.num_warps == 32:
        return 4 <= elements <= 64
    if config.block_row not in (1, 2, 8, 16, 32):  # 32: 1.8 % at 32768 x 256
        return False
    if elements == 2:  # 1.0 % at 4096 x 128
        return config.block_row > 1 and config.num_warps == 8 and block_col <= 256
    if elements == 64:  # 1.4 % at 65536 x 768, 2.8 % at 1 x 32768
        return (config.block_row, config.num_warps) in ((8, 4), (1, 16))
    return 4 <= elements <= 32 and config.block_row * block_col <= 16384


def _is_default_looped(config: Config, problem: Problem, warp_size: int) -> bool:
    return (
        problem.rows >= 512  # with fewer, programs have a row or two each, as without a loop
        and config.num_stages == 4  # 4.0 % at 1024 x 5120
        and config.block_row == 1
        and config.programs_per_sm in (2, 8, 16)  # 2: 5.9 % at 1024 x 5120; 8: 1.4 % at 4096 x 1536
        and 16 <= _elements(config, problem.hidden, warp_size) <= 64
    )


def _is_default_split(config: Config, hidden: int) -> bool:
    """Rows of more than 2048, where up to half a tile of the next power of two is empty, and rows of more than 8192."""
    return hidden > 2048 and (config.block_col, config.num_warps) in (
        *((1024, 4), (2048, 8), (4096, 16)),  # 2048, 8: 8 % at 4096 x 5120
        *((4096, 32), (8192, 32)),  # 8192, 32: 5 % at 4096 x 32768
    )


def backward_space(name: str, problem: Problem, target: Target) -> list[Config]:
    """The space `default` or `full` of a backward, sorted."""
    hidden, warp_size = problem.hidden, target.warp_size
    # On a GPU with dependent launches they take up to 8 % less time than plain ones, and never much more.
    finish = "dependent" if target.has_dependent_launch else "reduce"
    chosen: list[Config]
    if name == "full":
        finishes = ("reduce", "dependent") if target.has_dependent_launch else ("reduce",)
        chosen = [config for config in _looped(finishes) if 1 <= _elements(config, hidden, warp_size) <= 64]
        chosen += _columns(problem, target, _COLUMNS_ROWS, _FULL_WARPS, (1, 3, 4))
        chosen += _columns(problem, target, (1,), _FULL_WARPS, (2,))
        for schedule, slices in _CLUSTER_SLICES.items():
            chosen += _clusters(problem, target, (schedule,), _CLUSTER_WARPS, slices, (2, 64))
        chosen += [
            RMSNormConfig("split", 1, warps, stages, programs, finish, chunk)
            for warps, stages, programs, finish, chunk in product(
                _SPLIT_WARPS, (1, 2), (1, 2, 3), finishes, _FULL_CHUNKS
            )
            if hidden > chunk >= 4 * warp_size * warps
        ]
        if hidden > 8192 and target.has_clusters:
            chosen += _many_long_rows(problem, target, finish)
        if target.has_clusters:
            chosen += [
                RMSNormConfig(schedule, 1, warps, stages, programs, finish)
                for schedule, warps, stages, programs, finish in product(
                    ("cluster_2", "cluster_4"), _CLUSTER_WARPS, (1, 2), (1, 2), finishes
                )
                if 2 <= next_power_of_2(hidden) / (CLUSTERS[schedule] * warp_size * warps) <= 64
            ]
    else:
        chosen = [config for config in _looped((finish,)) if _is_default_backward(config, problem, warp_size)]
        chosen += [
            config
            for config in _columns(problem, target, _FULL_ROWS, (2, 4, 8, 16), (1, 3))
            if _is_default_columns(config, hidden)
        ]
        if hidden > 4096:
            chosen += _default_clusters(problem, target)
        if hidden > 8192:
            chosen += [
                RMSNormConfig("split", 1, warps, stages, 1, finish, chunk)
                for warps, stages, chunk in product((16, 32), (1, 2), (2048, 4096, 8192))
                if 4 <= chunk // (warp_size * warps) <= 16
            ]
            if target.has_clusters:
                chosen += _many_long_rows(problem, target, finish)
    return sorted({*chosen, *liger_launches("rms_norm_backward", hidden)})


def _columns(
    problem: Problem, target: Target, rows: Iterable[int], warps: Iterable[int], stages: Iterable[int]
) -> list[Config]:
    """The configs with the finish `columns`; none if there are too many rows for a program to walk through."""
    if problem.rows > _MOST_COLUMNS_ROWS and Dweight.of(problem) is Dweight.COMPUTED:
        return []
    configs: list[Config] = []
    for block_row, num_warps, num_stages, slice_col in product(rows, warps, stages, _FULL_SLICES):
        schedule = "row" if block_row == 1 else "block_row"
        config = RMSNormConfig(schedule, block_row, num_warps, num_stages, 0, "columns", slice_col)
        elements = _elements(config, problem.hidden, target.warp_size)
        if 8 <= elements <= (64 if block_row == 1 else 16):
            configs.append(config)
    return configs


def _clusters(
    problem: Problem,
    target: Target,
    schedules: Iterable[str],
    warps: Iterable[int],
    slices: Iterable[int],
    elements: tuple[int, int],
) -> list[Config]:
    """The configs of clusters, with bounds on the elements of a row that a thread holds."""
    if not target.has_clusters or (problem.rows > _MOST_COLUMNS_ROWS and Dweight.of(problem) is Dweight.COMPUTED):
        return []
    configs: list[Config] = []
    for schedule, num_warps, slice_col in product(schedules, warps, slices):
        held = next_power_of_2(problem.hidden) / (CLUSTERS[schedule] * target.warp_size * num_warps)
        if elements[0] <= held <= elements[1]:
            configs.append(RMSNormConfig(schedule, 1, num_warps, 1, 0, "columns", slice_col))
    return configs


def _default_clusters(problem: Problem, target: Target) -> list[Config]:
    """With the weight gradient for few rows; wider blocks where there are no programs of columns beside them."""
    has_dweight = Dweight.of(problem) is Dweight.COMPUTED
    if has_dweight and problem.rows > _MOST_CLUSTER_ROWS:
        return []
    warps, slices = ((4,), (32, 64)) if has_dweight else ((4, 8), (32,))
    schedules = ("cluster_4", "cluster_8") if has_dweight else ("cluster_2", "cluster_4", "cluster_8")
    chosen = _clusters(problem, target, schedules, warps, slices, (8, 32))
    if problem.hidden > 8192:
        chosen += _clusters(problem, target, (HALVES,), (_part_warps(problem),), slices, (8, 64))
    return chosen


def _part_warps(problem: Problem) -> int:
    """Warps of an eighth of a row: 1.3 to 1.5 times the best with 4 at many rows of 8704, 1.1 with 2."""
    return 2 if problem.hidden * ITEMSIZE[problem.dtype] <= 32768 else 4


def _many_long_rows(problem: Problem, target: Target, finish: str) -> list[Config]:
    """Many rows of more than 8192: in the order of clusters of few, and over a fixed grid of clusters."""
    if problem.rows < _LEAST_LOOPED_CLUSTERS:
        return []
    part_warps, itemsize = _part_warps(problem), ITEMSIZE[problem.dtype]
    chunk = SPLITS["split_8"] * 16 // itemsize * part_warps * target.warp_size
    launches = ((16, 1), (16, 2)) if part_warps == 2 else ((16, 1), (16, 2), (32, 1))
    chosen: list[Config] = [RMSNormConfig("split_8", 1, warps, stages, 1, finish, chunk) for warps, stages in launches]
    # Where one multiprocessor holds a row, it needs no cluster: 103 us against 147 at 4096 x 16384 in bfloat16.
    if problem.hidden >= 14336:  # 14 % at 1024 x 32768 in bfloat16, 13 % at 320 x 16384 in float32
        chosen.append(RMSNormConfig("cluster_2", 1, 16, 2, 1, finish))
    if problem.hidden * itemsize > 98304:  # 8 % at 4096 x 32768 in float32
        chosen.append(RMSNormConfig("cluster_4", 1, 16, 2, 1, finish))
    return chosen


def _is_default_columns(config: Config, hidden: int) -> bool:
    warps, stages = config.num_warps, config.num_stages
    if config.block_col == 16:
        return warps >= 4 and (stages == 1 or config.block_row <= 4)
    if config.block_col == 32:
        return stages == 1 and (warps == 4 or (warps == 8 and config.block_row == 1))
    return stages == 1 and config.block_row == 1 and warps in (4, 8) and hidden >= 1024


def _is_default_backward(config: Config, problem: Problem, warp_size: int) -> bool:
    hidden = problem.hidden
    elements, block_col = _elements(config, hidden, warp_size), next_power_of_2(hidden)
    rows, warps, stages, programs = config.block_row, config.num_warps, config.num_stages, config.programs_per_sm
    if block_col >= 16384:  # up to 1.7 times as slow as in chunks
        return False
    if block_col <= 256 and (rows, warps, stages, programs) == (1, 1, 2, 1):  # 12 % at 1 x 64
        return True
    if problem.rows <= 64 and Dweight.of(problem) is Dweight.COMPUTED:
        return False  # programs of columns take 0.5 to 0.8 of the time
    return (
        rows in (1, 2, 4, 16, 32)  # 2: 2.3 % at 32768 x 4096; 4: 2.5 % at 512 x 2048; 32: 1.7 % at 262144 x 64
        and (stages in (3, 4) or (stages == 1 and rows >= 16))
        and elements in ((8, 16, 32) if rows >= 16 else (16, 32))
        and programs <= 8
        and programs * warps in ((4, 8, 16) if stages != 3 else (8, 16))
    )


def forward_default(problem: Problem, target: Target, max_elements: int = MAX_FORWARD_ELEMENTS_PER_THREAD) -> Config:
    """The config of a forward without a table: a row a program, of at most `max_elements` a thread."""
    return RMSNormConfig("row", 1, _default_warps(problem, target, max_elements))


def backward_default(problem: Problem, target: Target) -> Config:
    """The config of a backward without a table: a program an SM, rows in chunks where they are long."""
    if problem.hidden > 8192:  # a whole row, and three more of its length, do not fit into the registers
        threads = 512 if problem.hidden <= 16384 else 1024
        return RMSNormConfig("split", 1, threads // target.warp_size, 1, 1, "reduce", 4096)
    warps = _default_warps(problem, target, MAX_BACKWARD_ELEMENTS_PER_THREAD)
    return RMSNormConfig("persistent", 1, warps, 1, 1, "reduce")


def _default_warps(problem: Problem, target: Target, most: int) -> int:
    """Eight warps, as Transformer Engine (ROCm) runs with autotuning off; more only if eight are illegal."""
    warps = 8
    while next_power_of_2(problem.hidden) > most * warps * target.warp_size:
        warps *= 2
    return warps


# As Liger-Kernel takes; longer rows are composed of torch's operations.
MAX_HIDDEN = 65536


def _forward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    buffers = (
        problem.buffer("x", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("y", "rows,hidden", OUTPUT),
    )
    rstd = problem.buffer("rstd", "rows", OUTPUT, "float32")
    return (*buffers, rstd) if Rstd.of(problem) is Rstd.STORED else buffers


def _backward_buffers(problem: Problem) -> tuple[Buffer, ...]:
    buffers = (
        problem.buffer("dy", "rows,hidden", INPUT),
        problem.buffer("x", "rows,hidden", INPUT),
        problem.buffer("weight", "hidden", WEIGHT),
        problem.buffer("rstd", "rows", INPUT, "float32"),
        problem.buffer("dx", "rows,hidden", OUTPUT),
    )
    dweight = problem.buffer("dweight", "hidden", OUTPUT)
    return (*buffers, dweight) if Dweight.of(problem) is Dweight.COMPUTED else buffers


def with_buffers(spec: OperatorSpec, names: Mapping[str, Sequence[str]], problem: Problem) -> tuple[Buffer, ...]:
    """The buffers of an operator, of which those that are keys of `names` are replaced by some of other names."""
    buffers = spec.buffers(problem)
    return tuple(buffer._replace(name=name) for buffer in buffers for name in names.get(buffer.name, (buffer.name,)))


def may_reuse_dy(launch: Launch, target: Target) -> bool:
    """Whether a launch of a backward may write dx into the memory of dy, with the same strides (in-place dx).

    It may if each element of dy is read only by the program that overwrites it, and only before that. By schedule or
    finish of RMSNorm's and gated RMSNorm's backward:

        row, block_row  yes: without a weight gradient, finish `none`. A program holds its rows whole, and dx depends on
                        the mean over a row, so all reads of a row precede the first write to it.
        persistent      yes: the same in a loop. The pipeline prefetches later blocks, whose rows are written by no
                        other program and no earlier step.
        split           yes: the first pass over a row ends in its mean, which precedes the second pass. There an
                        element is read, if the row is not held, and then written by the same program.
        columns         no: programs of columns read dy for the weight gradient while programs of rows write dx.

    The second kernel of a weight gradient reads partial sums, never dy. If a tile has fewer elements than its program
    has threads, several threads hold the same element, and one may write it before another one has read it.
    """
    elements = launch.block_row * launch.tile_parts * launch.block_col
    return launch.finish != "columns" and elements >= launch.num_warps * target.warp_size


# What both operators share.
_spec = partial(
    OperatorSpec,
    config=RMSNormConfig,
    dtypes=tuple(ITEMSIZE),
    max_hidden=MAX_HIDDEN,
    reference_module="normtune.kernels.rms_norm.reference",
    wide_buffers=("weight", "dweight"),
    scalars={"eps": 1e-6, "offset": 0.25},
)

rms_norm_forward = register(
    _spec(
        name="rms_norm_forward",
        modes=(Rstd, Product, Statistics),
        limiting=(),
        buffers=_forward_buffers,
        space=forward_space,
        resolve=resolve_forward,
        trial=partial(trial, resolve_forward),
        default_config=forward_default,
        kernel_calls="normtune.kernels.rms_norm.kernels:forward_calls",
    )
)

rms_norm_backward = register(
    _spec(
        name="rms_norm_backward",
        modes=(Dweight, Product),
        limiting=(Dweight.NONE,),
        buffers=_backward_buffers,
        space=backward_space,
        resolve=resolve_backward,
        trial=partial(trial, resolve_backward),
        default_config=backward_default,
        kernel_calls="normtune.kernels.rms_norm.kernels:backward_calls",
        may_reuse_dy=may_reuse_dy,
    )
)
