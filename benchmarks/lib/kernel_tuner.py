"""Kernel Tuner's strategies, with their default options, over any configs whose times are at hand.

In: the name of a strategy, configs, a function that times one. Out: calls of that function. Needs the package
kernel_tuner, 1.5 or later (`pip install normtune[strategies]`).
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from normtune.kernels.config import Config

# The genetic algorithm, and the best of the newer ones here, of Willemsen et al., Automated algorithm design for
# auto-tuning optimizers (2025). Of the others tried, hybrid_vndx takes minutes of a core for a run of some 1,000
# configs, diff_evo and greedy_ils lose more and end with errors on small spaces and at configs without a neighbour.
GENETIC, GREYWOLF = "genetic_algorithm", "adaptive_tabu_greywolf"
_MODULES = {GENETIC: "genetic_algorithm", GREYWOLF: "gen_adaptive_tabu_greywolf"}
STRATEGIES = tuple(_MODULES)
# Configs that a space needs at least: twice the population.
LEAST = 52
# A strategy has ended when it asked so often for nothing but configs that are timed.
_REPEATS = 300


class SpentError(Exception):
    """Raised by the function that times a config where the budget is spent."""


def tune(strategy: str, configs: Sequence[Config], time: Callable[[Config], float], seed: int) -> None:
    """Let a strategy choose configs until it ends, the budget is spent, or all are timed.

    Args:
        strategy: one of `STRATEGIES`.
        configs: all of one class.
        time: of a config, ms, as Kernel Tuner counts them; infinite if it fails. Asked once for each config.
        seed: of Python's and numpy's global random numbers, which the strategies use.
    """
    from kernel_tuner.interface import Options
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.util import StopCriterionReached, TuningBudget

    fields = configs[0]._fields
    values = {name: sorted({getattr(config, name) for config in configs}) for name in fields}
    cache = {"tune_params": values, "cache": {str(number): config._asdict() for number, config in enumerate(configs)}}
    space = Searchspace(None, None, None, from_cache=cache)
    options = Options(
        strategy_options={},
        budget=TuningBudget(max_fevals=len(configs)),
        objective=["time"],
        objective_higher_is_better=[False],
        tune_params=values,
        verbose=False,
    )
    random.seed(seed)
    np.random.seed(seed)
    runner = _Runner({tuple(config): config for config in configs}, time)
    # Some add up the largest number, which stands for a config that failed.
    with suppress(SpentError, StopCriterionReached), np.errstate(over="ignore"):
        import_module(f"kernel_tuner.strategies.{_MODULES[strategy]}").tune(space, runner, options)


class _Runner:
    """What the strategies take for a GPU."""

    def __init__(self, configs: dict[tuple[Any, ...], Config], time: Callable[[Config], float]) -> None:
        self._configs, self._time = configs, time
        self._done: dict[Config, dict[str, Any]] = {}
        self._repeated = 0

    def run(self, configs: Sequence[Sequence[Any]], options: Any) -> list[dict[str, Any]]:
        """The results of configs, each of them timed once."""
        from kernel_tuner.util import RuntimeFailedConfig

        results = []
        for values in configs:
            config = self._configs[tuple(values)]
            self._repeated += 1
            if self._repeated > _REPEATS:
                raise SpentError
            if config not in self._done:
                self._repeated = 0
                seconds = self._time(config)
                options.budget.add_evaluations(1)
                self._done[config] = {"time": seconds} if seconds < np.inf else {"__error__": RuntimeFailedConfig()}
            results.append(config._asdict() | self._done[config])
        return results

    def add_strategy_time(self, seconds: float) -> None:
        """Of no interest here."""
