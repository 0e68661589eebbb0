"""What a table loses, in numbers.

In: a timing matrix and a tree, or another library's rule. Out: `Figures` and `Loss`, log-regret in millionths.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import losses
from normtune.heuristics.tablefile.tree import Tree
from normtune.kernels.config import Config

# (operator, rows, hidden) to a config, or None where it has none.
Rule = Callable[[str, int, int], Config | None]
Launches = Callable[[str, int, int], Sequence[Config]]


class Fractions(NamedTuple):
    """A loss as fractions of the best config's time, 0.0123 for 1.23 %; see `Loss`."""

    mean: float
    plain: float
    ninetieth: float
    worst: float


class Loss(NamedTuple):
    """Log-regret over problems, millionths.

    Attributes:
        mean: over the problems by their weights, rounded down; as a slowdown it is the weighted geometric mean.
        plain: over the problems as if all weighed the same, rounded down.
        ninetieth: the least that at least nine tenths of the problems do not exceed.
        worst: the largest.
        problems: how many were scored.
        luck: by how much the mean may be too low, rounded up: see `TimingMatrix.luck`.
    """

    mean: int
    plain: int
    ninetieth: int
    worst: int
    problems: int
    luck: int = 0

    @property
    def fractions(self) -> Fractions:
        """The losses as fractions."""
        return Fractions(*map(fraction, self[:4]))


class Gain(NamedTuple):
    """How much less a table loses than a rule, log-regret in millionths.

    Attributes:
        total: summed over the problems on which both have a time; below 0 where the rule is better.
        most: on the problem where it is most.
        problems: how many there are.
        thresholds: what of `total` the rule would gain by switching without fault between its own launches; the rest
            is the gain of launches that it does not have.
    """

    total: int
    most: int
    problems: int
    thresholds: int


class Figures(NamedTuple):
    """What is printed of one table.

    Attributes:
        leaves: of the tree.
        asked: leaves of the optimum that the tree keeps to within the tie, with fewer where that is enough.
        configs: how many distinct ones it has.
        loss: of the tree on the problems it was fitted on.
        gap: no tree of as many leaves under the same conditions loses less by more than this, millionths.
        limits: the conditions on that tree, in words that end a sentence: ` of these configs`; else empty.
        few: what the best choice of as many configs loses at least, and what this one does, millionths; None where
            their number was free.
        kept: leaves of the fitted tree that gave way to the incumbent's answers.
        cross_validated: mean regret between sizes, on problems left out of the fit; None where there are too few sizes.
        plain_validated: the same as if all problems weighed the same.
        extrapolated: mean regret beyond the sizes that were fitted, likewise.
        unmeasured: leaves with the operator's default config, for which there is no time.
        joined: whether there were more sizes than an optimum is sought of, so that near ones were not told apart.
        slower: on how many problems it is slower than what is in use, and by how much at most, millionths; None where
            that could be kept to.
        rule: what Liger's shipped rule loses on the same kernels; None where it has no config that was measured.
        gain: of the tree over that rule; None likewise.
    """

    leaves: int
    asked: int
    configs: int
    loss: Loss
    gap: int
    limits: str = ""
    few: tuple[int, int] | None = None
    kept: int = 0
    cross_validated: int | None = None
    plain_validated: int | None = None
    extrapolated: int | None = None
    unmeasured: int = 0
    joined: bool = False
    slower: tuple[int, int] | None = None
    rule: Loss | None = None
    gain: Gain | None = None


def summarise(
    regrets: Sequence[int | None],
    weights: Sequence[int] | NDArray[np.int64] | None = None,
    luck: NDArray[np.int64] | None = None,
) -> Loss | None:
    """The loss over the problems that have a regret; None where none has, or none of those weighs anything.

    Args:
        regrets: of each problem, millionths.
        weights: of each problem; None for equal ones.
        luck: by how much the regret of each may be too low; None where it is not.
    """
    each = [1] * len(regrets) if weights is None else [int(weight) for weight in weights]
    pairs = sorted((regret, weight) for regret, weight in zip(regrets, each, strict=True) if regret is not None)
    total = sum(weight for _, weight in pairs)
    if not total:
        return None
    count = len(pairs)
    lucky = [0] * len(each) if luck is None else luck.tolist()
    too_low = sum(one * weight for regret, weight, one in zip(regrets, each, lucky, strict=True) if regret is not None)
    return Loss(
        mean=sum(regret * weight for regret, weight in pairs) // total,
        plain=sum(regret for regret, _ in pairs) // count,
        ninetieth=pairs[-(-9 * count // 10) - 1][0],
        worst=pairs[-1][0],
        problems=count,
        luck=-(-too_low // total),
    )


def of_tree(matrix: TimingMatrix, tree: Tree) -> Loss | None:
    """The loss of a tree over the problems of a matrix on which its choice has a time."""
    return summarise(losses(matrix, tree), matrix.weight, matrix.luck)


def of_rule(matrix: TimingMatrix, rule: Rule) -> Loss | None:
    """The loss of a rule over the problems on which its choice has a time."""
    return summarise(_losses_of(matrix, rule), matrix.weight, matrix.luck)


def gain(matrix: TimingMatrix, regrets: Sequence[int | None], rule: Rule, launches: Launches) -> Gain | None:
    """How much less somebody loses than a rule; None where no problem has a time of both.

    Args:
        matrix: of the problems.
        regrets: of that somebody's choices, millionths; None where one has no time.
        rule: the rule.
        launches: those between which the rule switches.
    """
    found, thresholds = [], 0
    for index, (by_rule, own) in enumerate(zip(_losses_of(matrix, rule), regrets, strict=True)):
        if by_rule is None or own is None:
            continue
        found.append(by_rule - own)
        switched = (matrix.loss(index, config) for config in launches(matrix.operator, *matrix.problems[index]))
        thresholds += by_rule - min(loss for loss in (by_rule, *switched) if loss is not None)
    return Gain(sum(found), max(found), len(found), thresholds) if found else None


def _losses_of(matrix: TimingMatrix, rule: Rule) -> list[int | None]:
    chosen = (rule(matrix.operator, *shape) for shape in matrix.problems)
    return [None if config is None else matrix.loss(index, config) for index, config in enumerate(chosen)]
