"""The configs of a space, each made when it is asked for, so that many of them take no memory.

In: the values of each knob, the configs themselves, or a function that draws one. Out: `KnobProduct` and `Listed`,
sequences in the order of their configs, which know at once whether a config is one of them; `Drawn`, which cannot be
listed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product, starmap
from random import Random
from typing import Any, TypeVar

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.random_trial import RandomTrial

_Item = TypeVar("_Item")
# Configs that stand for those of a space that cannot be listed.
SOME = 64


class KnobProduct(Sequence[Config]):
    """Each value of each knob with all those of the others.

    Args:
        config: the class of the configs.
        values: of each knob of the class.
    """

    def __init__(self, config: type[Config], values: Mapping[str, Iterable[int | str]]) -> None:
        self._config = config
        self._values = [sorted(set(values[name])) for name in config._fields]  # type: ignore[type-var]

    def __len__(self) -> int:
        return math.prod(map(len, self._values))

    def __iter__(self) -> Iterator[Config]:
        return starmap(self._config, product(*self._values))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"config {index} of {len(self)}")
        chosen, rest = [], index % len(self)
        for values in reversed(self._values):
            rest, place = divmod(rest, len(values))
            chosen.append(values[place])
        return self._config(*reversed(chosen))

    def __contains__(self, config: object) -> bool:
        return type(config) is self._config and all(
            value in values for value, values in zip(config, self._values, strict=True)
        )

    def having(self, knob_values: Mapping[str, int | str]) -> "KnobProduct":
        """Those with these values of knobs."""
        named = zip(self._config._fields, self._values, strict=True)
        return KnobProduct(self._config, {k: [v for v in values if knob_values.get(k, v) == v] for k, values in named})


class Listed(tuple[Config, ...]):
    """Configs, each once and in order."""

    def __new__(cls, configs: Iterable[Config]) -> "Listed":
        """Of the configs, in any order."""
        return super().__new__(cls, sorted(set(configs)))

    def __contains__(self, config: object) -> bool:
        return config in self._set

    def having(self, knob_values: Mapping[str, int | str]) -> "Listed":
        """Those with these values of knobs."""
        return Listed(one for one in self if knob_values.items() <= one._asdict().items())

    def of_trial(self, trial: Any) -> Config:
        """A config of values of the knobs, which a trial of Optuna draws one by one; it may be none of these."""
        values: dict[str, int | str] = {}
        for knob in self[0]._fields:
            choices = sorted({getattr(config, knob) for config in self})
            if isinstance(choices[0], str):
                values[knob] = trial.suggest_categorical(knob, choices)
            else:
                values[knob] = choices[trial.suggest_int(knob, 0, len(choices) - 1)]
        return self[0]._replace(**values)

    @cached_property
    def _set(self) -> frozenset[Config]:
        return frozenset(self)


class Drawn:
    """Configs that a function draws, as those of Optuna's define-by-run: no list has all of them.

    Args:
        function: takes a trial of Optuna, or what has its `suggest_` methods, and the problem; returns a config. Raises
            `IllegalConfigError`, or Optuna's `TrialPruned`, where there is none of what it drew.
        problem: of the configs.
    """

    def __init__(self, function: Callable[[Any, Problem], Config], problem: Problem) -> None:
        self._function, self._problem = function, problem
        self._kinds: dict[str, str] = {}

    def trial(self, random: Random) -> RandomTrial:
        """A trial that draws at random, and refuses a name with other choices than in an earlier one."""
        return RandomTrial(random, self._kinds)

    def of_trial(self, trial: Any) -> Config | None:
        """The config of a trial; None if there is none. An `OperatorError` if the function raises."""
        try:
            return self._function(trial, self._problem)
        except Exception as error:
            if type(error).__name__ in ("IllegalConfigError", "TrialPruned"):
                return None
            from normtune.kernels.spec_faults import reraise  # which needs the declaration of operators, and that this

            reraise(self._problem.operator, "space", error, self._problem)

    def some(self, most: int = SOME) -> list[Config]:
        """At most so many random configs in order, the same every time."""
        random = Random(0)
        return sorted({config for _ in range(most) if (config := self.of_trial(self.trial(random)))})


Space = KnobProduct | Listed | Drawn


def space_of(configs: Sequence[Config] | Drawn) -> Space:
    """The space of configs in any order; itself if it is one."""
    return configs if isinstance(configs, Space) else Listed(configs)


def some_of(space: Space, most: int) -> list[Config]:
    """At most so many configs of a space: all, an even spread, or random ones of a space that cannot be listed."""
    return space.some(most) if isinstance(space, Drawn) else spread(space, most)


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` (2 or more) of the items, as evenly as possible, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
