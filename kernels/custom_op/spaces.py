"""The space of a decorated operator: values of its knobs, a list of configs, or a function that draws configs.

In: the class of the configs, and the declared space. Out: the configs of a problem, and a line for each fault.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normtune.errors import UsageError
from normtune.kernels.config import Config, check_values
from normtune.kernels.config_space import Drawn, KnobProduct, Listed
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import ReturnedError

# Draws a config for a problem from a trial of Optuna, as a value of each knob.
Draws = Callable[[Any, Problem], Mapping[str, int | str] | Config]
Space = Mapping[str, Sequence[int | str]] | Sequence[Config] | Draws


@dataclass(frozen=True)
class DeclaredSpace:
    """The arguments `config` and `space` of `kernel_operator`."""

    config: type[Config]
    space: Space

    def at(self, problem: Problem) -> KnobProduct | Listed | Drawn:
        """The configs of a problem."""
        return Drawn(self._config_of, problem) if callable(self.space) else self._listed

    def some(self, problem: Problem) -> KnobProduct | Listed:
        """The configs; of a function that draws them a sample, and the knobs' defaults if each knob has one.

        Raises:
            UsageError: no config can be drawn at this problem.
            OperatorError: the function raises.
        """
        space = self.at(problem)
        if not isinstance(space, Drawn):
            return space
        if not (sample := space.some()):
            raise UsageError(f"operator {problem.operator!r}: its space draws no config at {problem}: expected one")
        has_defaults = all(knob.default is not None for knob in self.config.knobs)
        return Listed([*sample, *([self.config()] if has_defaults else [])])

    @cached_property
    def _listed(self) -> KnobProduct | Listed:
        """Of all problems."""
        assert not callable(self.space)
        return KnobProduct(self.config, self.space) if isinstance(self.space, Mapping) else Listed(self.space)

    def _config_of(self, trial: Any, problem: Problem) -> Config:
        """The config that the function draws from a trial.

        Raises:
            ReturnedError: the function returns no config and no value for each knob.
        """
        assert callable(self.space)
        config: Any = self.space(trial, problem)
        if type(config) is not self.config:
            kinds = {knob.name: knob.kind for knob in self.config.knobs}
            needed = {knob.name for knob in self.config.knobs if knob.default is None}
            if not isinstance(config, Mapping) or not needed <= config.keys() <= kinds.keys():
                raise ReturnedError(f"returns {config!r}: expected a value for each of the knobs {', '.join(kinds)}")
            for name, value in config.items():
                if type(value) is not kinds[name]:
                    raise ReturnedError(f"returns {value!r} for {name}: expected {kinds[name].__name__}")
            config = self.config(**config)
        if fault := _unfit(config):
            raise ReturnedError(f"returns an impossible config: {fault}")
        return config  # type: ignore[no-any-return]

    def faults(self) -> Iterator[str]:
        """The faults of the space, a line each."""
        of_types = [*self._faults_of_types()]
        yield from of_types
        if not of_types and not callable(self.space):
            yield from [f"space: {fault}" for config in self._of_each_value() if (fault := _unfit(config))][:1]

    def _faults_of_types(self) -> Iterator[str]:
        knobs, space = self.config.knobs, self.space
        if callable(space):
            try:
                inspect.signature(space).bind(None, None)
            except TypeError:
                yield "space is a function that does not take (trial, problem): expected one that does"
            return
        if not isinstance(space, Mapping):
            if not isinstance(space, Sequence):
                yield f"space is a {type(space).__name__}: expected a list of configs, or values by knob"
            elif wrong := [one for one in space if type(one) is not self.config]:
                yield f"space has {wrong[0]!r}: expected configs of {self.config.__name__}"
            elif not space:
                yield "space is empty: expected a config or more"
            return
        if set(space) != {knob.name for knob in knobs}:
            names = ", ".join(knob.name for knob in knobs)
            yield f"space has {', '.join(space) or 'nothing'}: expected the knobs {names}"
        for knob in knobs:
            values = space.get(knob.name)
            if values is None:
                continue
            is_list = isinstance(values, Sequence) and not isinstance(values, str)  # a text would be its letters
            if not is_list or not values or any(type(value) is not knob.kind for value in values):
                yield f"space of {knob.name} is {values!r}: expected a list of values of type {knob.kind.__name__}"

    def _of_each_value(self) -> Iterator[Config]:
        """Configs in which each value of each knob occurs."""
        if not isinstance(self.space, Mapping):
            yield from self._listed
            return
        first = {name: values[0] for name, values in self.space.items()}
        for name, values in self.space.items():
            yield from (self.config(**first | {name: value}) for value in values)


def _unfit(config: Config) -> str:
    """Why a store, a table or the compiler would refuse a config; empty if none does."""
    try:
        check_values(config)
    except ValueError as error:
        return str(error)
    warps = getattr(config, "num_warps", 1)
    is_power = not isinstance(warps, int) or not warps & (warps - 1)
    return "" if is_power else f"num_warps of a config is {warps}, expected a power of 2"
