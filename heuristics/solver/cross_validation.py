"""The loss of a table between the measured sizes, by cross-validation.

Each shape is left out once: a tree is fitted without it and scored there. A table answers between measured sizes, so of
`FOLDS` folds none leaves out neighbours: on a grid those in a fold lie like a knight's moves. The corners stay in each
fit. (What a fit loses beyond its sizes is no question of a table that is measured over all sizes that it serves.)

A fold's tree must be legal at all measured sizes. It knows which configs were measured on the held-out problems, but
not their times. Choosing an unmeasured config costs `UNMEASURED` per problem, so a tree does so only if nothing else is
legal; it is then scored as the slowest config measured there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, few_configs
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.results.parallel.maps import in_order

FOLDS = 6
# Names of the figures of a cross-validation, see `fitting.figures`; a refit takes them from the header of the table.
BETWEEN = ("cross_validated", "plain_validated", "worst_validated")
# Seconds for a fold, for each problem, config and leaf; it takes 90 MB on the recording grid.
_SECONDS = 2e-7


def cross_validated(
    matrix: TimingMatrix, legality: Legality, leaves: int, max_configs: int | None = None
) -> dict[str, Any]:
    """The figures of trees of at most so many leaves and configs; see `validated`."""
    bins(matrix, legality)  # caches what is legal, before each fold has a process

    def without(held_out: NDArray[np.bool_]) -> Tree | None:
        fitted = matrix
        if max_configs is not None:
            few = few_configs(matrix, legality, max_configs, held_out)
            if few is None:
                return None
            fitted = matrix.of_configs(few.configs)
        return Optima(*bins(fitted, legality, held_out).rounded(), leaves).tree(leaves)

    return validated(matrix, without, matrix.axes, leaves)


def validated(
    matrix: TimingMatrix, without: Callable[[NDArray[np.bool_]], Tree | None], axes: Sequence[str], leaves: int
) -> dict[str, Any]:
    """Regret of trees on problems that were left out of their fit.

    Args:
        matrix: for scoring.
        without: from the held-out problems, bool (problems,), to the tree; None if there is none.
        axes: names of the axes whose sizes decide the fold of a problem; equal ones are in one fold.
        leaves: about as many has a tree.

    Returns:
        The figures named in `BETWEEN`, log_ppm: the weighted mean regret, that of equal weights, and the largest of a
        problem at which the tree's config has a time. None if there are too few sizes, or a fold has no tree.
    """
    folds = left_out(np.array(matrix.problems)[:, [matrix.axes.index(axis) for axis in axes]])
    seconds = _SECONDS * matrix.regret.size * leaves * len(folds)
    lost = [*in_order(lambda fold: _lost(matrix, fold, without(fold)), folds, seconds)]
    parts = [part for part in lost if part is not None]
    if not parts or len(parts) < len(lost):
        return dict.fromkeys(BETWEEN)
    regret, is_timed = np.concatenate(parts, axis=1)
    weights = np.concatenate([matrix.weight[fold] for fold in folds])
    mean, plain = int(regret @ weights) // int(weights.sum()), int(regret.sum()) // len(regret)
    worst = int(regret[is_timed > 0].max()) if is_timed.any() else None
    return dict(zip(BETWEEN, (mean, plain, worst), strict=True))


def left_out(sizes: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """The problems of each fold, bool (problems,), of `sizes`, (problems, axes).

    With n-th sizes of the first axis and m-th ones of the second, the fold is (n + 2 m) modulo `FOLDS`. Problems whose
    sizes are all the least or the largest ones are in none.
    """
    ranks = np.array([np.unique(column, return_inverse=True)[1] for column in sizes.T])
    is_outer = ((ranks == 0) | (ranks == ranks.max(axis=1, keepdims=True))).all(axis=0)
    fold = np.where(is_outer, -1, np.arange(1, len(ranks) + 1) @ ranks % FOLDS)
    return [fold == number for number in range(FOLDS) if (fold == number).any()]


def _lost(matrix: TimingMatrix, fold: NDArray[np.bool_], tree: Tree | None) -> NDArray[np.int64] | None:
    """Int64 (2, problems of the fold): the regret of a tree, and whether its config has a time; None without a tree."""
    if tree is None:
        return None
    indices = np.flatnonzero(fold).tolist()
    losses = [matrix.loss(index, choose(tree, matrix.problems[index], matrix.axes)) for index in indices]
    filled = [
        int(matrix.regret[index].max()) if loss is None else loss for index, loss in zip(indices, losses, strict=True)
    ]
    return np.array([filled, [loss is not None for loss in losses]], np.int64)
