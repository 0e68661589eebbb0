"""Does a table still fit? Decided from what its configs lose on freshly measured shapes.

In: the samples of a small race on each shape that was checked, and what the table promised to lose. Out: `Finding`,
what one shape says; `Judgement`, what all of a function's say; and the verdict on the table. Which shapes and rivals
are measured is the business of `shapes`, measuring them that of the tuner.

One shape. The table's config is paired with the best rival inside rounds. The best is chosen on one half of the blocks
and compared on the other, and the other way round, so that luck does not count as speed. Each block gives one
log-ratio; their median is the loss, and an interval between their order statistics holds the true one
(`results.statistics.summary`: at most 5 % beside it from 6 blocks on, the least and greatest of fewer).

One function, by its mean loss. The sample is of fixed size and stratified by leaves (`shapes`), so the mean weighs each
leaf by its share of the plane, and its variance is that inside of leaves, with Student's t at the degrees of freedom of
Welch and Satterthwaite. What a function may lose is twice what its header promises and at least 3 %: STALE where the
lower bound of the mean is over that. OK where the upper one is under nine tenths of it, as a race of some ten configs
sees about so much of what is lost to the best of all, and where each leaf was visited that answers for 1 % of the
plane. A promise is best a cross-validated one, of shapes off the grid as those of a check; of one on the grid, 0.6 %
more is expected. Neither early nor by a cap: a mean that few shapes have made is not known to be small.

One function, by what is slower than any shape of the grid, be it rare. The header's worst, or 15 % where that is less,
and 15 % more is what a shape may lose. Two shapes of one config whose intervals are over it make a function stale at
once; of a leaf with a single shape over it another one is measured, which does not count in the mean, as a shape just
beside a threshold may lose as much in a fresh table. So does a config that loses more on average, over three shapes or
more, than that worst (t-test, Bonferroni over configs), and one that fails where the table answers with it.

Error rates. STALE is said at 1 % over the functions of the table and the two tests of a mean, so at most once in 100
tables that keep their promise; OK at 5 % a function. The mean of few and great losses is not normal, so the rates were
counted on the recorded H200, with tables of one half of the shapes checked on the other, and with the shipped one on
two other sweeps, by 44 races a function. Of 450 fresh checks none was STALE and 2 AMBIGUOUS. Of 607 with something
planted, such that a function lost over twice its promise and over 3 % or had an illegal config, 1 was OK and 226
AMBIGUOUS (`benchmarks/staleness.py`; the counts are in `benchmarks/results/nvidia_h200/staleness_replay.json`). What is
neither is AMBIGUOUS.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from normtune.heuristics.checking.shapes import MATTERS
from normtune.heuristics.checking.subject import Checked, Promise
from normtune.heuristics.regret.effects import Level, Samples, block_of, levels
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.kernels.config import Config
from normtune.results.statistics import halves, summary

OK, AMBIGUOUS, STALE, UNMEASURED = "OK", "AMBIGUOUS", "STALE", "NOT MEASURED"
# Rates of error: that a table is called stale that is not, and that a function is called OK that is not.
STALE_ERROR, OK_ERROR = 0.01, 0.05
# A mean loss is not worth a new sweep up to so much, whatever was promised, and up to twice the promise.
_LEAST_LIMIT, _TIMES_PROMISED = round(MILLION * math.log(1.03)), 2
# Shapes off the grid lose so much more than those that a table was fitted on.
_OFF_GRID = 6_000
# What a race of some ten configs sees of what is lost to the best of all.
_SEEN = 0.9
# A shape off the grid may lose so much, whatever the worst one on it does; and as much more before it is an alarm.
_LEAST_WORST = _WORST_SLACK = round(MILLION * math.log(1.15))
# So many shapes of one config make it stale: a single one may lie just beside a threshold.
_ALARMS = 2
# Fewer shapes decide nothing, unless one is an alarm.
LEAST_SHAPES = 8
_LEAST_OF_CONFIG = 3


class Finding(NamedTuple):
    """What one shape says of the config that a table has for it.

    Attributes:
        rows, hidden: the shape.
        config: of the table.
        rival: the fastest of the others, over all blocks; the config itself where none is faster.
        loss, low, high: log-ratio of times, the config's over the best's, millionths: the median over the blocks and an
            interval that holds the true one.
        failure: why the config has no time, one line; empty where it has one.
        leaf: the number of the leaf that answers.
        is_second_look: at a leaf because of an alarm; luck did not choose it, so it is not in the mean.
    """

    rows: int
    hidden: int
    config: Config
    rival: Config
    loss: int
    low: int
    high: int
    failure: str = ""
    leaf: int = 0
    is_second_look: bool = False


class Judgement(NamedTuple):
    """What the shapes of one function say.

    Attributes:
        verdict: `OK`, `AMBIGUOUS`, `STALE` or `UNMEASURED`.
        why: it is stale, or not yet decided; empty for OK.
        promise: of the table's header.
        mean: the estimate of the mean loss, millionths, with its interval; None without shapes.
        findings: of the shapes, worst first: failures, then by loss.
    """

    verdict: str
    why: str
    promise: Promise
    mean: "Estimate | None"
    findings: tuple[Finding, ...]


class Estimate(NamedTuple):
    """A mean over a stratified sample, millionths.

    Attributes:
        mean: the estimate.
        error: its standard error.
        freedom: degrees of freedom of that.
    """

    mean: float
    error: float
    freedom: float

    def low(self, rate: float) -> float:
        """Under which the true mean lies at this rate."""
        return self.mean - self._width(rate)

    def high(self, rate: float) -> float:
        """Over which it lies at this rate."""
        return self.mean + self._width(rate)

    def _width(self, rate: float) -> float:
        return self.error * float(stdtrit(self.freedom, 1 - rate))


def stale_over(promise: Promise) -> int:
    """The mean loss over which a function is stale, millionths."""
    expected = max(0, promise.mean) + (0 if promise.is_off_grid else _OFF_GRID)
    return max(_LEAST_LIMIT, _TIMES_PROMISED * expected)


def ok_under(promise: Promise) -> int:
    """The mean loss under which it is OK, as races see it, millionths."""
    return round(_SEEN * stale_over(promise))


def worst(promise: Promise) -> int | None:
    """What a shape may lose that is not slower than when the table was fitted, millionths; None where it is unknown."""
    return None if promise.worst is None else max(promise.worst, _LEAST_WORST)


def is_alarm(one: Finding, promise: Promise) -> bool:
    """Whether this shape loses more than any that is fitted still."""
    bound = worst(promise)
    return bound is not None and not one.failure and one.low > bound + _WORST_SLACK


def alarming(findings: Sequence[Finding], promise: Promise) -> str:
    """Why some shapes alone make their function stale, whatever the others say; empty where they do not."""
    if any(one.failure for one in findings):
        return "a config fails"
    counts = Counter(one.config for one in findings if is_alarm(one, promise))
    if counts and max(counts.values()) >= _ALARMS:
        return f"{max(counts, key=lambda config: counts[config])} loses more than the worst of the grid and 15 %"
    return ""


def doubtful(findings: Sequence[Finding], promise: Promise) -> set[int]:
    """The leaves of which a single shape was measured, and that is an alarm."""
    visits = Counter(one.leaf for one in findings)
    return {one.leaf for one in findings if visits[one.leaf] == 1 and is_alarm(one, promise)}


def finding(shape: tuple[int, int], samples: Mapping[Config, Samples], config: Config) -> Finding | None:
    """What the samples of one run say of a config; None where it, or all that was timed beside it, has too few.

    Args:
        shape: rows and hidden.
        samples: of each config of the race.
        config: the table's.
    """
    found = levels([dict(samples)])
    if config not in found:
        return None
    by_half = {half: min(found, key=lambda other: _place(found[other], half, other)) for half in (False, True)}
    rival = min(found, key=lambda other: (found[other].even + found[other].odd, other != config, other))
    ratios = _by_block(found[config], {half: found[best] for half, best in by_half.items()})
    if not len(ratios):
        return None
    loss, low, high = summary(ratios)
    return Finding(*shape, config, rival, loss, low, high)


def estimate(findings: Sequence[Finding], shares: Mapping[int, float]) -> Estimate | None:
    """The mean loss over the population, by strata; None of fewer than two shapes.

    Leaves that were visited once have no variance of their own. They are one stratum together, whose variance is taken
    for that of their differences, too, which makes it larger ("collapsed strata": Cochran, Sampling Techniques, 5A.12).
    Leaves that were not visited are counted like the others.
    """
    of_leaf: dict[int, list[float]] = defaultdict(list)
    for one in findings:
        of_leaf[one.leaf].append(one.loss)
    total = sum(shares[leaf] for leaf in of_leaf)
    if len(findings) < 2:
        return None
    mean = 0.0
    parts: list[tuple[float, int]] = []  # of the variance, with their degrees of freedom
    once: list[tuple[float, float]] = []
    for leaf, found in of_leaf.items():
        share = shares[leaf] / total
        mean += share * sum(found) / len(found)
        if len(found) == 1:
            once.append((share, found[0]))
        else:
            parts.append((share**2 * float(np.var(found, ddof=1)) / len(found), len(found) - 1))
    if len(once) > 1:
        weights, losses = np.array(once).T
        distances = losses - np.average(losses, weights=weights)
        parts.append((float(np.sum((weights * distances) ** 2)) * len(once) / (len(once) - 1), len(once) - 1))
    variance = sum(part for part, _ in parts)
    # Welch and Satterthwaite.
    freedom = variance**2 / sum(part**2 / own for part, own in parts) if variance else len(findings) - 1
    return Estimate(mean, math.sqrt(variance), freedom)


def judge(findings: Sequence[Finding], promise: Promise, shares: Mapping[int, float], functions: int) -> Judgement:
    """The verdict on one function, when no more of it is measured.

    Args:
        findings: one a shape.
        promise: of the table's header.
        shares: of the population, by leaf.
        functions: how many the table has, as one that is stale is enough for the table.
    """
    ordered = tuple(sorted(findings, key=lambda one: (not one.failure, -one.loss, one.rows, one.hidden)))
    measured = [one for one in ordered if not one.failure]
    mean = estimate([one for one in measured if not one.is_second_look], shares)
    if why := alarming(ordered, promise):
        return Judgement(STALE, why, promise, mean, ordered)
    return Judgement(*_decided(measured, mean, promise, shares, functions), promise, mean, ordered)


def _decided(
    findings: Sequence[Finding],
    mean: Estimate | None,
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
    missing = {leaf for leaf, share in shares.items() if share >= MATTERS} - {one.leaf for one in findings}
    if missing:
        return AMBIGUOUS, f"no shape of {len(missing)} leaves was measured"
    if mean.high(OK_ERROR) >= ok_under(promise):
        return AMBIGUOUS, "the mean loss may be on either side of the limit"
    return OK, ""


def slow_config(findings: Sequence[Finding], promise: Promise, rate: float) -> Config | None:
    """A config that loses more on average than any shape of the grid did; None where no test says so at this rate.

    Each config with enough shapes is t-tested, at the rate over their number (Bonferroni).
    """
    bound = worst(promise)
    if bound is None:
        return None
    of_config: dict[Config, list[int]] = defaultdict(list)
    for one in findings:
        of_config[one.config].append(one.loss)
    tested = {config: losses for config, losses in of_config.items() if len(losses) >= _LEAST_OF_CONFIG}
    for config, losses in tested.items():
        error = float(np.std(losses, ddof=1)) / math.sqrt(len(losses))
        if np.mean(losses) - error * float(stdtrit(len(losses) - 1, 1 - rate / len(tested))) > bound:
            return config
    return None


def of_table(judged: Sequence[tuple[Checked, Judgement]]) -> tuple[str, list[Checked]]:
    """The verdict on a table, and the functions that decided it where it is not OK.

    It is stale where any function is: its file is fitted again as a whole. Else it is what the plain functions are,
    which most launches ask; what all are where none is plain.
    """
    stale = [one for one, found in judged if found.verdict == STALE]
    if stale:
        return STALE, stale
    has_plain = any(one.is_plain for one, _ in judged)
    unsure = [one for one, found in judged if found.verdict != OK and (one.is_plain or not has_plain)]
    return (AMBIGUOUS if unsure or not judged else OK), unsure


def _place(level: Level, even: bool, config: Config) -> tuple[int, Config]:
    return (level.even if even else level.odd), config


def _by_block(own: Level, best: Mapping[bool, Level]) -> NDArray[np.int32]:
    """Log-ratios of a config to the best, one a block, millionths: the mean over the rounds that both were timed in.

    Args:
        own: the config's.
        best: the best config's by the even blocks (True), with which the odd ones are compared, and by the odd ones.
    """
    ratios: dict[int, list[int]] = {}
    for even in (False, True):
        other = best[not even]
        labels, mine, its = np.intersect1d(own.labels, other.labels, return_indices=True)
        kept = halves(labels) == even
        for block, ratio in zip(block_of(labels)[kept], (own.logs[mine] - other.logs[its])[kept], strict=True):
            ratios.setdefault(int(block), []).append(int(ratio))
    return np.array([sum(found) // len(found) for _, found in sorted(ratios.items())], np.int32)
