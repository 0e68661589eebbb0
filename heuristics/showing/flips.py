"""Flips of the winner: shapes at which the best config of one regime of measuring loses in another.

In: the timing matrices of one operator variant and dtype in two regimes. Out: `Flips` from the one to the other.
`flips_report` prints them.

The test. At each shape measured in both, the best config of the one regime is compared in the other with the best
there, inside rounds, by one mean log-ratio per block (rounds of one block share their noise). The best there is chosen
on the even blocks for the odd ones and on the odd for the even; otherwise luck would count as speed. The config loses
if the mean is at least `LOSING` and above 0 by a one-sided t-test, all shapes together by the procedure of Benjamini
and Hochberg (1995): of the reported shapes, at most `LEVEL` are expected by chance.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.matrix import MISSING, Rounds, TimingMatrix
from normtune.heuristics.regret.paired import block_ratios, p_value
from normtune.kernels.config import Config
from normtune.results.statistics import halves

LEVEL = 0.05
LOSING = 9_950  # millionths: 1 %
_LEAST_BLOCKS = 3

Shape = tuple[int, int]


class Flip(NamedTuple):
    """A shape at which the best config of one regime loses in the other.

    Attributes:
        shape: rows and hidden.
        config: the best in the one regime.
        best: the best in the other.
        loss: of `config` in the other, mean of the blocks' log-ratios, millionths.
        reconcilable: whether there is a config within `LOSING` of the best in both regimes.
    """

    shape: Shape
    config: Config
    best: Config
    loss: int
    reconcilable: bool


class Flips(NamedTuple):
    """Results of the best configs of one regime in another.

    Attributes:
        compared: the shapes with a test, ordered.
        unknown: the shapes measured in both without a test: the config was not measured in the other, or in too few
            blocks.
        losing: the flips, largest loss first.
    """

    compared: tuple[Shape, ...]
    unknown: tuple[Shape, ...]
    losing: tuple[Flip, ...]


def flips(one: TimingMatrix, other: TimingMatrix) -> Flips:
    """Losses in `other` of the best configs of `one`, at the shapes that both have."""
    indices = {shape: index for index, shape in enumerate(other.problems)}
    columns = {config: index for index, config in enumerate(other.configs)}
    compared: list[Shape] = []
    unknown: list[Shape] = []
    tested: list[tuple[float, Flip]] = []
    for index, shape in enumerate(one.problems):
        if shape not in indices:
            continue
        other_index = indices[shape]
        config = one.configs[_best(one, index)]
        column = columns.get(config, -1)
        ratios = (
            _ratios(other, other_index, column) if column >= 0 and other.usable[other_index, column] else np.empty(0)
        )
        if len(ratios) < _LEAST_BLOCKS:
            unknown.append(shape)
            continue
        compared.append(shape)
        best = other.configs[_best(other, other_index)]
        flip = Flip(shape, config, best, round(float(ratios.mean())), _has_common(one, index, other, other_index))
        tested.append((p_value(ratios), flip))
    losing = [flip for flip in _discovered(tested) if flip.loss >= LOSING]
    return Flips(tuple(compared), tuple(unknown), tuple(sorted(losing, key=lambda flip: (-flip.loss, flip.shape))))


def _best(matrix: TimingMatrix, index: int) -> int:
    """The column of the config that is best at a shape."""
    regret = np.where(matrix.usable[index], matrix.regret[index], np.iinfo(np.int64).max)
    return int(regret.argmin())


def _ratios(matrix: TimingMatrix, index: int, column: int) -> NDArray[np.float64]:
    """The mean log-ratio of a config over the best in each block, the best chosen on the blocks of the other half."""
    if matrix.rounds is None:
        return np.empty(0)
    labels, logs = matrix.rounds.labels[index], matrix.rounds.logs[index]
    even = (labels >= 0) & halves(labels)
    odd = (labels >= 0) & ~even
    usable = matrix.usable[index]
    parts = []
    for chosen_on, scored_on in ((even, odd), (odd, even)):
        best = _fastest(logs[:, chosen_on], usable)
        if best is not None:
            half = Rounds(labels[None, scored_on], logs[None][:, :, scored_on])
            parts.append(block_ratios(half, 0, column, best))
    return np.concatenate(parts) if len(parts) == 2 else np.empty(0)


def _fastest(logs: NDArray[np.int32], usable: NDArray[np.bool_]) -> int | None:
    """The config of the least median over some rounds; None if no config was timed in them."""
    known = (logs != MISSING) & usable[:, None]
    timed = np.flatnonzero(known.any(axis=1))
    if not len(timed):
        return None
    medians = np.nanmedian(np.where(known[timed], logs[timed], np.nan), axis=1)
    return int(timed[int(medians.argmin())])


def _has_common(one: TimingMatrix, index: int, other: TimingMatrix, other_index: int) -> bool:
    """Whether a config is near the best of both regimes at a shape."""
    near = {one.configs[column] for column in np.flatnonzero(_near(one, index))}
    return any(other.configs[column] in near for column in np.flatnonzero(_near(other, other_index)))


def _near(matrix: TimingMatrix, index: int) -> NDArray[np.bool_]:
    regret = matrix.regret[index]
    return matrix.usable[index] & (regret <= regret[_best(matrix, index)] + LOSING)


def _discovered(tested: list[tuple[float, Flip]]) -> list[Flip]:
    """The tests that are rejected at `LEVEL` by Benjamini and Hochberg's procedure."""
    ordered = sorted(tested, key=lambda pair: (pair[0], pair[1].shape))
    ranks = [rank for rank, (p, _) in enumerate(ordered, 1) if p <= LEVEL * rank / len(ordered)]
    return [flip for _, flip in ordered[: max(ranks, default=0)]]
