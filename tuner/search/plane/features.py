"""The configs of an operator as codes of their knobs' values, with moves among them, and their launches at a problem.

In: configs; the candidates of a problem. Out: codes, distances of the values of each knob, numbers of configs; the
rank of a launch's number of programs, and its binary. Knows no times.
"""

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from normtune.kernels.config import Config
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate, Pool

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

# Number of programs that run at once, roughly: fewer take as long as one. Values of the logs of their number.
_AT_ONCE = 128
WAVES: Array = 0.25 * np.arange(49.0)


class Configs:
    """All configs of an operator, numbered in their order; they may have different classes.

    Attributes:
        all: the configs.
        number: of each of them.
        codes: ranks of their knobs' values, (configs, knobs); knobs with one value are left out.
        distances: of the values of each knob, in shares of its range; of two texts, or of a value and none, 1.
    """

    def __init__(self, configs: Iterable[Config]) -> None:
        self.all = sorted({*configs})
        self.number = {config: number for number, config in enumerate(self.all)}
        knobs = [config._asdict() for config in self.all]
        columns, self.distances = [], []
        for knob in sorted({name for values in knobs for name in values}):
            column = [values.get(knob) for values in knobs]
            ordered = sorted({*column}, key=lambda value: (value is None, isinstance(value, str), value or 0))
            if len(ordered) > 1:
                rank = {value: place for place, value in enumerate(ordered)}
                columns.append([rank[value] for value in column])
                self.distances.append(_distances(ordered))
        self.codes = np.array(columns, np.int64).reshape(len(columns), len(self.all)).T.copy()
        self._near: dict[tuple[int, int], Codes] = {}
        # Of equal codes, which configs of different classes may have, the first.
        self._number_at = {row.tobytes(): number for number, row in reversed([*enumerate(self.codes)])}

    def near(self, number: int, least: int) -> Codes:
        """The configs that differ from one in one knob; if these are fewer than `least`, some that differ in two."""
        if (number, least) not in self._near:
            differences = (self.codes != self.codes[number]).sum(axis=1)
            one, two = (np.flatnonzero(differences == count) for count in (1, 2))
            self._near[number, least] = np.concatenate([one, two[: max(0, least - len(one))]])
        return self._near[number, least]

    def children(self, parents: Codes, count: int, random: Generator) -> Codes:
        """Configs with each knob's value of one of two parents, some with one knob's of any config: up to `count`."""
        first, second = self.codes[parents[random.integers(len(parents), size=(2, count))]]
        child: Codes = np.where(random.random(first.shape) < 0.5, first, second)
        rows, knobs = np.arange(count), random.integers(child.shape[1], size=count)
        strange = random.random(count) < 0.5
        others = random.integers(len(self.all), size=int(strange.sum()))
        child[rows[strange], knobs[strange]] = self.codes[others, knobs[strange]]
        numbers = map(self._number_at.get, map(bytes, child))
        return np.unique(np.array([number for number in numbers if number is not None], np.int64))


def at_values(codes: Codes, widths: Iterable[int]) -> Array:
    """1 for each value that a row has: `widths` are the numbers of values of the columns, (rows, all values)."""
    starts = np.cumsum([0, *widths])
    result = np.zeros((len(codes), starts[-1]))
    result[np.arange(len(codes))[:, None], codes + starts[:-1]] = 1.0
    return result


class Candidates:
    """The candidates of a problem by the numbers of their configs, each asked for its launch once.

    Args:
        task: the problem with its candidates.
        configs: of the operator.

    Attributes:
        pool: the candidates of a large space, which get a launch when they are asked for; None of a small one.
        illegal: which configs are no candidates, in a large space as far as they were asked, (configs,).
    """

    def __init__(self, task: Task, configs: Configs) -> None:
        self._configs = configs
        self.pool = task.candidates if isinstance(task.candidates, Pool) else None
        listed = () if self.pool is not None else task.candidates
        self._listed = {configs.number[candidate.config]: candidate for candidate in listed}
        self.illegal = np.full(len(configs.all), self.pool is None)
        self.illegal[[*self._listed]] = False
        self._launches: dict[int, tuple[int, Hashable]] = {}

    def of(self, number: int) -> Candidate | None:
        """The candidate of a config: None if it is illegal, in a large space another one with its launch."""
        return self._listed.get(number) if self.pool is None else self.pool.of(self._configs.all[number])

    def is_legal(self, number: int) -> bool:
        """Whether a config is a candidate; of several with equal launches one is."""
        candidate = self.of(number)
        is_legal = candidate is not None and candidate.config == self._configs.all[number]
        self.illegal[number] |= not is_legal
        return is_legal

    def grids(self, numbers: Codes) -> Codes:
        """Ranks in `WAVES` of the numbers of programs of candidates, (configs,)."""
        return np.array([self._launch(number)[0] for number in numbers.tolist()], np.int64)

    def binaries(self, numbers: Codes) -> list[Hashable]:
        """The binaries of candidates."""
        return [self._launch(number)[1] for number in numbers.tolist()]

    def _launch(self, number: int) -> tuple[int, Hashable]:
        if number not in self._launches:
            candidate = self.of(number)
            assert candidate is not None
            launch = candidate.launch
            rank = round(math.log2(1 + launch.grid / _AT_ONCE) / WAVES[1])
            self._launches[number] = min(rank, len(WAVES) - 1), launch.binary
        return self._launches[number]


def _distances(values: Sequence[int | str | None]) -> Array:
    """Of each two values: the difference of their logarithms to base 2, in shares of the greatest."""
    count = len(values)
    numbers = np.array([np.nan if value is None or isinstance(value, str) else float(value) for value in values])
    places = np.sign(numbers) * np.log2(1 + np.abs(numbers))
    result = np.abs(places[:, None] - places)
    most = np.nanmax(result) if np.isfinite(result).any() else 0.0
    result = np.where(np.isfinite(result), result / (most or 1.0), 1.0)
    result[np.arange(count), np.arange(count)] = 0.0
    return result
