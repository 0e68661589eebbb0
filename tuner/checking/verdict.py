"""Verdict of a check on a device, from the loss of a table's configs on freshly measured shapes.

In: the samples of a small race on each checked shape, and the loss that the table promises. Out: `ShapeLoss` for one
shape, `Judgement` for a function, and the verdict on the table. `shapes` chooses shapes and rivals.

docs/measuring.md ("Is a table stale?") has the method, and docs/results.md counts of verdicts, by which the constants
below were tested. The tests, in the order of a check:

* One shape: the best rival is chosen on one half of the blocks and compared on the other, and vice versa, to avoid
  selection bias. The loss is the median of the log-ratios of the blocks (`results.statistics.summary`: an error of at
  most 5 % from 6 blocks on; with fewer the interval is the least and the greatest).
* The mean of a function: stratified by leaves, with Student's t at the degrees of freedom of Welch and Satterthwaite.
  0.6 % is added to a promise on the grid, as a check is off it; OK needs nine tenths of the limit, because a race of
  some ten configs shows about that part of the loss to the best of all.
* STALE has an error rate of 1 % over the functions of the table and the two tests of a mean, OK one of 5 % per
  function. The mean of few and large losses is not normal: the rates were counted. The verdict is given at the end.
* The worst of few shapes does not bound others, so single shapes do not make functions of few shapes stale. By the
  usual limits 8 of 353 fresh functions of 3 to 30 shapes were STALE, because 7 really lost over twice their promise.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from normtune.heuristics.regret.effects import Level, LogSamples, block_of, levels
from normtune.heuristics.regret.fixed_log import MILLION, percent
from normtune.kernels.config import Config
from normtune.kernels.problem import Shape
from normtune.results.statistics import halves, summary
from normtune.tuner.checking.shapes import MATTERS
from normtune.tuner.checking.subject import Checked, Promise

OK, AMBIGUOUS, STALE, UNMEASURED = "OK", "AMBIGUOUS", "STALE", "NOT MEASURED"
# Error rates: of a false STALE per table, and of a false OK per function.
STALE_ERROR, OK_ERROR = 0.01, 0.05
# A mean loss up to this limit, or up to this multiple of the promise, is not worth a new sweep.
_LEAST_LIMIT, _TIMES_PROMISED = round(MILLION * math.log(1.03)), 2
# The least limit for STALE of a function of few shapes, whose promise is uncertain.
_LEAST_OF_FEW = round(MILLION * math.log(1.15))
# Additional loss of shapes off the grid.
_OFF_GRID = 6_000
# Part of the loss to the best of all configs that a race of about ten configs shows.
_SHARE_IN_RACE = 0.9
# The least limit of a shape off the grid, and the slack before an alarm.
_LEAST_WORST = _WORST_SLACK = round(MILLION * math.log(1.15))
# A shape off the grid may lose this multiple of the promised mean, as tables of few shapes may promise a worst of 0.
_WORST_PER_MEAN = 8
# OK allows this much over a promise of more than it: twice as much would call any table OK.
_MOST_OVER = round(MILLION * math.log(1.05))
# Number of alarms of one config that make a function stale: a single shape may be next to a threshold.
_ALARMS = 2
# Least number of shapes for a decision, except by alarms.
LEAST_SHAPES = 8
_LEAST_OF_CONFIG = 3


class ShapeLoss(NamedTuple):
    """Result of one shape for the table's config.

    Attributes:
        shape: of the problem.
        config: config of the table.
        rival: the fastest of the others, over all blocks; the config itself if none is faster.
        loss, low, high: log-ratio of the config's time and the best time, log_ppm: the median over the blocks and its
            confidence interval.
        failure: why the config has no time, one line; empty if it has one.
        leaf: number of the leaf with the config.
        is_second_look: whether the shape was measured because of an alarm, and so is not part of the mean.
    """

    shape: Shape
    config: Config
    rival: Config
    loss: int
    low: int
    high: int
    failure: str = ""
    leaf: int = 0
    is_second_look: bool = False


class Judgement(NamedTuple):
    """Result of the shapes of one function.

    Attributes:
        verdict: `OK`, `AMBIGUOUS`, `STALE` or `NOT MEASURED`.
        why: reason why it is stale or ambiguous; of an OK function, its promise if that is large; else empty.
        promise: of the table's header.
        mean: the estimate of the mean loss, log_ppm, with its error; None with fewer than two shapes.
        findings: results of the shapes: failures, then the greatest loss first.
    """

    verdict: str
    why: str
    promise: Promise
    mean: "StratifiedMean | None"
    findings: tuple[ShapeLoss, ...]


class StratifiedMean(NamedTuple):
    """A mean over a stratified sample, log_ppm.

    Attributes:
        mean: the estimate.
        error: its standard error.
        freedom: degrees of freedom of the error.
    """

    mean: float
    error: float
    freedom: float

    def low(self, rate: float) -> float:
        """Lower confidence bound of the true mean at an error rate."""
        return self.mean - self._width(rate)

    def high(self, rate: float) -> float:
        """Upper confidence bound of the true mean at an error rate."""
        return self.mean + self._width(rate)

    def _width(self, rate: float) -> float:
        return self.error * float(stdtrit(self.freedom, 1 - rate))


def stale_over(promise: Promise) -> int:
    """The mean loss above which a function is stale, log_ppm."""
    return max(_limit(promise), _LEAST_OF_FEW if promise.is_of_few else 0)


def ok_under(promise: Promise) -> int:
    """The mean loss in races under which a function is OK, log_ppm."""
    limit = _limit(promise)
    if promises_little(promise):
        limit = min(limit, _expected(promise) + _MOST_OVER)
    return round(_SHARE_IN_RACE * limit)


def _limit(promise: Promise) -> int:
    return max(_LEAST_LIMIT, _TIMES_PROMISED * _expected(promise))


def _expected(promise: Promise) -> int:
    return max(0, promise.mean) + (0 if promise.is_off_grid else _OFF_GRID)


def worst(promise: Promise) -> int | None:
    """The greatest loss of a shape to expect of a table that is not stale, log_ppm; None if not known."""
    if promise.worst is None or promise.is_of_few or promises_little(promise):
        return None
    return max(promise.worst, _LEAST_WORST, _WORST_PER_MEAN * promise.unpriced)


def promises_little(promise: Promise) -> bool:
    """Whether the header promises so great a loss that OK says little: of a quick sweep, or of few shapes."""
    return promise.unpriced > _MOST_OVER


def is_alarm(finding: ShapeLoss, promise: Promise) -> bool:
    """Whether a shape loses more than is possible for a table that is not stale."""
    bound = worst(promise)
    return bound is not None and not finding.failure and finding.low > bound + _WORST_SLACK


def alarming(findings: Sequence[ShapeLoss], promise: Promise) -> str:
    """Why single shapes make the function stale; empty if they do not."""
    if any(finding.failure for finding in findings):
        return "a config fails"
    counts = Counter(finding.config for finding in findings if is_alarm(finding, promise))
    if counts and max(counts.values()) >= _ALARMS:
        return f"{max(counts, key=lambda config: counts[config])} loses more than the worst of the grid and 15 %"
    return ""


def doubtful(findings: Sequence[ShapeLoss], promise: Promise) -> set[int]:
    """Leaves whose single measured shape is an alarm."""
    visits = Counter(finding.leaf for finding in findings)
    return {finding.leaf for finding in findings if visits[finding.leaf] == 1 and is_alarm(finding, promise)}


def finding(shape: Shape, samples: Mapping[Config, LogSamples], config: Config) -> ShapeLoss | None:
    """Result of one race for a config; None if it, or all others of the race, have too few samples."""
    timed = levels([dict(samples)]).of
    by_config = {other: level for other, level in timed.items() if len({*block_of(level.labels).tolist()}) > 1}
    if config not in by_config:
        return None
    by_half = {half: min(by_config, key=lambda other: _rank(by_config[other], half, other)) for half in (False, True)}
    rival = min(by_config, key=lambda other: (by_config[other].even + by_config[other].odd, other != config, other))
    ratios = _by_block(by_config[config], {half: by_config[best] for half, best in by_half.items()})
    if not len(ratios):
        return None
    loss, low, high = summary(ratios)
    return ShapeLoss(shape, config, rival, loss, low, high)


def estimate(findings: Sequence[ShapeLoss], shares: Mapping[int, float]) -> StratifiedMean | None:
    """The mean loss over the population, by strata; None for fewer than two shapes.

    Leaves with one shape have no variance estimate. Together they count as one stratum, whose variance includes their
    differences and is therefore overestimated ("collapsed strata": Cochran, Sampling Techniques, 5A.12). Leaves without
    shapes are assumed to be like the others.
    """
    of_leaf: dict[int, list[float]] = defaultdict(list)
    for finding in findings:
        of_leaf[finding.leaf].append(finding.loss)
    total = sum(shares[leaf] for leaf in of_leaf)
    if len(findings) < 2:
        return None
    mean = 0.0
    parts: list[tuple[float, int]] = []  # of the variance, with their degrees of freedom
    once: list[tuple[float, float]] = []
    for leaf, losses_of_leaf in of_leaf.items():
        share = shares[leaf] / total
        mean += share * sum(losses_of_leaf) / len(losses_of_leaf)
        if len(losses_of_leaf) == 1:
            once.append((share, losses_of_leaf[0]))
        else:
            parts.append(
                (share**2 * float(np.var(losses_of_leaf, ddof=1)) / len(losses_of_leaf), len(losses_of_leaf) - 1)
            )
    if len(once) > 1:
        weights, losses = np.array(once).T
        distances = losses - np.average(losses, weights=weights)
        parts.append((float(np.sum((weights * distances) ** 2)) * len(once) / (len(once) - 1), len(once) - 1))
    variance = sum(part for part, _ in parts)
    # Welch and Satterthwaite.
    freedom = variance**2 / sum(part**2 / degrees for part, degrees in parts) if variance else len(findings) - 1
    return StratifiedMean(mean, math.sqrt(variance), freedom)


def judge(findings: Sequence[ShapeLoss], promise: Promise, shares: Mapping[int, float], functions: int) -> Judgement:
    """The verdict on one function, after its last measurement.

    Args:
        findings: one per shape.
        promise: of the table's header.
        shares: share of the population of each leaf.
        functions: number of functions of the table, among which the error rate is divided.
    """
    ordered = tuple(sorted(findings, key=lambda finding: (not finding.failure, -finding.loss, finding.shape)))
    measured = [finding for finding in ordered if not finding.failure]
    mean = estimate([finding for finding in measured if not finding.is_second_look], shares)
    if why := alarming(ordered, promise):
        return Judgement(STALE, why, promise, mean, ordered)
    return Judgement(*_decided(measured, mean, promise, shares, functions), promise, mean, ordered)


def _decided(
    findings: Sequence[ShapeLoss],
    mean: StratifiedMean | None,
    promise: Promise,
    shares: Mapping[int, float],
    functions: int,
) -> tuple[str, str]:
    if not findings:
        return UNMEASURED, ""
    if mean is None or len(findings) < LEAST_SHAPES:
        return AMBIGUOUS, "too few shapes were measured"
    if config := slow_config(findings, promise, STALE_ERROR / functions / 2):
        return STALE, f"{config} loses more on average than the worst of the grid"
    if mean.low(STALE_ERROR / functions / 2) > stale_over(promise):
        return STALE, "the mean loss is over the limit"
    if doubtful(findings, promise):
        return AMBIGUOUS, "the only shape of a leaf loses more than the worst of the grid and 15 %"
    unmeasured = {leaf for leaf, share in shares.items() if share >= MATTERS} - {finding.leaf for finding in findings}
    if unmeasured:
        return AMBIGUOUS, f"no shape of {len(unmeasured)} leaves was measured"
    if mean.high(OK_ERROR) >= ok_under(promise):
        return AMBIGUOUS, "the mean loss may be on either side of the limit"
    return OK, f"within the {percent(promise.mean)} that it promised" if promises_little(promise) else ""


def slow_config(findings: Sequence[ShapeLoss], promise: Promise, rate: float) -> Config | None:
    """A config whose mean loss is over the worst of the grid; None if there is none.

    Each config with enough shapes is t-tested, at the error rate divided by their number (Bonferroni).
    """
    bound = worst(promise)
    if bound is None:
        return None
    of_config: dict[Config, list[int]] = defaultdict(list)
    for finding in findings:
        of_config[finding.config].append(finding.loss)
    tested = {config: losses for config, losses in of_config.items() if len(losses) >= _LEAST_OF_CONFIG}
    for config, losses in tested.items():
        error = float(np.std(losses, ddof=1)) / math.sqrt(len(losses))
        if np.mean(losses) - error * float(stdtrit(len(losses) - 1, 1 - rate / len(tested))) > bound:
            return config
    return None


def of_table(judged: Sequence[tuple[Checked, Judgement]]) -> tuple[str, list[Checked]]:
    """The verdict on a table, and the functions that decided it if it is not OK.

    The table is stale if any function is, because it is fitted again as a whole. Otherwise the plain functions decide,
    which most launches use; without plain ones, all functions.
    """
    stale = [function for function, judgement in judged if judgement.verdict == STALE]
    if stale:
        return STALE, stale
    has_plain = any(function.is_plain for function, _ in judged)
    unsure = [
        function for function, judgement in judged if judgement.verdict != OK and (function.is_plain or not has_plain)
    ]
    return (AMBIGUOUS if unsure or not judged else OK), unsure


def _rank(level: Level, even: bool, config: Config) -> tuple[int, Config]:
    return (level.even if even else level.odd), config


def _by_block(level: Level, best: Mapping[bool, Level]) -> NDArray[np.int32]:
    """Log-ratios of a config to the best, one per block, log_ppm: the mean over the common rounds.

    Args:
        level: of the config.
        best: level of the best config by the even blocks (True), for the odd ones, and by the odd ones, for the even.
    """
    ratios: dict[int, list[int]] = {}
    for even in (False, True):
        other = best[not even]
        labels, rounds, other_rounds = np.intersect1d(level.labels, other.labels, return_indices=True)
        mask = halves(labels) == even
        for block, ratio in zip(
            block_of(labels)[mask], (level.logs[rounds] - other.logs[other_rounds])[mask], strict=True
        ):
            ratios.setdefault(int(block), []).append(int(ratio))
    return np.array([sum(values) // len(values) for _, values in sorted(ratios.items())], np.int32)
