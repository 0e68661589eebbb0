"""Made-up operators whose best config is known: knobs as of a matrix product, times that are made when asked for.

In: a kind of landscape, numbers of configs and shapes, a seed. Out: `Space`s that a search runs over as over recorded
ones, and the losses of the configs that it chose. The log of a time is, by kind:

- `smooth`: one bowl over the knobs, whose centre moves with the shape.
- `rough`: the bowl, a share of each config at all shapes, one at each shape, and registers that spill.
- `failing`: as `rough`; some 70 % of the configs fail, half of them by a rule and half at random.
- `rugged`: random values of twelve triples of knobs, other ones in each of nine regions of shapes, and spills.
- `needle`: a plateau, and a thin set of configs that take 0.6 of the time, another set at other hidden sizes.

Memory grows with the number of timed configs and by 8 bytes for each config of each shape.
"""

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.lib.simulation import Space
from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate

Array = NDArray[np.float64]

KINDS = ("smooth", "rough", "rugged", "needle", "failing")
# Standard deviation of the log of a sample, and blocks that are drawn of each config.
NOISE, BLOCKS = 0.003, 8
# Log ratio to the best that is counted at most, also for a shape without a time.
MOST_LOSS = 3.0
_VALUES: dict[str, Sequence[int | str]] = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128),
    "warps": (1, 2, 4, 8, 16),
    "stages": (1, 2, 3, 4, 5),
    "group": (1, 4, 8, 16),
    "split": (1, 2, 4),
    "order": ("row", "column", "snake"),
}
# Knobs that have one value each in a space that is large enough without them.
_SPARED: tuple[dict[str, Sequence[int]], ...] = ({"group": (4,), "split": (1,)}, {"split": (1,)}, {})
_ORDERS = _VALUES["order"]
_TRIPLES = 12


class Tile(Config):
    """A config of the made-up operators."""

    block_m: Annotated[int, "rows of a tile."]
    block_n: Annotated[int, "columns of a tile."]
    block_k: Annotated[int, "depth of a step."]
    warps: Annotated[int, "warps of a program."]
    stages: Annotated[int, "steps in flight."]
    group: Annotated[int, "rows of programs that run one after the other."]
    split: Annotated[int, "programs that share the depth."]
    order: Annotated[str, "order of the programs."]


DEFAULT = Tile(64, 64, 32, 4, 2, 4, 1, "row")


class _Launch(NamedTuple):
    binary: Tile
    grid: int
    workspace: int = 0


class Landscape:
    """One made-up operator.

    Args:
        kind: one of `KINDS`.
        count: number of configs, drawn from the legal ones.
        shapes: number of shapes, evenly spread over rows and hidden sizes.
        seed: of everything that is random.
        noise: standard deviation of the log of a sample.

    Attributes:
        tiles: the configs, ordered.
        index: the place of each in `tiles`.
        values: the values of each knob.
        problems: the shapes.
        works: which configs do not fail, (configs,).

    Raises:
        UsageError: the kind is unknown, or there are fewer configs.
    """

    def __init__(self, kind: str, count: int, shapes: int, seed: int, noise: float = NOISE) -> None:
        if kind not in KINDS:
            raise UsageError(f"unknown landscape {kind!r}: expected one of {', '.join(KINDS)}")
        self.kind, self.seed, self.noise = kind, seed, noise
        self.tiles = tiles(count)
        self.index = {tile: number for number, tile in enumerate(self.tiles)}
        self.values = {name: sorted({getattr(tile, name) for tile in self.tiles}) for name in Tile._fields}
        self.problems = [Problem.of("made_up", rows, hidden, "float32") for rows, hidden in _shapes(shapes)]
        numbers = np.array(
            [[*map(math.log2, tile[:4]), tile.stages, *map(math.log2, tile[5:7])] for tile in self.tiles]
        )
        self._knobs, self._order = numbers, np.array([_ORDERS.index(tile.order) for tile in self.tiles])
        random = np.random.default_rng(seed)
        knobs = numbers.shape[1]
        self._weights = random.uniform(0.5, 1.5, knobs)
        self._by_rows, self._by_hidden = random.normal(0, 0.18, knobs), random.normal(0, 0.25, knobs)
        self._centre = numbers.mean(axis=0) + random.normal(0, 0.7, knobs)
        self._own = random.normal(0, 1, len(self.tiles))
        self._triples = [random.choice(knobs + 1, 3, replace=False) for _ in range(_TRIPLES)]
        self.works = np.ones(len(self.tiles), np.bool_)
        if kind == "failing":
            too_deep = numbers[:, 0] + numbers[:, 2] > 11.5
            snakes = (self._order == _ORDERS.index("snake")) & (numbers[:, 4] > 2)
            self.works = ~too_deep & ~snakes & (random.random(len(self.tiles)) > 0.35)
        self._logs: dict[Problem, Array] = {}

    def logs(self, problem: Problem) -> Array:
        """Log times of all configs at a shape without noise, (configs,); infinite where one fails."""
        if problem not in self._logs:
            self._logs[problem] = np.where(self.works, self._made(problem), np.inf)
        return self._logs[problem]

    def losses(self, chosen: Mapping[Problem, Tile]) -> Array:
        """Log ratios of the chosen configs to the best of each shape, (shapes,), at most `MOST_LOSS`."""
        found = [self.logs(one)[self.index[chosen[one]]] if one in chosen else np.inf for one in self.problems]
        return np.minimum(MOST_LOSS, np.array(found) - [self.logs(one).min() for one in self.problems])

    def spaces(self) -> list[Space]:
        """The shapes, for `simulate`; nothing but timing costs anything."""
        free = _Free(self.tiles)
        return [Space(Task(one, _candidates(self.tiles, one)), _Times(self, one), free) for one in self.problems]

    def sample(self, problem: Problem, config: Tile) -> NDArray[np.int64]:
        """All times of a config at a shape, ns, (`BLOCKS`, `ROUNDS_PER_BLOCK`); the same whenever asked for."""
        index = self.index[config]
        random = np.random.default_rng((self.seed, index, problem.rows, problem.hidden))
        noise = random.normal(0, self.noise, (BLOCKS, ROUNDS_PER_BLOCK))
        return (1e5 * np.exp(self.logs(problem)[index] + noise)).astype(np.int64)

    def _made(self, problem: Problem) -> Array:
        rows, hidden = math.log2(problem.rows), math.log2(problem.hidden)
        random = np.random.default_rng(zlib.crc32(f"{self.seed} {problem.rows} {problem.hidden}".encode()))
        knobs = self._knobs
        spills = 0.5 * (knobs[:, 0] + knobs[:, 1] - knobs[:, 3] > 11)
        if self.kind == "needle":
            wide, wider = hidden > 9.5, int(hidden > 9.5) + int(hidden > 12) > 1
            good = (knobs[:, 0] == 6 + wide) & (knobs[:, 1] == 7) & (knobs[:, 3] == 2 + wider) & (knobs[:, 4] == 3)
            good &= self._order == _ORDERS.index("snake")
            return 0.5 - 0.5 * good + 0.01 * self._own
        if self.kind == "rugged":
            return spills + self._rugged(3 * ((hidden > 9.5) + (hidden > 12)) + (rows > 7.5) + (rows > 12))
        best = self._centre + self._by_rows * (rows - 10) + self._by_hidden * (hidden - 10.5)
        smooth = 0.06 * (self._weights * np.abs(knobs - best) ** 1.5).sum(axis=1)
        slow = "column" if problem.hidden < 2048 else "snake"
        smooth += (0.12 if slow == "column" else 0.08) * (self._order == _ORDERS.index(slow))
        if self.kind == "smooth":
            return smooth
        return smooth + 0.1 * self._own + 0.04 * random.normal(0, 1, len(knobs)) + spills

    def _rugged(self, region: int) -> Array:
        """The sum of the triples' values; 0.6 of a value is the same in all regions."""
        total = np.zeros(len(self.tiles))
        for number, triple in enumerate(self._triples):
            cell = self._ranks[:, triple] @ np.array([1, 8, 64])
            common = np.random.default_rng(1000 * self.seed + number).normal(0, 1, 512)
            own = np.random.default_rng(1000 * self.seed + 100 * (1 + region) + number).normal(0, 1, 512)
            total += 0.13 * (0.6 * common + 0.8 * own)[cell]
        return total

    @cached_property
    def _ranks(self) -> NDArray[np.int64]:
        """The rank of each knob's value, (configs, knobs), the text last."""
        ranks = [np.unique(column, return_inverse=True)[1] for column in self._knobs.T]
        return np.column_stack([*ranks, self._order])


@lru_cache(maxsize=4)
def tiles(count: int) -> list[Tile]:
    """So many of the legal configs, drawn with a fixed seed, ordered.

    Raises:
        UsageError: there are fewer.
    """
    for spared in _SPARED:
        values = {**_VALUES, **spared}
        legal = [tile for tile in itertools.starmap(Tile, itertools.product(*values.values())) if _is_legal(tile)]
        if len(legal) >= count:
            chosen = np.random.default_rng(5).permutation(len(legal))[:count]
            return sorted(legal[index] for index in chosen)
    raise UsageError(f"a landscape of {count} configs: there are {len(legal)} at most")


def _is_legal(tile: Tile) -> bool:
    elements = tile.block_m * tile.block_n // (tile.warps * 32)
    return 2 <= elements <= 512 and (tile.block_m + tile.block_n) * tile.block_k * tile.stages <= 160_000


def _shapes(count: int) -> list[tuple[int, int]]:
    """A grid over 16 to 65,536 rows and hidden sizes of 128 to 16,384; a single shape is in the middle."""
    if count == 1:
        return [(2048, 4096)]
    many_rows = _spaced(4, 16, max(1, round(math.sqrt(count))))
    return [*itertools.product(many_rows, _spaced(7, 14, math.ceil(count / len(many_rows))))][:count]


def _spaced(first: int, last: int, count: int) -> list[int]:
    return sorted({round(2**exponent) for exponent in np.linspace(first, last, count)})


def _candidates(of: Sequence[Tile], problem: Problem) -> tuple[Candidate, ...]:
    return cast(tuple[Candidate, ...], _Candidates(of, problem))


class _Candidates(Sequence[Candidate]):
    """The candidates of a shape: a tuple of them takes 200 bytes a config."""

    def __init__(self, of: Sequence[Tile], problem: Problem) -> None:
        self._tiles, self._problem = of, problem

    def __len__(self) -> int:
        return len(self._tiles)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, index: int | slice) -> Candidate | tuple[Candidate, ...]:
        if isinstance(index, slice):
            return tuple(map(self._made, self._tiles[index]))
        return self._made(self._tiles[index])

    def __iter__(self) -> Iterator[Candidate]:
        return map(self._made, self._tiles)

    def _made(self, tile: Tile) -> Candidate:
        grid = math.ceil(self._problem.rows / tile.block_m) * math.ceil(self._problem.hidden / tile.block_n)
        return Candidate(tile, cast(Any, _Launch(tile, grid * tile.split)))


class _Times(Mapping[Config, NDArray[np.int64]]):
    """The blocks of a shape's configs that do not fail, kept once they were asked for."""

    def __init__(self, landscape: Landscape, problem: Problem) -> None:
        self._landscape, self._problem = landscape, problem
        self._kept: dict[Config, NDArray[np.int64]] = {}

    def __getitem__(self, config: Config) -> NDArray[np.int64]:
        if config not in self._kept:
            if config not in self:
                raise KeyError(config)
            self._kept[config] = self._landscape.sample(self._problem, cast(Tile, config))
        return self._kept[config]

    def __contains__(self, config: object) -> bool:
        index = self._landscape.index.get(cast(Tile, config))
        return index is not None and bool(self._landscape.works[index])

    def __iter__(self) -> Iterator[Config]:
        return (tile for tile in self._landscape.tiles if tile in self)

    def __len__(self) -> int:
        return int(self._landscape.works.sum())


class _Free(Mapping[Config, float]):
    """No overhead for any config."""

    def __init__(self, of: Sequence[Tile]) -> None:
        self._tiles = of

    def __getitem__(self, config: Config) -> float:
        return 0.0

    def __iter__(self) -> Iterator[Config]:
        return iter(self._tiles)

    def __len__(self) -> int:
        return len(self._tiles)
