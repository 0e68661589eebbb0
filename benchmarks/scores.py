"""Scores of searches over recorded spaces: 0 is calculated random search, 1 the optimum.

In: values and costs of all configs, and the moments of a search. Out: its score. After Willemsen et al., A methodology
for comparing optimization algorithms for auto-tuning (Future Generation Computer Systems 159, 2024), as
autotuning_methodology 1.1.0 has it by default: P(t) = (baseline(t) - value(t)) / (baseline(t) - optimum), averaged over
equally spaced times, from where the baseline has come 1 % of the way from the median to the optimum until it has come
95 %. The baseline is the expected value of random search without repetition, which takes all samples of a config, at
the mean cost of a config. Over several problems it spends its time evenly, and values are means over the problems. A
search that has no result yet holds the median.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.lib.simulation import Moment, Space
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem

START, CUTOFF = 0.01, 0.95
POINTS = 50
Values = Mapping[Problem, Mapping[Config, float]]


class Scale(NamedTuple):
    """The baseline of a scenario.

    Attributes:
        times: seconds at which scores are taken.
        baseline: of random search at these times.
        optimum, median: means over the problems.
        evaluations: configs of a problem that random search tries until the last time.
    """

    times: NDArray[np.float64]
    baseline: NDArray[np.float64]
    optimum: float
    median: float
    evaluations: float


def expected_best(values: Sequence[float]) -> NDArray[np.float64]:
    """Expected least of k values that are drawn without repetition, for k from 1 to all."""
    ordered = np.sort(np.asarray(values, np.float64))
    count = len(ordered)
    result = np.empty(count)
    left = np.ones(count)  # of draws of k, the share whose least is not below this rank, step by step
    for k in range(1, count + 1):
        # P(least has rank i) = C(n - i - 1, k - 1) / C(n, k), for ranks from 0 on; `left` holds C(n - i, k) / C(n, k).
        left = left * np.maximum(count - np.arange(count) - (k - 1), 0) / (count - (k - 1))
        result[k - 1] = float((-np.diff(left, append=0.0) * ordered).sum())
    return result


def scale(spaces: Sequence[Space], values: Values) -> Scale:
    """The baseline of these spaces, and the times of the score."""
    curves, costs = [], []
    for space in spaces:
        own = values[space.task.problem]
        curves.append(expected_best(list(own.values())))
        costs.append((sum(space.overhead.values()) + cost_of_all(space)) / len(own))
    optimum = float(np.mean([min(own.values()) for own in values.values()]))
    median = float(np.mean([np.median(list(own.values())) for own in values.values()]))
    most = max(map(len, curves))
    tries = np.linspace(1, most, max(2, min(20 * most, 200_000)))

    def baseline(tried: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.mean([np.interp(tried, np.arange(1, len(one) + 1), one) for one in curves], axis=0)

    way = (median - baseline(tries)) / (median - optimum)
    first, last = (float(tries[np.argmax(way >= share)]) for share in (START, CUTOFF))
    chosen = np.linspace(first, last, POINTS)
    return Scale(chosen * float(np.sum(costs)), baseline(chosen), optimum, median, last)


def cost_of_all(space: Space) -> float:
    """Seconds of all samples of all configs."""
    return float(sum(one.sum() * 1e-9 * space.launches + one.size * space.fixed for one in space.blocks.values()))


def held(moments: Sequence[Moment], values: Values, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean value, over the problems, of the configs that a search holds to be the best at these times."""
    now = {problem: float(np.median(list(own.values()))) for problem, own in values.items()}
    result = np.empty(len(times))
    left = list(moments)
    for index, time in enumerate(times):
        while left and left[0].seconds <= time:
            moment = left.pop(0)
            now[moment.problem] = values[moment.problem][moment.best]
        result[index] = float(np.mean(list(now.values())))
    return result


def score(moments: Sequence[Moment], values: Values, of: Scale) -> float:
    """Mean P over the times of a scale."""
    return float(np.mean((of.baseline - held(moments, values, of.times)) / (of.baseline - of.optimum)))
