"""Made-up operators whose best config is known, of knobs as of a matrix product; in some 70 % of the configs fail.

A time has a smooth part, one of each config and one of each config at each shape.

In: a seed. Out: `Space`s that a search runs over, and that are scored as recorded ones are.
"""

import itertools
import math
import zlib
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.lib.simulation import Space
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.plan.plan import Candidate, Task

CONFIGS, BLOCKS, NOISE = 600, 8, 0.01
_ROWS, _HIDDEN = (16, 128, 1024, 8192, 65536), (128, 431, 1448, 4871, 16384)
_VALUES = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128),
    "warps": (1, 2, 4, 8, 16),
    "stages": (1, 2, 3, 4, 5),
    "order": ("column", "row", "snake"),
}


class Tile(Config):
    """A config of the made-up operators."""

    block_m: Annotated[int, "rows of a tile."]
    block_n: Annotated[int, "columns of a tile."]
    block_k: Annotated[int, "depth of a step."]
    warps: Annotated[int, "warps of a program."]
    stages: Annotated[int, "steps in flight."]
    order: Annotated[str, "order of the programs."]


class _Launch(NamedTuple):
    binary: Tile
    grid: int
    workspace: int = 0


def landscape(seed: int, fails: bool) -> list[Space]:
    """The problems of one made-up operator; `fails`: whether 70 % of its configs do."""
    random = np.random.default_rng(seed)
    legal = [tile for tile in itertools.starmap(Tile, itertools.product(*_VALUES.values())) if _is_legal(tile)]
    tiles = sorted(legal[index] for index in random.permutation(len(legal))[:CONFIGS])
    knobs = np.array([[*map(math.log2, tile[:4]), tile.stages] for tile in tiles])
    weights, centre = random.uniform(0.5, 1.5, 5), knobs.mean(axis=0) + random.normal(0, 0.7, 5)
    by_rows, by_hidden = random.normal(0, 0.18, 5), random.normal(0, 0.25, 5)
    own, works = random.normal(0, 0.1, len(tiles)), np.ones(len(tiles), np.bool_)
    if fails:
        deep, snakes = knobs[:, 0] + knobs[:, 2] > 11.5, [tile.order == "snake" and tile.stages > 2 for tile in tiles]
        works = ~deep & ~np.array(snakes) & (random.random(len(tiles)) > 0.35)
    spaces = []
    for rows, hidden in itertools.product(_ROWS, _HIDDEN):
        draw = np.random.default_rng(zlib.crc32(f"{seed} {rows} {hidden}".encode()))
        best = centre + by_rows * (math.log2(rows) - 10) + by_hidden * (math.log2(hidden) - 10.5)
        logs = 0.06 * (weights * np.abs(knobs - best) ** 1.5).sum(axis=1) + own + draw.normal(0, 0.04, len(tiles))
        logs += 0.5 * (knobs[:, 0] + knobs[:, 1] - knobs[:, 3] > 11)  # spills
        spaces.append(_space(Problem.of("made_up", rows, hidden, "float32"), tiles, logs, works, draw))
    return spaces


def _is_legal(tile: Tile) -> bool:
    elements = tile.block_m * tile.block_n // (tile.warps * 32)
    return 2 <= elements <= 512 and (tile.block_m + tile.block_n) * tile.block_k * tile.stages <= 160_000


def _space(
    problem: Problem,
    tiles: list[Tile],
    logs: NDArray[np.float64],
    works: NDArray[np.bool_],
    random: np.random.Generator,
) -> Space:
    noise = random.normal(0, NOISE, (len(tiles), BLOCKS, ROUNDS_PER_BLOCK))
    times = (1e5 * np.exp(logs[:, None, None] + noise)).astype(np.int64)
    blocks: dict[Config, NDArray[np.int64]] = {
        tile: one for tile, one, is_fine in zip(tiles, times, works, strict=True) if is_fine
    }
    candidates = (Candidate(tile, _Launch(tile, -(-problem.rows // tile.block_m))) for tile in tiles)
    return Space(Task(problem, tuple(candidates)), blocks, dict.fromkeys(tiles, 0.0))
