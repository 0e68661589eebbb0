"""The spaces of RMSNorm's configs, and of those of its relatives: default and full.

In: the name of a space, a problem, a target. Out: configs, before legality.
"""

from collections.abc import Iterable
from functools import cache
from itertools import product

from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight
from normtune.kernels.problem import ITEMSIZE, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig, liger_launches
from normtune.kernels.rms_norm.launch import (
    CLUSTERS,
    MAX_BACKWARD_ELEMENTS_PER_THREAD,
    MAX_FORWARD_ELEMENTS_PER_THREAD,
    SPLITS,
)
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import LEAST_PART_COLUMNS, next_power_of_2

_FULL_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_FULL_WARPS = (1, 2, 4, 8, 16, 32)
_FULL_STAGES = (1, 2, 3, 4)
_FULL_PROGRAMS = (1, 2, 4, 8, 16)
_FULL_CHUNKS = (512, 1024, 2048, 4096, 8192)
_FULL_SLICES = (16, 32, 64)
_FULL_PARTS = (1, 2, 4)
_CLUSTER_SLICES = (32, 64, 128, 256, 512, 1024)
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
def _looped(finishes: tuple[str, ...]) -> tuple[Config, ...]:
    """All persistent configs; a plan asks for them once a problem, and making them took half of its time."""
    knobs = product(_FULL_ROWS, _FULL_WARPS, _FULL_STAGES, _FULL_PROGRAMS, finishes)
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
    flat, looped = _flat(), _looped(("none",))
    split: list[Config] = [
        RMSNormConfig("split", 1, warps, block_col=chunk) for warps, chunk in product(_FULL_WARPS, _FULL_CHUNKS)
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
        chosen += _columns(problem, target, _FULL_ROWS, _FULL_WARPS, _FULL_STAGES)
        chosen += _clusters(problem, target, (*CLUSTERS, "split_8"), _FULL_WARPS, _CLUSTER_SLICES, (2, 64))
        chosen += [
            RMSNormConfig(schedule, 1, warps, stages, programs, finish, chunk)
            for schedule, warps, stages, programs, finish, chunk in product(
                SPLITS, _FULL_WARPS, (1, 2), (1, 2, 3), finishes, _FULL_CHUNKS
            )
            if hidden > chunk >= 4 * warp_size * warps
        ]
        if target.has_clusters:
            chosen += [
                RMSNormConfig(schedule, 1, warps, stages, programs, finish)
                for schedule, warps, stages, programs, finish in product(
                    ("cluster_2", "cluster_4"), _FULL_WARPS, (1, 2), (1, 2), finishes
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
        blocks = CLUSTERS.get(schedule) or SPLITS[schedule]
        held = next_power_of_2(problem.hidden) / (blocks * target.warp_size * num_warps)
        if elements[0] <= held <= elements[1]:
            configs.append(RMSNormConfig(schedule, 1, num_warps, 1, 0, "columns", slice_col))
    return configs


def _default_clusters(problem: Problem, target: Target) -> list[Config]:
    """With the weight gradient for few rows; wider blocks where there are no programs of columns beside them."""
    has_dweight = Dweight.of(problem) is Dweight.COMPUTED
    if has_dweight and problem.rows > _MOST_CLUSTER_ROWS:
        return []
    warps, slices = ((4,), (32, 64)) if has_dweight else ((4, 8), (32,))
    chosen = _clusters(problem, target, (*CLUSTERS,), warps, slices, (8, 32))
    if has_dweight:
        chosen = [config for config in chosen if config.schedule != "cluster_2"]
    if problem.hidden > 8192:
        chosen += _clusters(problem, target, ("split_8",), (_part_warps(problem),), slices, (8, 64))
    return chosen


def _part_warps(problem: Problem) -> int:
    """Warps of an eighth of a row in `split_8`: 1.3 to 1.5 times the best with 4 at many rows of 8704, 1.1 with 2."""
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
