"""The quick spaces of the RMSNorm operators: a handful of configs for each problem.

In: a problem and a target. Out: configs; the spaces add those of Liger's rule. Chosen greedily, for each block of
columns, by their mean gain on the recorded H200 in bfloat16 and float32, the greatest first. A config that serves
neighbouring blocks is preferred, because a table needs it measured throughout a leaf.
"""

from normtune.kernels.config import Config
from normtune.kernels.mode import Dweight
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2

# The config, and the least and largest block of columns for it.
_FORWARD = (
    (RMSNormConfig("block_row", 2, 1), 64, 512),
    (RMSNormConfig("block_row", 16, 2), 64, 64),
    (RMSNormConfig("block_row", 32, 8), 64, 128),
    (RMSNormConfig("block_row", 8, 4), 64, 1024),
    (RMSNormConfig("block_row", 8, 8), 128, 512),
    (RMSNormConfig("block_row", 16, 8), 128, 128),
    (RMSNormConfig("row", 1, 1), 128, 512),
    (RMSNormConfig("block_row", 32, 16), 256, 256),
    (RMSNormConfig("block_row", 2, 4), 512, 2048),
    (RMSNormConfig("row", 1, 2), 512, 2048),
    (RMSNormConfig("block_row", 2, 2), 1024, 1024),
    (RMSNormConfig("row", 1, 8), 1024, 8192),
    (RMSNormConfig("row", 1, 4), 2048, 4096),
    (RMSNormConfig("persistent", 1, 1, 4, 8), 2048, 2048),
    (RMSNormConfig("split", 1, 4, 1, 0, "none", 1024), 4096, 4096),
    (RMSNormConfig("split", 1, 8, 1, 0, "none", 2048), 4096, 8192),
    (RMSNormConfig("persistent", 1, 4, 4, 16), 4096, 4096),
    (RMSNormConfig("persistent", 1, 4, 4, 2), 4096, 8192),
    (RMSNormConfig("split", 1, 16, 1, 0, "none", 4096), 8192, 16384),
    (RMSNormConfig("split", 1, 32, 1, 0, "none", 4096), 16384, 32768),
    (RMSNormConfig("row", 1, 32), 16384, 16384),
    (RMSNormConfig("split", 1, 32, 1, 0, "none", 8192), 16384, 32768),
    (RMSNormConfig("row", 1, 16), 32768, 32768),
    (RMSNormConfig("parts", 1, 8, 1, 1), 4096, 8192),
    (RMSNormConfig("parts", 1, 16, 1, 1), 8192, 32768),
)
# Forward: with fewer rows the programs of a fixed grid have a row or two each, as without a loop.
_LEAST_PERSISTENT_ROWS = 512
# Backward, for few rows: programs of columns sum the weight gradient.
_COLUMNS = (
    (RMSNormConfig("block_row", 16, 4, 1, 0, "columns", 16), 64, 64),
    (RMSNormConfig("block_row", 32, 8, 1, 0, "columns", 16), 64, 128),
    (RMSNormConfig("block_row", 64, 16, 1, 0, "columns", 16), 64, 64),
    (RMSNormConfig("block_row", 16, 4, 1, 0, "columns", 32), 64, 64),
    (RMSNormConfig("block_row", 32, 4, 1, 0, "columns", 16), 64, 64),
    (RMSNormConfig("block_row", 8, 4, 1, 0, "columns", 16), 128, 128),
    (RMSNormConfig("block_row", 32, 16, 1, 0, "columns", 16), 128, 128),
    (RMSNormConfig("block_row", 8, 4, 1, 0, "columns", 32), 128, 128),
    (RMSNormConfig("block_row", 16, 8, 1, 0, "columns", 16), 128, 256),
    (RMSNormConfig("block_row", 4, 4, 1, 0, "columns", 16), 256, 256),
    (RMSNormConfig("block_row", 4, 4, 1, 0, "columns", 32), 256, 256),
    (RMSNormConfig("block_row", 8, 8, 1, 0, "columns", 16), 256, 512),
    (RMSNormConfig("block_row", 16, 16, 1, 0, "columns", 16), 256, 512),
    (RMSNormConfig("block_row", 2, 4, 1, 0, "columns", 16), 512, 512),
    (RMSNormConfig("block_row", 4, 8, 1, 0, "columns", 16), 512, 1024),
    (RMSNormConfig("block_row", 2, 4, 1, 0, "columns", 32), 512, 512),
    (RMSNormConfig("row", 1, 4, 1, 0, "columns", 16), 1024, 4096),
    (RMSNormConfig("block_row", 4, 16, 1, 0, "columns", 16), 1024, 1024),
    (RMSNormConfig("block_row", 2, 8, 1, 0, "columns", 16), 1024, 2048),
    (RMSNormConfig("row", 1, 8, 1, 0, "columns", 16), 2048, 4096),
    (RMSNormConfig("row", 1, 4, 1, 0, "columns", 32), 2048, 8192),
    (RMSNormConfig("row", 1, 4, 1, 0, "columns", 64), 4096, 8192),
    (RMSNormConfig("row", 1, 4, 3, 0, "columns", 16), 4096, 4096),
    (RMSNormConfig("row", 1, 8, 1, 0, "columns", 64), 8192, 16384),
    (RMSNormConfig("row", 1, 8, 1, 0, "columns", 32), 8192, 8192),
    (RMSNormConfig("cluster_4", 1, 4, 1, 0, "columns", 64), 8192, 16384),
    (RMSNormConfig("cluster_8", 1, 4, 1, 0, "columns", 64), 16384, 32768),
)
# Backward, for many rows: a fixed grid.
_LOOPED = (
    (RMSNormConfig("persistent", 1, 1, 2, 1, "dependent"), 64, 256),
    (RMSNormConfig("persistent", 32, 4, 3, 2, "dependent"), 64, 64),
    (RMSNormConfig("persistent", 32, 4, 1, 1, "dependent"), 64, 128),
    (RMSNormConfig("persistent", 32, 4, 4, 2, "dependent"), 64, 128),
    (RMSNormConfig("persistent", 32, 4, 1, 2, "dependent"), 64, 128),
    (RMSNormConfig("persistent", 16, 4, 4, 2, "dependent"), 64, 256),
    (RMSNormConfig("persistent", 16, 4, 1, 1, "dependent"), 64, 256),
    (RMSNormConfig("persistent", 32, 8, 4, 1, "dependent"), 128, 128),
    (RMSNormConfig("persistent", 32, 8, 3, 1, "dependent"), 128, 128),
    (RMSNormConfig("persistent", 16, 8, 4, 1, "dependent"), 256, 256),
    (RMSNormConfig("persistent", 4, 2, 4, 2, "dependent"), 256, 512),
    (RMSNormConfig("persistent", 16, 4, 1, 2, "dependent"), 256, 256),
    (RMSNormConfig("persistent", 4, 2, 3, 4, "dependent"), 256, 256),
    (RMSNormConfig("persistent", 2, 2, 4, 2, "dependent"), 512, 1024),
    (RMSNormConfig("persistent", 16, 8, 1, 1, "dependent"), 512, 512),
    (RMSNormConfig("persistent", 2, 2, 4, 4, "dependent"), 512, 512),
    (RMSNormConfig("persistent", 4, 4, 3, 2, "dependent"), 1024, 1024),
    (RMSNormConfig("persistent", 2, 4, 3, 2, "dependent"), 1024, 2048),
    (RMSNormConfig("persistent", 1, 2, 4, 2, "dependent"), 1024, 2048),
    (RMSNormConfig("persistent", 2, 2, 3, 4, "dependent"), 1024, 1024),
    (RMSNormConfig("persistent", 2, 4, 4, 2, "dependent"), 2048, 2048),
    (RMSNormConfig("persistent", 1, 4, 3, 2, "dependent"), 2048, 4096),
    (RMSNormConfig("persistent", 2, 8, 3, 1, "dependent"), 2048, 4096),
    (RMSNormConfig("persistent", 1, 4, 3, 4, "dependent"), 2048, 2048),
    (RMSNormConfig("persistent", 1, 4, 4, 2, "dependent"), 4096, 4096),
    (RMSNormConfig("persistent", 1, 4, 4, 1, "dependent"), 4096, 4096),
    (RMSNormConfig("persistent", 1, 8, 3, 1, "dependent"), 4096, 8192),
    (RMSNormConfig("persistent", 2, 16, 4, 1, "dependent"), 4096, 4096),
    (RMSNormConfig("persistent", 1, 8, 4, 1, "dependent"), 8192, 8192),
    (RMSNormConfig("persistent", 1, 16, 4, 1, "dependent"), 8192, 8192),
    (RMSNormConfig("split", 1, 32, 2, 1, "dependent", 4096), 16384, 32768),
    (RMSNormConfig("split", 1, 16, 1, 1, "dependent", 8192), 16384, 16384),
    (RMSNormConfig("split", 1, 16, 2, 1, "dependent", 4096), 16384, 16384),
    (RMSNormConfig("split", 1, 32, 1, 1, "dependent", 4096), 32768, 32768),
)
# Between these bounds both are tried, without configs for fewer rows: up to hidden 4096 slices of 32 columns and more
# take 1.2 to 4 times as long there as those of 16, and single warps two to three times as long as the best.
_MOST_COLUMNS_ROWS, _LEAST_LOOPED_ROWS = 2048, 1024
# Beside programs of columns a row is spread over a cluster up to so many rows: with 512 and more that takes 1.1 to 1.3
# times as long as in chunks.
MOST_CLUSTER_ROWS = 448


def quick_forward(problem: Problem, target: Target) -> list[Config]:
    """The quick space of `rms_norm_forward`."""
    suits = {"persistent": problem.rows >= _LEAST_PERSISTENT_ROWS, "parts": 2 * problem.rows <= target.sms}
    return [config for config in _of_columns(_FORWARD, problem.hidden, target) if suits.get(config.schedule, True)]


def quick_backward(problem: Problem, target: Target, finish: str) -> list[Config]:
    """The quick space of `rms_norm_backward`; `finish` is that of partial sums, `reduce` or `dependent`."""
    columns, looped = (_of_columns(table, problem.hidden, target) for table in (_COLUMNS, _LOOPED))
    looped = [config._replace(finish=finish) for config in looped]
    if problem.rows > MOST_CLUSTER_ROWS:
        columns = [config for config in columns if not config.schedule.startswith("cluster")]
    if Dweight.of(problem) is Dweight.NONE:
        return columns + looped
    if problem.rows < _LEAST_LOOPED_ROWS:
        return columns + [config for config in looped if config.schedule == "split" or config.num_warps == 1]
    if problem.rows > _MOST_COLUMNS_ROWS:
        return looped
    narrow = [config for config in columns if config.block_col == min(config.block_col for config in columns)]
    return narrow + [config for config in looped if config.num_warps > 1]


def _of_columns(table: tuple[tuple[Config, int, int], ...], hidden: int, target: Target) -> list[Config]:
    block_col = min(max(next_power_of_2(hidden), 64), 32768)
    # 32 warps of 64 threads do not exist; 16 of them are as many threads.
    most_warps = target.max_threads // target.warp_size
    return [
        config._replace(num_warps=min(config.num_warps, most_warps))
        for config, least, most in table
        if least <= block_col <= most
    ]
