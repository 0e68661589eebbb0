"""Comparison of the configs of one problem by their paired times, with the noise of its blocks.

Model. The mean log-time of config c in block b is level(c) + effect(b) + noise, by least squares over all configs and
blocks of the problem (analysis of incomplete block designs: Yates 1936). So configs that a search timed in different
blocks are compared through configs that share blocks with both. Aliases, which have one measurement, count once.

Noise. Its variance is pooled over the configs of the problem: on the recorded H200, the log-variances of the configs of
one shape scatter no more than by chance, those of different shapes 4 to 10 times as much. A config dropped after three
blocks has two degrees of freedom by itself, too few to detect 10 %, and some hundred in the pool. If the two compared
configs scatter more than the pool, their own variance is used.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from normtune.heuristics.regret.effects import block_of
from normtune.heuristics.regret.matrix import MISSING, Rounds

Floats = NDArray[np.float64]

_LEAST_BLOCKS = 3
# Smaller eigenvalues of the design count as 0: the least other one of a connected design of 100 configs exceeds 0.01.
_ZERO = 1e-6


class Paired(NamedTuple):
    """The configs of a problem against one of them; NaN where no times compare them.

    Attributes:
        ratios: (C,), mean log-ratio of the times of each config and that one, log_ppm.
        p: (C,), probability of a ratio at least as large if the true ratio is 0.
    """

    ratios: Floats
    p: Floats


def paired(rounds: Rounds, problem: int, right: int) -> Paired:
    """All configs of a problem against the one with index `right`.

    Two configs are compared if each was timed in three blocks, which shared rounds connect.
    """
    places = rounds.places[problem]
    result = Paired(np.full(len(places), np.nan), np.full(len(places), np.nan))
    used_places = np.unique(places)
    used_places = used_places[(rounds.logs[used_places] != MISSING).any(axis=1)]
    if places[right] not in used_places:
        return result
    columns = np.flatnonzero(np.isin(places, used_places))
    measured = np.searchsorted(used_places, places[columns])
    means, counts = _block_means(rounds.logs[used_places], rounds.labels[problem])
    ratios, p = _against(means, counts, int(np.searchsorted(used_places, places[right])))
    result.ratios[columns], result.p[columns] = ratios[measured], p[measured]
    return result


def _block_means(logs: NDArray[np.int32], labels: NDArray[np.int32]) -> tuple[Floats, Floats]:
    """Mean log-time of each config in each block, and 1 where it has a time, both (configs, blocks)."""
    timed = logs != MISSING
    _, block = np.unique(block_of(labels), return_inverse=True)
    in_block = (block[:, None] == np.arange(int(block.max()) + 1)).astype(np.float64)
    counts = timed @ in_block
    sums = np.where(timed, logs, 0).astype(np.float64) @ in_block
    return sums / np.maximum(counts, 1), (counts > 0).astype(np.float64)


def _against(means: Floats, timed: Floats, right: int) -> tuple[Floats, Floats]:
    """Ratios and p of each config against one of them, from means (configs, blocks) and 1 where there is a mean."""
    of_block, blocks = timed.sum(axis=0), timed.sum(axis=1)
    shares = timed / np.maximum(of_block, 1)
    # Normal equations of the levels, with the effects of the blocks eliminated.
    design = np.diag(blocks) - shares @ timed.T
    values, vectors = np.linalg.eigh(design)
    nonzero = values > _ZERO
    inverse = (vectors[:, nonzero] / values[nonzero]) @ vectors[:, nonzero].T
    levels = inverse @ (means * timed - shares * (means * timed).sum(axis=0)).sum(axis=1)
    noise = (means - levels[:, None]) * timed
    squares = ((noise - timed * noise.sum(axis=0) / np.maximum(of_block, 1)) ** 2).sum(axis=1)
    freedom = int(timed.sum()) - int((of_block > 0).sum()) - int(nonzero.sum())
    enough = (blocks >= _LEAST_BLOCKS) & (blocks[right] >= _LEAST_BLOCKS) & (freedom > 1)
    connected = vectors[:, nonzero] @ vectors[:, nonzero].T  # a projection that keeps differences of connected configs
    enough &= np.abs(np.diag(connected) + connected[right, right] - 2 * connected[right] - 2) < _ZERO
    enough[right] = True
    spread = np.diag(inverse) + inverse[right, right] - 2 * inverse[right]
    of_pair = (squares + squares[right]) / np.maximum(blocks + blocks[right] - 2, 1)
    scatter = np.sqrt(np.maximum(of_pair, squares.sum() / max(freedom, 1)) * np.maximum(spread, 0))
    ratios = levels - levels[right]
    with np.errstate(divide="ignore", invalid="ignore"):
        p = stdtr(float(freedom), -ratios / scatter)
    # Without any scatter, rounding leaves one of the order of 1e-10 of the ratios.
    p = np.where(scatter > 1e-6, p, np.where(ratios > 1e-3, 0.0, 1.0))
    return np.where(enough, ratios, np.nan), np.where(enough, p, np.nan)


def block_ratios(rounds: Rounds, problem: int, left: int, right: int) -> Floats:
    """The mean log-ratio of two configs in each block in which both were timed, in the order of blocks, log_ppm."""
    first, second = rounds.of(problem, left), rounds.of(problem, right)
    both = (first != MISSING) & (second != MISSING)
    ratios = first[both].astype(np.float64) - second[both]
    _, block = np.unique(block_of(rounds.labels[problem, both]), return_inverse=True)
    return np.bincount(block, ratios) / np.bincount(block) if len(ratios) else ratios
