"""The rules of an operator in the short form: what is legal, what a sweep leaves out, the default.

In: the functions. Out: the same with errors that name the operator, and the default config of a problem.
"""

from collections.abc import Callable, Sequence
from typing import Any

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.config_space import Listed, Product, spread
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.spec_faults import ReturnedError, reraise
from normtune.kernels.target import TARGETS, Target

# Most configs of a space, evenly spread, that are asked whether they are legal when an operator is declared.
_LOOKED_AT = 2048

Legal = Callable[[Config, Problem, Target], bool]
# The config that a library launches with today.
Rule = Callable[[Problem, Target], Config]


def named(name: str, function: str, rule: Legal) -> Legal:
    """A rule of the operator `name`, whose errors name it."""

    def answer(config: Config, problem: Problem, target: Target) -> bool:
        try:
            return bool(rule(config, problem, target))
        except Exception as error:
            reraise(name, function, error, f"{config} at {problem}")

    return answer


class Default:
    """`default_config` of an operator."""

    def __init__(self, name: str, given: Config | Rule | None, configs: Product | Listed, legal: Legal) -> None:
        """Take the name of the operator, what was declared, the configs of its space, and what is legal."""
        self._config = type(configs[0])
        own = {knob.name: knob.default for knob in self._config.knobs if knob.default is not None}
        self._rule = given if callable(given) else None
        first = [*configs.having(own)[:1]] if given is None or callable(given) else [given]
        self._order = [*first, *spread(configs, _LOOKED_AT)]
        self._name, self._legal = name, legal

    def __call__(self, problem: Problem, target: Target) -> Config:
        """The rule's, if legal; else the first that is legal at the most rows, so that it is at all; else the first."""
        if self._rule and self._legal(found := self._ruled(self._rule, problem, target), problem, target):
            return found
        most = problem._replace(rows=MAX_ROWS)
        legal = (config for config in self._order if self._legal(config, most, target))
        return next(legal, self._order[0])

    def _ruled(self, rule: Rule, problem: Problem, target: Target) -> Config:
        expected = self._config
        try:
            found: Any = rule(problem, target)
            if type(found) is not expected:
                raise ReturnedError(f"returns {found!r}: expected a {expected.__name__}")
        except Exception as error:
            reraise(self._name, "default", error, str(problem))
        return found


def check_legal(legal: Legal, spec: OperatorSpec, configs: Sequence[Config]) -> None:
    """Refuse a `legal` by which a config that is illegal is legal again for longer rows, or for more.

    A leaf of a table is judged by its largest shape.

    Raises:
        UsageError: it is so for one of these configs.
    """
    of_sizes = {name: values[0] for name, values in spec.sizes.items()}
    of = spec.at(**of_sizes)
    sizes = [size for size in (1 << power for power in range(17)) if size <= spec.max_hidden]
    powers, usual = [1 << power for power in range(0, 22, 3)], min(1024, spec.max_hidden)
    rows, hidden, *third = of.axes
    lines = {
        hidden: [of.problem(1, size, of.dtypes[0]) for size in sizes],
        rows: [of.problem(size, usual, of.dtypes[0]) for size in powers],
    }
    for axis in third:
        lines[axis] = [spec.at(**of_sizes | {axis: size}).problem(1, usual, of.dtypes[0]) for size in powers]
    for axis, problems in lines.items():
        more = {"rows": "more rows", "hidden": "longer rows"}.get(axis, f"larger {axis}")
        for config in spread(configs, _LOOKED_AT):
            said = [bool(legal(config, problem, TARGETS["sm_90"])) for problem in problems]
            if sorted(said, reverse=True) != said:
                no, yes = problems[said.index(False)], problems[said.index(True, said.index(False))]
                raise UsageError(
                    f"operator {spec.name!r}: legal says no to {config} at {axis} {no.sizes[axis]} and yes at {axis} "
                    f"{yes.sizes[axis]}: what is illegal has to stay so for {more}; what a sweep need not time is said "
                    "by leaves_out"
                )
