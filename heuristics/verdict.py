"""Does a table still fit? Decided from what its configs lose on freshly measured shapes.

In: the samples of a small race on each shape that was checked, and what the table promised to lose. Out: `Finding`,
what one shape says; `Judgement`, what all of a function's say; and the verdict on the table. Which shapes and rivals
are measured is the business of `probes`, measuring them that of the tuner.

One shape. The table's config is paired with the best rival inside rounds. The best is chosen on one half of the blocks
and compared on the other, and the other way round, so that luck does not count as speed. Each block gives one
log-ratio; their median is the loss, and an interval between their order statistics holds the true one
(`results.statistics.summary`: at most 5 % beside it from 6 blocks on, the least and greatest of fewer).

One function. Its header promises a mean loss p. Fits to every other recorded shape of the H200, of 6 to 32 leaves, lose
up to 0.4 % more than they promise on the shapes between, and near their thresholds up to a third of it and 0.8 % more.
So a function is stale where the expected loss of a shape, as `probes` draws them, is over 4/3 p + 1.5 %; it is OK where
it is under 4/3 p + 2.5 %, from where on a new sweep is worth its time. Between the two either may be said.

Both are tested by betting (Waudby-Smith and Ramdas, 2024, "Estimating means of bounded random variables by betting",
section 4; no library that normtune uses has it). Who bets a fixed share against "the mean is at most m" multiplies the
stake by 1 + share x (loss - m) a shape; if it is, the stake is a non-negative martingale, and so is the mean stake of
several shares, which then exceeds 1 / a with a probability of at most a (Ville), however the losses are distributed and
whenever one stops. So one may look after each shape. Losses under -2 % count as -2 %; for OK those of more than 6 %
over its limit count as 6 % over it, as without a bound no number of shapes could exclude a rare and great loss.

Error rates. A table is stale where one of its functions is, each tested at 1 % over the number of functions: a table
whose functions all lose less than the limit is called stale at most once in 100 times. A function is OK at 5 %: a table
of which a function loses more than its limit is called OK at most once in 20 times. A config that fails where the table
answers with it makes its function stale at once. What is neither is ambiguous.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.levels import Level, Samples, block_of, levels
from normtune.kernels.config import Config
from normtune.results.statistics import halves, summary

OK, AMBIGUOUS, STALE = "OK", "AMBIGUOUS", "STALE"
# Rates of error, of a table; a logarithm in millionths below.
STALE_ERROR, OK_ERROR = 0.01, 0.05
# What a function may lose over 4/3 of its promise and be no stale one, and from where on it is not OK.
_STALE_SLACK, _OK_SLACK = 15_000, 25_000
_FLOOR, _CEILING = -20_000, 60_000
# Fewer shapes decide nothing, unless a config fails.
LEAST_SHAPES = 8
# Shares that are bet, of the greatest that cannot ruin.
_SHARES = tuple((number + 0.5) / 16 for number in range(16))


class Finding(NamedTuple):
    """What one shape says of the config that a table has for it.

    Attributes:
        rows, hidden: the shape.
        config: of the table.
        rival: the fastest of the others, over all blocks; the config itself where none is faster.
        loss, low, high: log-ratio of times, the config's over the best's, millionths: the median over the blocks and an
            interval that holds the true one.
        failure: why the config has no time, one line; empty where it has one.
    """

    rows: int
    hidden: int
    config: Config
    rival: Config
    loss: int
    low: int
    high: int
    failure: str = ""


class Judgement(NamedTuple):
    """What the shapes of one function say.

    Attributes:
        verdict: `OK`, `AMBIGUOUS` or `STALE`.
        confidence: that of OK or STALE, 0 to 1; of AMBIGUOUS, that of the likelier of the two.
        promised: mean loss by the table's header, millionths.
        mean: of the losses, millionths; None without shapes.
        findings: of the shapes, worst first: failures, then by loss.
    """

    verdict: str
    confidence: float
    promised: int
    mean: int | None
    findings: tuple[Finding, ...]


def stale_over(promised: int) -> int:
    """The mean loss over which a function is stale whose header promises so much; millionths."""
    return max(promised, 0) * 4 // 3 + _STALE_SLACK


def ok_under(promised: int) -> int:
    """The mean loss under which it is OK; millionths."""
    return max(promised, 0) * 4 // 3 + _OK_SLACK


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


def judge(findings: Sequence[Finding], promised: int, functions: int) -> Judgement:
    """The verdict on one function.

    Args:
        findings: one a shape.
        promised: mean loss by the table's header, millionths.
        functions: how many the table has, as one that is stale is enough for the table.
    """
    ordered = tuple(sorted(findings, key=lambda one: (not one.failure, -one.loss, one.rows, one.hidden)))
    losses = [one.loss for one in ordered if not one.failure]
    mean = sum(losses) // len(losses) if losses else None
    if len(losses) < len(ordered):
        return Judgement(STALE, 1.0, promised, mean, ordered)
    stale = _confidence(above(losses, stale_over(promised)), functions)
    fresh = _confidence(below(losses, ok_under(promised)), 1)
    verdict = AMBIGUOUS
    if len(losses) >= LEAST_SHAPES:
        if stale >= 1 - STALE_ERROR:
            verdict = STALE
        elif fresh >= 1 - OK_ERROR:
            verdict = OK
    return Judgement(verdict, max(stale, fresh), promised, mean, ordered)


def of_table(judgements: Sequence[Judgement]) -> tuple[str, float]:
    """The verdict on a table, and its confidence: that of its surest stale function, or of its least sure one."""
    stale = [one.confidence for one in judgements if one.verdict == STALE]
    if stale:
        return STALE, max(stale)
    unsure = [one.confidence for one in judgements if one.verdict == AMBIGUOUS]
    if unsure or not judgements:
        return AMBIGUOUS, min(unsure, default=0.0)
    return OK, min(one.confidence for one in judgements)


def above(losses: Sequence[int], limit: int) -> float:
    """What bets against "the mean loss is at most the limit" made of a stake of 1; all in millionths."""
    most = 1 / (limit - _FLOOR)
    return _stake([(max(loss, _FLOOR) - limit) * most for loss in losses])


def below(losses: Sequence[int], limit: int) -> float:
    """What bets against "the mean loss, none counted over the ceiling, is at least the limit" made of a stake of 1."""
    return _stake([(limit - min(max(loss, _FLOOR), limit + _CEILING)) / _CEILING for loss in losses])


def _stake(gains: Sequence[float]) -> float:
    """The mean over the shares of what a stake of 1 has become; a gain is at least -1 a whole share."""
    return sum(math.exp(sum(math.log1p(share * gain) for gain in gains)) for share in _SHARES) / len(_SHARES)


def _confidence(stake: float, tests: int) -> float:
    return max(0.0, 1.0 - tests / stake)


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
