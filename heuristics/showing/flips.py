"""Flips: shapes at which the best config of one cache mode loses in another.

The test. At each shape measured in both modes, the best config of the first mode is compared in the second with the
best config there, inside rounds, by one mean log-ratio per block (rounds of one block share their noise). The best
config there is chosen on the even blocks for the odd ones and vice versa, to avoid selection bias. The config loses if
the mean is at least `LOSING` and above 0 by a one-sided t-test, all shapes together by the procedure of Benjamini and
Hochberg (1995): of the reported shapes, at most `LEVEL` are expected by chance.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.figures import Loss, summarise
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.build import matrices_of
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix
from normtune.heuristics.regret.paired import block_ratios, p_value
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.results.statistics import halves

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.records import Device

LEVEL = 0.05
LOSING = 9_950  # log_ppm: 1 %
_LEAST_BLOCKS = 3
# Leaves of the compared tables: about as many as in the shipped ones, without the time of a cross-validation.
LEAVES = 16


class Flip(NamedTuple):
    """A shape at which the best config of one cache mode loses in the other.

    Attributes:
        shape: rows and hidden.
        config: the best in the first mode.
        best: the best in the second.
        loss: of `config` in the second, mean of the blocks' log-ratios, log_ppm.
        reconcilable: whether some config is within `LOSING` of the best in both modes.
    """

    shape: Shape
    config: Config
    best: Config
    loss: int
    reconcilable: bool


class Flips(NamedTuple):
    """Results of the best configs of one cache mode in another.

    Attributes:
        compared: the shapes with a test, ordered.
        unknown: the shapes measured in both without a test, as the config has too few blocks in the second, or none.
        losing: the flips, largest loss first.
    """

    compared: tuple[Shape, ...]
    unknown: tuple[Shape, ...]
    losing: tuple[Flip, ...]


class Direction(NamedTuple):
    """Results of one cache mode's best configs and table in another cache mode.

    Attributes:
        one, other: the cache modes.
        flips: of the best configs.
        table: loss in `other` of the table fitted in `one`, on the common shapes; None without a function or times.
        own: loss in `other` of the table fitted in `other`.
    """

    one: str
    other: str
    flips: Flips
    table: Loss | None
    own: Loss | None


class BothWays(NamedTuple):
    """The flips of one operator variant and dtype.

    Attributes:
        key: of both measurements.
        directions: from the first cache mode to the second, and back.
    """

    key: Key
    directions: tuple[Direction, Direction]


def both_ways(one: "Evidence", other: "Evidence", device: "Device") -> list[BothWays]:
    """The flips of all keys measured in both cache modes on one device, each with the newest kernels."""
    names = one.runs[0].regime, other.runs[0].regime
    matrices = [{matrix.key: matrix for matrix in matrices_of(part, device)[0]} for part in (one, other)]
    both = [key for key in matrices[0] if key in matrices[1]]
    tables = [_trees(part) for part in (one, other)]
    result = []
    for key in both:
        pair = matrices[0][key], matrices[1][key]
        common = set(pair[0].problems) & set(pair[1].problems)
        if not common:
            continue
        there, back = (
            Direction(
                names[index],
                names[1 - index],
                flips(pair[index], pair[1 - index]),
                _loss(pair[1 - index], tables[index].get(key), common),
                _loss(pair[1 - index], tables[1 - index].get(key), common),
            )
            for index in (0, 1)
        )
        result.append(BothWays(key, (there, back)))
    return result


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
    regret = np.where(matrix.usable[index], matrix.regret[index], np.iinfo(np.int64).max)
    return int(regret.argmin())


def _ratios(matrix: TimingMatrix, index: int, column: int) -> NDArray[np.float64]:
    """The mean log-ratio of a config and the best in each block; the best is chosen on the other half of blocks."""
    if matrix.rounds is None:
        return np.empty(0)
    labels, logs = matrix.rounds.labels[index], matrix.rounds.logs[matrix.rounds.places[index]]
    even = (labels >= 0) & halves(labels)
    odd = (labels >= 0) & ~even
    usable = matrix.usable[index]
    parts = []
    for chosen_on, scored_on in ((even, odd), (odd, even)):
        best = _fastest(logs[:, chosen_on], usable)
        if best is not None:
            parts.append(block_ratios(matrix.rounds, index, column, best, scored_on))
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
    near = {one.configs[column] for column in np.flatnonzero(_near(one, index))}
    return any(other.configs[column] in near for column in np.flatnonzero(_near(other, other_index)))


def _near(matrix: TimingMatrix, index: int) -> NDArray[np.bool_]:
    regret = matrix.regret[index]
    return matrix.usable[index] & (regret <= regret[_best(matrix, index)] + LOSING)


def _discovered(tested: list[tuple[float, Flip]]) -> list[Flip]:
    """The flips whose tests are rejected at `LEVEL` by Benjamini and Hochberg's procedure."""
    ordered = sorted(tested, key=lambda pair: (pair[0], pair[1].shape))
    ranks = [rank for rank, (p, _) in enumerate(ordered, 1) if p <= LEVEL * rank / len(ordered)]
    return [flip for _, flip in ordered[: max(ranks, default=0)]]


def _trees(evidence: "Evidence") -> dict[Key, Tree]:
    """A table's tree for each measured key; empty if nothing can be fitted."""
    try:
        fitted = fit(evidence, FitOptions(leaves=LEAVES))
    except NormtuneError:  # for example with a single problem
        return {}
    trees = {function.key: function.tree for function in fitted.functions}
    return trees | {function.key: trees[function.donor] for function in fitted.shared}


def _loss(matrix: TimingMatrix, tree: Tree | None, shapes: set[Shape]) -> Loss | None:
    """Loss of a tree on some shapes of a matrix, with equal weights."""
    if tree is None:
        return None
    indices = [index for index, shape in enumerate(matrix.problems) if shape in shapes]
    return summarise([matrix.loss(index, choose(tree, matrix.problems[index], matrix.axes)) for index in indices])
