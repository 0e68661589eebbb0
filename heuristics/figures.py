"""What a table loses, in numbers.

In: a timing matrix and a tree, or another library's rule. Out: `Figures` and `Loss`, log-regret in millionths.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.selection import losses
from normtune.heuristics.tree import Tree
from normtune.kernels.config import Config

# (operator, rows, hidden) to a config, or None where it has none.
Rule = Callable[[str, int, int], Config | None]


class Loss(NamedTuple):
    """Log-regret over problems, millionths.

    Attributes:
        mean: over the problems, rounded down; as a slowdown it is the geometric mean.
        ninetieth: the least that at least nine tenths of the problems do not exceed.
        worst: the largest.
        problems: how many were scored.
    """

    mean: int
    ninetieth: int
    worst: int
    problems: int


class Gain(NamedTuple):
    """How much less a table loses than a rule, log-regret in millionths.

    Attributes:
        total: summed over the problems on which both have a time; below 0 where the rule is better.
        most: on the problem where it is most.
        problems: how many there are.
    """

    total: int
    most: int
    problems: int


class Figures(NamedTuple):
    """What is printed of one table.

    Attributes:
        leaves: of the tree.
        loss: of the tree on the problems it was fitted on.
        cross_validated: mean regret on problems left out of the fit; None where the number of leaves was given.
        optimum: mean regret of the best tree of at most as many leaves for the measured sizes alone, which so need not
            be legal beyond them.
        rule: what Liger's shipped rule loses on the same kernels; None where it has no config that was measured.
        gain: of the tree over that rule; None likewise.
    """

    leaves: int
    loss: Loss
    cross_validated: int | None
    optimum: int
    rule: Loss | None
    gain: Gain | None


def summarise(regrets: Sequence[int | None]) -> Loss | None:
    """The loss over the problems that have a regret; None where none has."""
    known = sorted(regret for regret in regrets if regret is not None)
    if not known:
        return None
    return Loss(sum(known) // len(known), known[-(-9 * len(known) // 10) - 1], known[-1], len(known))


def of_tree(matrix: TimingMatrix, tree: Tree) -> Loss | None:
    """The loss of a tree over the problems of a matrix on which its choice has a time."""
    return summarise(losses(matrix, tree))


def of_rule(matrix: TimingMatrix, rule: Rule) -> Loss | None:
    """The loss of a rule over the problems on which its choice has a time."""
    return summarise(_losses_of(matrix, rule))


def gain(matrix: TimingMatrix, tree: Tree, rule: Rule) -> Gain | None:
    """How much less a tree loses than a rule; None where no problem has a time of both."""
    pairs = zip(_losses_of(matrix, rule), losses(matrix, tree), strict=True)
    found = [by_rule - by_tree for by_rule, by_tree in pairs if by_rule is not None and by_tree is not None]
    return Gain(sum(found), max(found), len(found)) if found else None


def _losses_of(matrix: TimingMatrix, rule: Rule) -> list[int | None]:
    chosen = (rule(matrix.operator, *shape) for shape in matrix.problems)
    return [None if config is None else matrix.loss(index, config) for index, config in enumerate(chosen)]
