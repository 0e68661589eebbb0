"""Timing matrices of resampled blocks of rounds, by the estimator of `effects` and the regret of `matrix`.

Blocks are resampled, not rounds, because the rounds of a block share their noise. All configs of a problem get the same
blocks, so that rounds stay paired. The chosen blocks at even positions are one half, those at odd positions the other.
A config without a round in one half gets the level of the other half in both.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.effects import block_of
from normtune.heuristics.regret.matrix import MISSING, Rounds, TimingMatrix
from normtune.results.records import ROUNDS_PER_BLOCK

_NONE = np.iinfo(np.int64).max


class Blocks:
    """The blocks of a timing matrix, for resampling."""

    def __init__(self, matrix: TimingMatrix) -> None:
        """Find the blocks of each problem.

        Raises:
            ValueError: the matrix has no rounds.
        """
        if matrix.rounds is None:
            raise ValueError("a matrix without rounds has no blocks")
        self.matrix = matrix
        self._rounds = matrix.rounds
        labels = self._rounds.labels
        blocks = [np.unique(block_of(of_problem[of_problem >= 0])) for of_problem in labels]
        self.counts = np.array([len(of_problem) for of_problem in blocks])
        # (problems, blocks, rounds of a block): the index of the round in `Rounds`, -1 if there is none.
        self._places = np.full((len(blocks), int(self.counts.max()), ROUNDS_PER_BLOCK), -1, np.int64)
        for problem, numbers in enumerate(blocks):
            rounds = np.flatnonzero(labels[problem] >= 0)
            label = labels[problem, rounds]
            self._places[problem, np.searchsorted(numbers, block_of(label)), label % ROUNDS_PER_BLOCK] = rounds
        # The problem of each place in the logs; of place 0, which has no times, any.
        self._problems = np.zeros(len(self._rounds.logs), np.int64)
        self._problems[self._rounds.places] = np.arange(len(labels))[:, None]

    def of_half(self, half: int) -> TimingMatrix:
        """The matrix of every second block, from the first (0) or the second (1) on; see `taken`."""
        numbers = np.arange(half, max(2, int(self.counts.max())), 2)
        return self.taken(np.where(numbers < self.counts[:, None], numbers, -1))

    def drawn(self, draw: np.random.Generator) -> TimingMatrix:
        """The matrix of as many blocks as each problem has, drawn with replacement (Efron 1979).

        A config without a drawn round keeps its regret. Such configs are seldom near the best, which were timed in all
        blocks.
        """
        most = int(self.counts.max())
        numbers = draw.integers(0, self.counts[:, None], (len(self.counts), most))
        result = self.taken(np.where(np.arange(most) < self.counts[:, None], numbers, -1))
        kept = self.matrix.usable & ~result.usable
        return replace(result, regret=np.where(kept, self.matrix.regret, result.regret), usable=self.matrix.usable)

    def taken(self, blocks: NDArray[np.int64]) -> TimingMatrix:
        """The matrix of some blocks, in this order; a config without a round in them is not usable.

        Args:
            blocks: (problems, N), indices in the ascending order of the problem's blocks, -1 for none.
        """
        count, most = blocks.shape
        indices = np.take_along_axis(self._places, np.maximum(blocks, 0)[:, :, None], axis=1)
        indices = np.where(blocks[:, :, None] < 0, -1, indices)
        labels = np.where(indices < 0, -1, np.arange(most * ROUNDS_PER_BLOCK).reshape(most, -1)).astype(np.int32)
        rounds = indices.reshape(count, -1)[self._problems]
        own = np.take_along_axis(self._rounds.logs, np.maximum(rounds, 0), axis=1)
        own = np.where(rounds < 0, MISSING, own)
        places = np.where(self.matrix.usable, self._rounds.places, 0)

        halves = own.reshape(len(own), most, ROUNDS_PER_BLOCK)
        even, odd = (_medians(halves[:, first::2].reshape(len(own), -1)) for first in (0, 1))
        even, odd = np.where(even == _NONE, odd, even), np.where(odd == _NONE, even, odd)
        # A config that is not usable has place 0, whose level is none.
        even, odd = even[places], odd[places]
        usable = even != _NONE
        regret, untimed = _regret(even, odd, usable), self.matrix.untimed
        return replace(
            self.matrix,
            regret=regret if untimed is None else np.where(untimed, self.matrix.regret, regret),
            usable=usable,
            rounds=Rounds(labels.reshape(count, -1), places, own),
        )


def _medians(logs: NDArray[np.int32]) -> NDArray[np.int64]:
    """Int64 (N,): median, as in `effects.median`, of the known values in each row; `_NONE` without any."""
    result, is_timed = np.full(len(logs), _NONE), (logs != MISSING).any(axis=1)
    timed = logs[is_timed]
    result[is_timed] = np.floor(np.nanmedian(np.where(timed == MISSING, np.nan, timed), axis=1)).astype(np.int64)
    return result


def _regret(even: NDArray[np.int64], odd: NDArray[np.int64], usable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Regret of levels (problems, configs): the best of one half is scored on the other, and vice versa."""
    rows = np.arange(len(usable))
    by_even, by_odd = even.argmin(axis=1), odd.argmin(axis=1)
    known = usable.any(axis=1)
    first, second = (np.where(known, level, 0)[:, None] for level in (odd[rows, by_even], even[rows, by_odd]))
    even, odd = np.where(usable, even, 0), np.where(usable, odd, 0)
    return np.where(usable, (odd - first + even - second) // 2, 0)
