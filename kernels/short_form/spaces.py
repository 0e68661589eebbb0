"""The space of an operator in the short form: the values of its knobs, its configs, or what draws them.

In: the class of the configs, and what was declared. Out: the configs of a problem, and lines that name a fault.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normtune.errors import UsageError
from normtune.kernels.config import Config, check_values
from normtune.kernels.config_space import Drawn, Listed, Product
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import ReturnedError

# What draws a config from a trial of Optuna at a problem, as a value of each knob.
Draws = Callable[[Any, Problem], Mapping[str, int | str] | Config]
# The values of each knob, the configs themselves, or what draws one.
Space = Mapping[str, Sequence[int | str]] | Sequence[Config] | Draws


@dataclass(frozen=True)
class DeclaredSpace:
    """The arguments `config` and `space` of `kernel_operator`."""

    config: type[Config]
    given: Space

    def at(self, problem: Problem) -> Product | Listed | Drawn:
        """The configs of a problem."""
        return Drawn(self._drawn, problem) if callable(self.given) else self._listed

    def some(self, problem: Problem) -> Product | Listed:
        """The configs, or of those that are drawn some, with that of the knobs' own defaults if each has one.

        Raises:
            UsageError: nothing can be drawn at this problem. An `OperatorError` if the function raises.
        """
        space = self.at(problem)
        if not isinstance(space, Drawn):
            return space
        if not (drawn := space.some()):
            raise UsageError(f"operator {problem.operator!r}: its space draws no config at {problem}: expected one")
        has_defaults = all(knob.default is not None for knob in self.config.knobs)
        return Listed([*drawn, *([self.config()] if has_defaults else [])])

    @cached_property
    def _listed(self) -> Product | Listed:
        """Of all problems."""
        assert not callable(self.given)
        return Product(self.config, self.given) if isinstance(self.given, Mapping) else Listed(self.given)

    def _drawn(self, trial: Any, problem: Problem) -> Config:
        """The config that is drawn from a trial.

        Raises:
            ReturnedError: the function returns something else.
        """
        assert callable(self.given)
        drawn: Any = self.given(trial, problem)
        if type(drawn) is not self.config:
            kinds = {knob.name: knob.kind for knob in self.config.knobs}
            needed = {knob.name for knob in self.config.knobs if knob.default is None}
            if not isinstance(drawn, Mapping) or not needed <= drawn.keys() <= kinds.keys():
                raise ReturnedError(f"returns {drawn!r}: expected a value for each of the knobs {', '.join(kinds)}")
            for name, value in drawn.items():
                if type(value) is not kinds[name]:
                    raise ReturnedError(f"returns {value!r} for {name}: expected {kinds[name].__name__}")
            drawn = self.config(**drawn)
        if fault := _unfit(drawn):
            raise ReturnedError(f"returns a config that cannot be: {fault}")
        return drawn  # type: ignore[no-any-return]

    def faults(self) -> Iterator[str]:
        """What is wrong with it, a line each."""
        of_kind = [*self._of_kind()]
        yield from of_kind
        if of_kind or callable(self.given):
            return
        # Values that a store or a table could not hold, or a compiler not take.
        yield from [f"space: {fault}" for config in self._of_each_value() if (fault := _unfit(config))][:1]

    def _of_kind(self) -> Iterator[str]:
        knobs, given = self.config.knobs, self.given
        if callable(given):
            try:
                inspect.signature(given).bind(None, None)
            except TypeError:
                yield "space is a function that does not take (trial, problem): expected one that does"
            return
        if not isinstance(given, Mapping):
            if wrong := [one for one in given if type(one) is not self.config]:
                yield f"space has {wrong[0]!r}: expected configs of {self.config.__name__}"
            if not given:
                yield "space is empty: expected a config or more"
            return
        if set(given) != {knob.name for knob in knobs}:
            names = ", ".join(knob.name for knob in knobs)
            yield f"space has {', '.join(given) or 'nothing'}: expected the knobs {names}"
        for knob in knobs:
            values = given.get(knob.name)
            if values is not None and (not values or any(type(value) is not knob.kind for value in values)):
                yield f"space of {knob.name} is {values!r}: expected values of type {knob.kind.__name__}"

    def _of_each_value(self) -> Iterator[Config]:
        """Configs in which each value of each knob occurs."""
        if not isinstance(self.given, Mapping):
            yield from self._listed
            return
        first = {name: values[0] for name, values in self.given.items()}
        for name, values in self.given.items():
            yield from (self.config(**first | {name: value}) for value in values)


def _unfit(config: Config) -> str:
    """Why a store or a table could not hold a config, or a compiler not take it; empty if they can."""
    try:
        check_values(config)
    except ValueError as error:
        return str(error)
    warps = getattr(config, "num_warps", 1)
    is_power = not isinstance(warps, int) or not warps & (warps - 1)
    return "" if is_power else f"num_warps of a config is {warps}, expected a power of 2"
