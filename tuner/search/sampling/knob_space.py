"""The configs of a problem as points, to find the nearest free config to a proposal of Optuna.

In: configs. Out: Optuna's distributions of their knobs, parameters of a config, and the config of parameters.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from normtune.kernels.config import Config


class KnobSpace:
    """Configs of one class, at least one, each free until it is taken."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._configs = [*configs]
        self._row = {config: row for row, config in enumerate(configs)}
        self._choices = {
            knob: values
            for knob in configs[0]._fields
            if len(values := sorted({getattr(config, knob) for config in configs})) > 1
        }
        self._points = np.array([self._point(config) for config in configs], np.float64).reshape(len(configs), -1)
        self._free = np.ones(len(configs), np.bool_)

    def __contains__(self, config: Config) -> bool:
        return config in self._row

    def add(self, config: Config) -> None:
        """Add a config, unless it has values that no other has."""
        if config in self or any(getattr(config, knob) not in values for knob, values in self._choices.items()):
            return
        self._row[config] = len(self._configs)
        self._configs.append(config)
        self._points = np.vstack([self._points, self._point(config)])
        self._free = np.append(self._free, True)

    def is_free(self, config: Config) -> bool:
        """Whether a config was not yet taken."""
        return bool(self._free[self._row[config]])

    def take(self, config: Config) -> None:
        """Mark a config as taken."""
        self._free[self._row[config]] = False

    def free(self) -> list[Config]:
        """The configs not yet taken."""
        return [config for config, is_free in zip(self._configs, self._free, strict=True) if is_free]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Distributions of the knobs: for integers the rank of the value, for texts a category."""
        return {
            knob: CategoricalDistribution(values) if isinstance(values[0], str) else IntDistribution(0, len(values) - 1)
            for knob, values in self._choices.items()
        }

    def params(self, config: Config) -> dict[str, int | str]:
        """The parameters of a config."""
        values = {knob: getattr(config, knob) for knob in self._choices}
        return {knob: v if isinstance(v, str) else self._choices[knob].index(v) for knob, v in values.items()}

    def config(self, params: Mapping[str, Any]) -> Config:
        """The config of these parameters, legal or not."""
        values = {knob: v if isinstance(v, str) else self._choices[knob][v] for knob, v in params.items()}
        return self._configs[0]._replace(**values)

    def nearest(self, proposed: Config, random: Random) -> Config:
        """The free config that is nearest to a proposed one; of several, a random one."""
        rows = np.flatnonzero(self._free)
        distances = np.abs(self._points[rows] - self._point(proposed)).sum(axis=1)
        return self._configs[random.choice(rows[distances <= distances.min() + 1e-9].tolist())]

    def _point(self, config: Config) -> list[float]:
        """Coordinates of a config: ranks of integers in shares of their range, and one axis for each text."""
        point = []
        for knob, values in self._choices.items():
            value = getattr(config, knob)
            if isinstance(value, str):
                point += [0.5 * (value == other) for other in values]
            else:
                point.append(values.index(value) / (len(values) - 1))
        return point
