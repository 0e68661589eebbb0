"""Paired comparison of the configs of one problem: which are slower than the leader, and whether one may be faster.

In: samples with their rounds, and an error probability. Out: a `Standing`. Knows neither device nor search.

Only times of the same block are compared, as log ratios to the leader, averaged over the rounds of the block. The first
block of a task is left out, because the GPU may still be adapting to a new load. A config is slower if the confidence
interval of its mean log ratio lies above log(1 + precision), and the leader is settled if those of all others lie above
-log(1 + precision). Holm's step-down procedure keeps the probability of one wrong config or more at `alpha` (Holm, A
simple sequentially rejective multiple test procedure, 1979), whatever the correlation of the configs.

Three blocks are too few to estimate the variance of a config: the greater of its own and the median variance of all is
used, and the t distribution gets the degrees of freedom of the pooled estimate.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from normtune.kernels.config import Config
from normtune.results.records import ROUNDS_PER_BLOCK, Outcome
from normtune.tuner.search.protocol import Samples

# Configs closer than this are ties.
PRECISION = 0.005
# Blocks at the beginning of a task that are not compared.
BURN_IN = 1
# Most degrees of freedom of the pooled variance: all ratios have the same leader, and their tails are heavy.
_MOST_FREEDOM = 30.0
# Resolution of a block's log time: samples are whole nanoseconds.
_RESOLUTION = 1e-6


class Standing(NamedTuple):
    """Standing of a race.

    Attributes:
        leader: the config with the least mean log time.
        slower: configs that are slower than the leader by more than the precision.
        is_settled: whether none of the others is faster than the leader by more than the precision.
    """

    leader: Config
    slower: frozenset[Config]
    is_settled: bool


def standing(samples: Mapping[Config, Samples], configs: Sequence[Config], alpha: float) -> Standing | None:
    """The standing of these configs by the blocks that all of them have; None with fewer than two such blocks.

    Args:
        samples: of the task so far.
        configs: to be compared; those without samples are left out.
        alpha: probability of a wrong conclusion, for `slower` and for `is_settled` each.
    """
    timed = [config for config in configs if config in samples]
    logs = _common([_by_block(samples[config]) for config in timed])
    count = logs.shape[1]
    if count < 2:
        return None
    leader = int(logs.mean(axis=1).argmin())
    others = np.flatnonzero(np.arange(len(timed)) != leader)
    if not len(others):
        return Standing(timed[leader], frozenset(), True)
    ratios = logs[others] - logs[leader]
    error, freedom = _errors(ratios)
    margin = math.log1p(PRECISION)
    slower = holm(stdtr(freedom, -(ratios.mean(axis=1) - margin) / error), alpha)
    is_settled = bool((stdtr(freedom, -(ratios.mean(axis=1) + margin) / error) <= alpha / len(others)).all())
    return Standing(timed[leader], frozenset(timed[others[index]] for index in slower), is_settled)


def _common(by_block: Sequence[Mapping[int, float]]) -> NDArray[np.float64]:
    """Mean log times, (configs, blocks), of the blocks after the burn-in that all configs have."""
    if not by_block:
        return np.empty((0, 0))
    first = min(min(blocks) for blocks in by_block)
    common = sorted(set.intersection(*(set(blocks) for blocks in by_block)))
    return np.array([[blocks[number] for number in common if number >= first + BURN_IN] for blocks in by_block])


def chained(previous: Mapping[Config, float], outcomes: Mapping[Config, Outcome]) -> dict[Config, float]:
    """Log times of the configs of a task, comparable with those of earlier tasks of its problem.

    The best earlier config of the task keeps its time, which is `previous`, and the others get theirs from their ratios
    to it. The outcomes are without the copy.
    """
    samples = {c: Samples([*o.rounds], [*o.nanoseconds]) for c, o in outcomes.items() if len(o.nanoseconds)}
    if not samples:
        return {}
    anchor = min(samples, key=lambda config: (previous.get(config, math.inf), config))
    base = previous.get(anchor, float(np.mean(np.log(samples[anchor].nanoseconds))))
    of_anchor = _by_block(samples[anchor])

    def log_ratio(values: Samples) -> float:
        """That of the times to those of the anchor, over the blocks after the burn-in that both have."""
        logs = _common([_by_block(values), of_anchor])
        if not logs.size:  # fewer blocks than the burn-in
            return float(np.log(values.nanoseconds).mean() - np.log(samples[anchor].nanoseconds).mean())
        return float((logs[0] - logs[1]).mean())

    return {config: base + log_ratio(values) for config, values in samples.items()}


def holm(probabilities: NDArray[np.float64], alpha: float) -> list[int]:
    """Indices of the hypotheses that Holm's procedure rejects."""
    rejected = []
    for position, index in enumerate(np.argsort(probabilities, kind="stable").tolist()):
        if probabilities[index] > alpha / (len(probabilities) - position):
            break
        rejected.append(index)
    return rejected


def _by_block(samples: Samples) -> dict[int, float]:
    blocks: dict[int, list[float]] = {}
    for number, nanoseconds in zip(samples.rounds, samples.nanoseconds, strict=True):
        blocks.setdefault(number // ROUNDS_PER_BLOCK, []).append(math.log(nanoseconds))
    return {number: sum(logs) / len(logs) for number, logs in blocks.items()}


def _errors(ratios: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Standard errors of the means of log ratios (configs, blocks), and their degrees of freedom."""
    others, count = ratios.shape
    variances = ratios.var(axis=1, ddof=1)
    variance = np.maximum(variances, np.median(variances))
    freedom = max(count - 1.0, min(_MOST_FREEDOM, others * (count - 1) / 2))
    return np.sqrt((variance + _RESOLUTION**2) / count), freedom
