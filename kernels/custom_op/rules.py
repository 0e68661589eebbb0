"""The rules of a decorated operator: legal configs, configs that a sweep leaves out, the default config.

In: the user's functions. Out: the same functions with errors that name the operator, and the default of a problem.
"""

from collections.abc import Callable, Sequence
from typing import Any

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.config_space import KnobProduct, Listed, spread
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.spec_faults import ReturnedError, reraise
from normtune.kernels.target import TARGETS, Target

# The most configs of a space, evenly spread, whose legality is checked when an operator is declared.
_MOST_CHECKED = 2048

Legal = Callable[[Config, Problem, Target], bool]
# Chooses a library's present config.
Rule = Callable[[Problem, Target], Config]


def named(name: str, function: str, rule: Legal) -> Legal:
    """`rule` with errors that name the operator and the function."""

    def answer(config: Config, problem: Problem, target: Target) -> bool:
        try:
            return bool(rule(config, problem, target))
        except Exception as error:
            reraise(name, function, error, f"{config} at {problem}")

    return answer


class Default:
    """`default_config` of an operator."""

    def __init__(self, name: str, default: Config | Rule | None, configs: KnobProduct | Listed, legal: Legal) -> None:
        """Take the operator's name, the declared default, the configs of the space, and their legality."""
        self._config = type(configs[0])
        defaults = {knob.name: knob.default for knob in self._config.knobs if knob.default is not None}
        self._rule = default if callable(default) else None
        first = [*configs.having(defaults)[:1]] if default is None or callable(default) else [default]
        self._order = [*first, *spread(configs, _MOST_CHECKED)]
        self._name, self._legal = name, legal

    def __call__(self, problem: Problem, target: Target) -> Config:
        """The rule's config if legal, else the first config that is legal for all rows, else the first."""
        if self._rule and self._legal(rule_config := self._ruled(self._rule, problem, target), problem, target):
            return rule_config
        most = problem._replace(rows=MAX_ROWS)
        legal = (config for config in self._order if self._legal(config, most, target))
        return next(legal, self._order[0])

    def _ruled(self, rule: Rule, problem: Problem, target: Target) -> Config:
        expected = self._config
        try:
            config: Any = rule(problem, target)
            if type(config) is not expected:
                raise ReturnedError(f"returns {config!r}: expected a {expected.__name__}")
        except Exception as error:
            reraise(self._name, "default", error, str(problem))
        return config


def reason_against_target(config: Config, target: Target) -> str:
    """Why no kernel can run with a config on a target; empty if some can."""
    threads = target.warp_size * int(getattr(config, "num_warps", 1))
    if threads > target.max_threads:
        return f"{threads} threads exceed {target.max_threads}"
    return "" if getattr(config, "num_ctas", 1) <= 1 or target.has_clusters else f"{target.name} has no clusters"


def check_legal(legal: Legal, spec: OperatorSpec, configs: Sequence[Config]) -> None:
    """Refuse a rule by which an illegal config becomes legal as a size grows.

    A config of a table's leaf is only checked at the leaf's largest shape.

    Raises:
        UsageError: one of these configs becomes legal.
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
        for config in spread(configs, _MOST_CHECKED):
            said = [bool(legal(config, problem, TARGETS["sm_90"])) for problem in problems]
            if sorted(said, reverse=True) != said:
                no, yes = problems[said.index(False)], problems[said.index(True, said.index(False))]
                raise UsageError(
                    f"operator {spec.name!r}: legal refuses {config} at {axis} {no.sizes[axis]} and allows it at "
                    f"{axis} {yes.sizes[axis]}: expected an illegal config to stay illegal for {more}; use leaves_out "
                    "for configs that a sweep need not time"
                )
