"""The configs of an operator as codes of their knobs' values, and moves among them: neighbours and recombinations.

In: configs. Out: codes, distances of the values of each knob, and numbers of configs. Knows neither shapes nor times.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from normtune.kernels.config import Config

Array = NDArray[np.float64]
Codes = NDArray[np.int64]


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
        self._columns = self.codes.T.astype(np.int32, order="C")
        self._near: dict[tuple[int, int], Codes] = {}
        # Of equal codes, which configs of different classes may have, the first.
        self._number_at = {row.tobytes(): number for number, row in reversed([*enumerate(self.codes)])}

    def near(self, number: int, least: int) -> Codes:
        """The configs that differ from one in one knob; if these are fewer than `least`, some that differ in two."""
        if (number, least) not in self._near:
            differences = np.zeros(len(self.all), np.int16)
            for column, value in zip(self._columns, self.codes[number].tolist(), strict=True):
                differences += column != value
            one = np.flatnonzero(differences == 1)
            more = max(0, least - len(one))
            self._near[number, least] = np.concatenate([one, np.flatnonzero(differences == 2)[:more]]) if more else one
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
