"""Figures of a table: its losses, gains and gaps, as log-regret in log_ppm (millionths of a natural logarithm)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.fixed_log import fraction, log_ppm
from normtune.heuristics.regret.matrix import LEAST_ASSUMED, TimingMatrix
from normtune.kernels.config import Config
from normtune.kernels.tablefile.tree import Tree, choose

# Nearest problems that bound the regret of a config without a time.
_NEIGHBOURS = 4


class Cost(NamedTuple):
    """Cost of a batch-invariant function relative to the usual one, log_ppm.

    Attributes:
        mean: weighted mean over the problems; as a slowdown it is the geometric mean.
        worst: largest cost on one problem.
        problems: number of problems on which both have a time.
        bounded: number of other problems, which were fitted by a bound in place of the config's time.
    """

    mean: int
    worst: int
    problems: int
    bounded: int


class Fractions(NamedTuple):
    """A loss as fractions of the best config's time, 0.0123 for 1.23 %; see `Loss`."""

    mean: float
    plain: float
    ninetieth: float
    worst: float


class Loss(NamedTuple):
    """Log-regret over problems, log_ppm.

    Attributes:
        mean: the weighted mean, rounded down; as a slowdown it is the weighted geometric mean.
        plain: the unweighted mean, rounded down.
        ninetieth: the 90 % quantile.
        worst: the largest.
        problems: number of problems scored: those with a time.
        luck: bound on the selection bias of the mean, rounded up: see `TimingMatrix.luck`.
        untimed: number of other problems, at which the config has no time.
        bound: the plain mean with the largest estimate at each of these: see `_estimate`; None without one.
    """

    mean: int
    plain: int
    ninetieth: int
    worst: int
    problems: int
    luck: int = 0
    untimed: int = 0
    bound: int | None = None

    @property
    def fractions(self) -> Fractions:
        """The losses as fractions."""
        return Fractions(*map(fraction, self[:4]))


class Slower(NamedTuple):
    """Problems on which a tree is slower than the baseline.

    Attributes:
        problems: their number.
        most: mean log-ratio on the worst of them, log_ppm.
    """

    problems: int
    most: int


class Figures(NamedTuple):
    """The printed figures of one tree.

    Attributes:
        leaves: number of the tree's leaves.
        asked: number of leaves of the optimum that the tree matches within the tie, often with fewer leaves.
        configs: number of distinct configs.
        loss: of the tree on the problems it was fitted to.
        gap: optimality gap to the best tree with the same number of leaves under the same conditions, log_ppm.
        limits: the conditions on that tree, as the end of a sentence (` of these configs`); empty without any.
        few: lower bound for the best set of as many configs, and the regret of the chosen set, log_ppm; None if the
            number of configs was free.
        cross_validated: mean regret between sizes, on problems left out of the fit; None if there are too few sizes.
        plain_validated: the same with equal weights.
        worst_validated: the largest regret between sizes, where the config has a time.
        unmeasured: number of leaves with the operator's default config, which has no time.
        joined: whether bins of near sizes were merged, because there were too many to find an optimum.
        slower: the problems that regress against the baseline; None without any.
        uncompared: number of problems whose times do not compare the tree's config with the baseline's.
    """

    leaves: int
    asked: int
    configs: int
    loss: Loss
    gap: int
    limits: str = ""
    few: tuple[int, int] | None = None
    cross_validated: int | None = None
    plain_validated: int | None = None
    worst_validated: int | None = None
    unmeasured: int = 0
    joined: bool = False
    slower: Slower | None = None
    uncompared: int = 0


def summarise(
    regrets: Sequence[int | None],
    weights: Sequence[int] | NDArray[np.int64] | None = None,
    luck: NDArray[np.int64] | None = None,
) -> Loss | None:
    """The loss over the problems with a regret, log_ppm; None if none has one, or their weights are all 0.

    `weights` are equal by default. `luck` bounds the selection bias of each regret, 0 by default.
    """
    each = [1] * len(regrets) if weights is None else [int(weight) for weight in weights]
    pairs = sorted((regret, weight) for regret, weight in zip(regrets, each, strict=True) if regret is not None)
    total = sum(weight for _, weight in pairs)
    if not total:
        return None
    count = len(pairs)
    biases = [0] * len(each) if luck is None else luck.tolist()
    bias = sum(low * weight for regret, weight, low in zip(regrets, each, biases, strict=True) if regret is not None)
    return Loss(
        mean=sum(regret * weight for regret, weight in pairs) // total,
        plain=sum(regret for regret, _ in pairs) // count,
        ninetieth=pairs[-(-9 * count // 10) - 1][0],
        worst=pairs[-1][0],
        problems=count,
        luck=-(-bias // total),
    )


def of_tree(matrix: TimingMatrix, tree: Tree) -> Loss | None:
    """The loss of a tree on a matrix; None if its configs have no time."""
    return of_configs(matrix, [choose(tree, shape, matrix.axes) for shape in matrix.problems])


def of_configs(
    matrix: TimingMatrix, configs: Sequence[Config | None], regrets: Sequence[int | None] | None = None
) -> Loss | None:
    """The loss of a config for each problem of a matrix, the one definition of all outputs; None without a time.

    Args:
        matrix: the times.
        configs: the choice at each problem; None without an answer, which does not count as untimed.
        regrets: their regrets, log_ppm, if some are those of configs with the same launch.
    """
    if regrets is None:
        regrets = [None if config is None else matrix.loss(index, config) for index, config in enumerate(configs)]
    loss = summarise(regrets, matrix.weight, matrix.luck)
    pairs = enumerate(zip(configs, regrets, strict=True))
    untimed = [(index, config) for index, (config, regret) in pairs if config is not None and regret is None]
    if loss is None or not untimed:
        return loss
    total = sum(_estimate(matrix, index, config) for index, config in untimed)
    total += sum(regret for regret in regrets if regret is not None)
    return loss._replace(untimed=len(untimed), bound=total // (loss.problems + len(untimed)))


def _estimate(matrix: TimingMatrix, problem: int, config: Config) -> int:
    """The largest regret of a config at the nearest problems with its time; without any, that of the slowest config."""
    timed = [index for index in range(len(matrix.problems)) if matrix.loss(index, config) is not None]
    if not timed:
        return max(int(matrix.regret[problem].max()), LEAST_ASSUMED)
    sizes = log_ppm(np.array(matrix.problems))
    order = np.abs(sizes[timed] - sizes[problem]).sum(axis=1).argsort(kind="stable")[:_NEIGHBOURS]
    return max(matrix.loss(timed[place], config) or 0 for place in order.tolist())
