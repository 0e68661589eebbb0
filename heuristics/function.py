"""The function of a table that loses least on one timing matrix.

In: a timing matrix, what is legal, what the user asked for, and what is decided already. Out: `Function`. Whether it is
wanted at all, or another one does as well, is the business of `serving`.

The optimum comes first. Of the trees that lose at most the tie more, the plainest is taken (`tidy`); where it is slower
than what is in use, it gives way (`guard`). What that costs is measured against the optimum, and printed.
"""

from typing import NamedTuple

import numpy as np

from normtune.errors import NormtuneError
from normtune.heuristics import figures
from normtune.heuristics.figures import Figures
from normtune.heuristics.fitted import Function
from normtune.heuristics.guard import guarded
from normtune.heuristics.header import Known
from normtune.heuristics.incumbent import Incumbent
from normtune.heuristics.legality import Legality
from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.micrologs import ratio
from normtune.heuristics.optimum import Optima, Sums
from normtune.heuristics.options import MOST_LEAVES, FitOptions
from normtune.heuristics.rules import liger
from normtune.heuristics.selection import MAX_LEAVES, selected
from normtune.heuristics.solving import Bins, Few, Solver, bins, few_configs, least_worst
from normtune.heuristics.tidy import Old, cost_of, tidied
from normtune.heuristics.tree import Tree, choose, configs_of, counted_leaves, distinct, leaves


class _Task(NamedTuple):
    """What an optimum is sought of, under which conditions.

    Attributes:
        matrix: all that was measured; trees are judged on it.
        allowed: the same without what the conditions exclude.
        found: `allowed` in bins.
        few: the configs, where their number is limited.
        limits: the conditions, in words.
    """

    matrix: TimingMatrix
    allowed: TimingMatrix
    found: Bins
    few: Few | None
    limits: str


def fit_function(
    matrix: TimingMatrix,
    legality: Legality,
    options: FitOptions,
    known: Known | None = None,
    incumbent: Incumbent | None = None,
    given: Tree | None = None,
    solver: Solver | None = None,
) -> Function:
    """The function of a matrix.

    Args:
        matrix: of one operator variant and dtype, weighted.
        legality: for all that the function will serve.
        options: what the user asked for.
        known: what an earlier fit chose, which then is not chosen again.
        incumbent: what is in use.
        given: the tree of an earlier fit, which then is judged and not sought.
        solver: of the matrix, which others ask, too; None for one of its own.

    Raises:
        NormtuneError: there is no legal tree of so few leaves, or none under the conditions.
    """
    validated, most = None, known.leaves if known else options.leaves or MAX_LEAVES[0]
    if known is None and options.leaves is None:
        validated, most = selected(matrix, legality, options.max_configs)
    enough = validated.chosen() if validated else None
    solver = solver or Solver()
    task, optima, asked = _asked(matrix, legality, options, known, enough or most, most, solver)
    # What nobody bounded may have as many leaves as it needs.
    while asked is None and known is None and options.leaves is None and most < MOST_LEAVES:
        most = min(2 * most, MOST_LEAVES)
        task, optima, asked = _asked(matrix, legality, options, known, most, most, solver)
    tree = optima.tree(asked) if asked else None
    if tree is None or asked is None:
        raise NormtuneError(_no_tree(task, legality, options, most))

    best = optima.least(asked)
    if best is None:
        raise AssertionError("a tree has a cost")
    # All that is preferred to the least loss shares one tie.
    budget = best + options.tie * int(matrix.weight.sum())
    count = optima.fewest(budget) or asked
    # The tree of an earlier fit is only given where it was what it was because of the table before it.
    kept, replacing = 0, given is not None
    if given is not None:
        tree = given
    else:
        tree = optima.tree(count) or tree
        plain = tidied(optima, tree, budget)
        tree = plain
        if incumbent and incumbent.tree:
            tree = tidied(optima, tree, budget, _old(task, legality, incumbent.tree))
        if incumbent:
            tree, kept = guarded(task.matrix, task.found, tree, incumbent.choice)
            replacing = incumbent.tree is not None and tree != plain
    found = _figures(task, optima, tree, asked)._replace(
        kept=known.kept if known else kept,
        cross_validated=known.cross_validated if known else validated and validated.inside(count),
        extrapolated=known.extrapolated if known else validated and validated.outside(count),
    )
    return Function(
        operator=matrix.operator,
        variant=matrix.variant,
        dtype=matrix.dtype,
        tree=tree,
        figures=found,
        dtypes=legality.dtypes,
        replacing=replacing,
    )


def figures_of(matrix: TimingMatrix, tree: Tree, optimum: int, joined: bool = False) -> Figures:
    """The figures of a tree, beside those of the rule that Liger-Kernel ships.

    Args:
        matrix: that it is judged on.
        tree: fitted on it, or on other data.
        optimum: least mean regret of a tree of as many leaves, millionths.
        joined: whether that is of trees that do not tell all sizes apart.
    """
    loss = figures.of_tree(matrix, tree)
    if loss is None:
        raise NormtuneError(f"no config that was measured for {matrix.key} {matrix.dtype} is legal for all it serves")
    count = leaves(tree)
    return Figures(
        leaves=count,
        asked=count,
        configs=len(distinct(tree)),
        loss=loss,
        gap=max(0, loss.mean - optimum),
        joined=joined,
        unmeasured=sum(config not in matrix.configs for config in configs_of(tree)),
        rule=figures.of_rule(matrix, liger.choose),
        gain=figures.gain(matrix, tree, liger.choose),
    )


def least_measured(matrix: TimingMatrix, optima: Optima, count: int) -> int | None:
    """Mean regret of the best tree of at most so many leaves for the measured sizes alone, millionths."""
    least = optima.least_measured(count)
    return None if least is None else least // int(matrix.weight.sum())


def _asked(
    matrix: TimingMatrix,
    legality: Legality,
    options: FitOptions,
    known: Known | None,
    enough: int,
    most: int,
    solver: Solver,
) -> tuple[_Task, Optima, int | None]:
    """The conditions, the optima under them for up to `most` leaves, and the leaves of the one that sets the mark.

    None where there is no tree. The least worst regret is that of trees of as many leaves, so that a refit, which knows
    that number alone, has the same conditions.
    """
    while True:
        task = _task(matrix, legality, options, enough)
        optima = solver.optima(task.found, most)
        asked = most if known else _mark(optima, enough)
        if options.objective != "worst" or asked is None or asked <= enough:
            return task, optima, asked
        enough = asked


def _task(matrix: TimingMatrix, legality: Legality, options: FitOptions, count: int) -> _Task:
    """The conditions, taken from the options, for trees of so many leaves.

    Raises:
        NormtuneError: no choice of so few configs is legal everywhere.
    """
    allowed, few, limits = matrix, None, ""
    if options.max_configs is not None:
        few = few_configs(matrix, legality, options.max_configs)
        if few is None:
            raise NormtuneError(
                f"no choice of at most {options.max_configs} config{'s' * (options.max_configs != 1)} covers "
                f"{matrix.key} {matrix.dtype}: each is illegal or was not measured somewhere; allow more with "
                "--max-configs, or sweep the default space"
            )
        allowed = allowed.of_configs(few.configs)
        limits += " of these configs"
    cap = options.cap
    if options.objective == "worst":
        least = least_worst(allowed if cap is None else allowed.within(cap), legality, count)
        cap = cap if least is None else least
    if cap is not None:
        allowed = allowed.within(cap)
        limits += f" with no shape above {ratio(cap)}"
    return _Task(matrix, allowed, bins(allowed, legality), few, limits)


def _mark(optima: Optima, enough: int) -> int | None:
    """The fewest leaves with which a table that is legal at all sizes loses no more than one of `enough`.

    `enough` counts what a tree needs for the measured sizes; what lies beyond them may take further leaves.
    """
    best = optima.least(optima.most)
    if best is None:
        return None
    goal = optima.least_measured(enough)
    bound = best if goal is None else max(best, goal)
    return optima.fewest(bound)


def _no_tree(task: _Task, legality: Legality, options: FitOptions, most: int) -> str:
    """Why there is no tree, and what to do."""
    matrix = task.matrix
    name, count = f"{matrix.key} {matrix.dtype}", counted_leaves(most)
    if options.cap is not None:
        free = matrix.of_configs(task.few.configs) if task.few else matrix
        least = least_worst(free, legality, most)
        if least is not None:
            return (
                f"no table of at most {count} keeps every shape of {name} within {options.max_slowdown:g} times its "
                f"best: {ratio(least, up=True)} is possible; allow it with --max-slowdown, or more leaves"
            )
    return (
        f"no table of at most {count} covers {name}: no config is legal or was measured in so large regions; allow "
        "more with --leaves, or sweep the default space"
    )


def _old(task: _Task, legality: Legality, tree: Tree) -> Old:
    """The tree that is replaced, as `tidy` looks at it."""
    matrix, found = task.allowed, task.found
    weights, differs = matrix.weight.tolist(), np.zeros(found.cost.shape, np.int64)
    places = {config: place for place, config in enumerate(found.configs)}
    cost: int | None = None if any(legality.breaches(tree)) else 0
    for index, shape in enumerate(matrix.problems):
        answer = choose(tree, *shape)
        row, column = (axis.bin(size) for axis, size in zip(found.axes, shape, strict=True))
        differs[:, row, column] += weights[index]
        if answer in places:
            differs[places[answer], row, column] -= weights[index]
        loss = matrix.loss(index, answer)
        cost = None if cost is None or loss is None else cost + loss * weights[index]
    return Old(tree, cost, Sums(differs))


def _figures(task: _Task, optima: Optima, tree: Tree, asked: int) -> Figures:
    count = leaves(tree)
    optima = optima.up_to(max(count, optima.most))
    best, optimum = optima.least(count), least_measured(task.matrix, optima, count)
    if best is None or optimum is None:
        raise AssertionError("where there is a tree there is a best one")
    joined = task.found.joins(task.matrix.problems)
    found, few = figures_of(task.matrix, tree, optimum, joined), task.few
    # A tree that has its cuts on the grid is compared with trees that are legal at all sizes, as it is; another with
    # trees that need not be so beyond the measured ones.
    cost = cost_of(optima, tree)
    gap = found.gap if cost is None else -((best - cost) // int(task.matrix.weight.sum()))
    return found._replace(
        asked=asked,
        gap=min(gap, found.gap),
        limits=task.limits,
        few=None if few is None else (few.bound, few.mean),
    )
