"""The function of a table that loses least on one timing matrix.

In: a timing matrix, what is legal, and the number of leaves if it is decided already. Out: `Function`. Whether it is
wanted at all, or another one does as well, is the business of `fitting`.
"""

from normtune.errors import NormtuneError
from normtune.heuristics import figures
from normtune.heuristics.figures import Figures, Loss
from normtune.heuristics.fitted import Function
from normtune.heuristics.header import Known
from normtune.heuristics.legality import Legality
from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.optimum import Optima
from normtune.heuristics.rules import liger
from normtune.heuristics.selection import MAX_LEAVES, WEIGHT, chosen_leaves, cross_validated, least_leaves, solve
from normtune.heuristics.tree import Tree, leaves


def fit_function(matrix: TimingMatrix, legality: Legality, given: int | None, known: Known | None) -> Function:
    """The function of a matrix.

    Args:
        matrix: of one operator variant and dtype.
        legality: for all that the function will serve.
        given: the most leaves; None chooses the number by cross-validation.
        known: what an earlier fit chose, which then is not chosen again.

    Raises:
        NormtuneError: there is no legal tree of so few leaves.
    """
    validated: tuple[int | None, ...] = ()
    stored = known.cross_validated if known else None
    most = known.leaves if known else given or MAX_LEAVES
    optima = solve(matrix, legality, most)
    if known is None and given is None:
        left_out = cross_validated(matrix, legality, MAX_LEAVES)
        validated = left_out.everywhere
        enough = chosen_leaves(left_out.inside, [least_measured(matrix, optima, n) for n in range(1, MAX_LEAVES + 1)])
        stored = validated[enough - 1] if enough else None
        most = _with_legality(matrix, optima, enough)
    tree = optima.tree(most)
    if tree is None:
        raise NormtuneError(
            f"no table of at most {most} leaves covers {matrix.key} {matrix.dtype}: too few configs were measured "
            "everywhere; allow more leaves, or sweep the default space"
        )
    count = leaves(tree)
    loss = figures.of_tree(matrix, tree)
    optimum = least_measured(matrix, optima, count)
    if loss is None or optimum is None:
        raise AssertionError("a fitted tree has a time on every problem")
    return Function(
        operator=matrix.operator,
        variant=matrix.variant,
        dtype=matrix.dtype,
        tree=tree,
        figures=figures_of(matrix, tree, count, loss, optimum, stored),
        dtypes=legality.dtypes,
        cross_validated=validated,
    )


def figures_of(
    matrix: TimingMatrix, tree: Tree, count: int, loss: Loss, optimum: int, validated: int | None = None
) -> Figures:
    """The figures of a tree, beside those of the rule that Liger-Kernel ships.

    Args:
        matrix: that it is judged on.
        tree: fitted on it, or on other data.
        count: leaves that the tree has, and that the optimum may have.
        loss: of the tree.
        optimum: least mean regret, millionths.
        validated: mean regret on problems left out, millionths.
    """
    return Figures(
        leaves=count,
        loss=loss,
        cross_validated=validated,
        optimum=optimum,
        rule=figures.of_rule(matrix, liger.choose),
        gain=figures.gain(matrix, tree, liger.choose),
    )


def least_measured(matrix: TimingMatrix, optima: Optima, count: int) -> int | None:
    """Mean regret of the best tree of at most so many leaves for the measured sizes alone, millionths."""
    least = optima.least_measured(count)
    return None if least is None else least // (WEIGHT * len(matrix.problems))


def _with_legality(matrix: TimingMatrix, optima: Optima, enough: int | None) -> int:
    """The number of leaves of a table that is legal at all sizes.

    Cross-validation compares trees that are legal at the measured sizes. What lies beyond them may take further leaves:
    as many as bring the table within the tolerance of the best tree of `enough` leaves for the measured sizes. A grid
    too small to be cross-validated (`enough` is None) takes the least leaves within the tolerance of the most.
    """
    target = None if enough is None else least_measured(matrix, optima, enough)
    trees = [optima.tree(count) for count in range(1, MAX_LEAVES + 1)]
    found = [None if tree is None else figures.of_tree(matrix, tree) for tree in trees]
    means = [None if loss is None else max(loss.mean, loss.mean if target is None else target) for loss in found]
    return least_leaves(means) or MAX_LEAVES
