"""Where the winner flips: shapes at which the best config of one regime of measuring is not good in another.

In: the timing matrices of one operator variant and dtype in two regimes. Out: `Flips` from the one to the other. How it
reads is in `flips_report`.

The test. At each shape measured in both, the config that is best in the one regime is compared in the other with the
best there, inside rounds, one mean log-ratio a block (rounds of one block share their luck). The best there is chosen
on the even blocks for the odd ones and on the odd for the even, or else luck would count as speed. It loses where the
mean is at least `LOSING` and a one-sided t-test says that it is above 0, all shapes together by the procedure of
Benjamini and Hochberg (1995): of the shapes that are told, at most `LEVEL` are expected to be so by chance.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.guard import block_ratios, p_value
from normtune.heuristics.regret.matrix import MISSING, Rounds, TimingMatrix
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
        loss: what `config` loses in the other, mean of the blocks' log-ratios, millionths.
        reconcilable: whether there is a config within `LOSING` of the best in both regimes.
    """

    shape: Shape
    config: Config
    best: Config
    loss: int
    reconcilable: bool


class Flips(NamedTuple):
    """What the best configs of one regime do in another.

    Attributes:
        compared: the shapes at which it can be told, ordered.
        unknown: the shapes measured in both at which the config was not measured in the other, or in too few blocks.
        losing: where it loses, the most first.
    """

    compared: tuple[Shape, ...]
    unknown: tuple[Shape, ...]
    losing: tuple[Flip, ...]


def flips(one: TimingMatrix, other: TimingMatrix) -> Flips:
    """What the best configs of `one` lose in `other`, at the shapes that both have."""
    places = {shape: place for place, shape in enumerate(other.problems)}
    columns = {config: place for place, config in enumerate(other.configs)}
    compared: list[Shape] = []
    unknown: list[Shape] = []
    tested: list[tuple[float, Flip]] = []
    for place, shape in enumerate(one.problems):
        if shape not in places:
            continue
        there = places[shape]
        config = one.configs[_best(one, place)]
        column = columns.get(config, -1)
        ratios = _ratios(other, there, column) if column >= 0 and other.usable[there, column] else np.empty(0)
        if len(ratios) < _LEAST_BLOCKS:
            unknown.append(shape)
            continue
        compared.append(shape)
        best = other.configs[_best(other, there)]
        flip = Flip(shape, config, best, round(float(ratios.mean())), _has_common(one, place, other, there))
        tested.append((p_value(ratios), flip))
    found = [flip for flip in _discovered(tested) if flip.loss >= LOSING]
    return Flips(tuple(compared), tuple(unknown), tuple(sorted(found, key=lambda flip: (-flip.loss, flip.shape))))


def _best(matrix: TimingMatrix, place: int) -> int:
    """The column of the config that is best at a shape."""
    regret = np.where(matrix.usable[place], matrix.regret[place], np.iinfo(np.int64).max)
    return int(regret.argmin())


def _ratios(matrix: TimingMatrix, place: int, column: int) -> NDArray[np.float64]:
    """The mean log-ratio of a config over the best in each block, the best chosen on the blocks of the other half."""
    if matrix.rounds is None:
        return np.empty(0)
    labels, logs = matrix.rounds.labels[place], matrix.rounds.logs[place]
    even = (labels >= 0) & halves(labels)
    odd = (labels >= 0) & ~even
    usable = matrix.usable[place]
    parts = []
    for chosen_on, scored_on in ((even, odd), (odd, even)):
        best = _fastest(logs[:, chosen_on], usable)
        if best is not None:
            half = Rounds(labels[None, scored_on], logs[None][:, :, scored_on])
            parts.append(block_ratios(half, 0, column, best))
    return np.concatenate(parts) if len(parts) == 2 else np.empty(0)


def _fastest(logs: NDArray[np.int32], usable: NDArray[np.bool_]) -> int | None:
    """The config of the least median over some rounds; None where no config was timed in them."""
    known = (logs != MISSING) & usable[:, None]
    timed = np.flatnonzero(known.any(axis=1))
    if not len(timed):
        return None
    medians = np.nanmedian(np.where(known[timed], logs[timed], np.nan), axis=1)
    return int(timed[int(medians.argmin())])


def _has_common(one: TimingMatrix, place: int, other: TimingMatrix, there: int) -> bool:
    """Whether a config is near the best of both regimes at a shape."""
    near = {one.configs[column] for column in np.flatnonzero(_near(one, place))}
    return any(other.configs[column] in near for column in np.flatnonzero(_near(other, there)))


def _near(matrix: TimingMatrix, place: int) -> NDArray[np.bool_]:
    regret = matrix.regret[place]
    return matrix.usable[place] & (regret <= regret[_best(matrix, place)] + LOSING)


def _discovered(tested: list[tuple[float, Flip]]) -> list[Flip]:
    """The tests that are rejected at `LEVEL` by Benjamini and Hochberg's procedure."""
    ordered = sorted(tested, key=lambda pair: (pair[0], pair[1].shape))
    ranks = [rank for rank, (p, _) in enumerate(ordered, 1) if p <= LEVEL * rank / len(ordered)]
    return [flip for _, flip in ordered[: max(ranks, default=0)]]
