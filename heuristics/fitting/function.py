"""The function of least regret on one timing matrix; `sharing` decides whether another function is shared instead.

First the optimum is found. Of the trees whose loss exceeds the optimum's by at most the tie, the simplest is chosen
(`simplify`). Configs slower than the baseline's are barred before (`guard`). The gap to the optimum is one of the
figures.
"""

from dataclasses import replace
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting import figures
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.figures import Figures
from normtune.heuristics.fitting.options import MOST_LEAVES
from normtune.heuristics.fitting.result import FittedFunction, OtherSize
from normtune.heuristics.regret.fixed_log import ratio
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import Bins, Few, bins, few_configs, losses
from normtune.heuristics.solver.cross_validation import BETWEEN, cross_validated
from normtune.heuristics.solver.crossing import at_crossings
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.solver.simplify import cost_of, simplified
from normtune.heuristics.solver.strips import Strips
from normtune.kernels.tablefile.tree import Tree, configs_of, counted_leaves, distinct, leaves

# Leaves of the other trees whose loss is told.
_SIZES = (4, 8, 16, 32)
# The most leaves by default: on a small grid, and on a large one, which has at most one for each `_PER_LEAF` shapes.
# More than cross-validation asked for lose less between the sizes (docs/results.md).
_FEW, _MANY, _PER_LEAF = 24, 64, 4


class Solved(NamedTuple):
    """The optima under the conditions of a fit.

    Attributes:
        in_bins: the entries that the conditions allow, in bins.
        optima: of these bins.
        match: leaves of the optimum to match; None if no tree exists.
        few: the configs, if their number is limited.
        limits: the conditions as text.
    """

    in_bins: Bins
    optima: Optima
    match: int | None
    few: Few | None
    limits: str


def solved(case: Case, matrix: TimingMatrix, most: int, bound: int) -> Solved:
    """The optima for the entries of `matrix`, of up to `most` leaves; if there is no tree, of more, up to `bound`."""
    while True:
        result = solved_within_options(case, matrix, most)
        if result.match is not None or most >= bound:
            return result
        most = min(2 * most, bound)


def _nowhere_slower(case: Case, most: int, bound: int) -> Solved | None:
    """The same without configs slower than the baseline's; None if there are none, or without a tree."""
    if case.guarded is None:
        return None
    try:
        result = solved(case, case.guarded, most, bound)
    except NormtuneError:  # --max-configs is too small for it
        return None
    optima, match = result.optima, result.match
    if not case.decision and optima.least_measured(most) is None:  # then as few leaves as there is a tree of
        match = next((count for count in range(most, optima.most + 1) if optima.least(count) is not None), None)
    if match is None or optima.least(match) is None:
        return None
    return result._replace(match=match, limits=f"{result.limits} nowhere slower than the baseline")


def solved_within_options(case: Case, matrix: TimingMatrix, most: int) -> Solved:
    """The optima of up to `most` leaves for the entries of `matrix` that the options allow.

    Raises:
        NormtuneError: no set of so few configs is legal everywhere.
    """
    allowed, legality, options = matrix, case.legality, case.options
    few, limits, cap = None, "", options.cap
    if options.max_configs is not None:
        few = None if cap is None else few_configs(allowed.within(cap), legality, options.max_configs, leaves=most)
        # Without such a set the message names the bound that is possible.
        few = few or few_configs(allowed, legality, options.max_configs, leaves=most)
        if few is None:
            raise NormtuneError(
                f"no choice of at most {options.max_configs} config{'s' * (options.max_configs != 1)} covers "
                f"{case.key}: each is illegal or was not measured somewhere; allow more with "
                "--max-configs, or sweep the default space"
            )
        allowed = allowed.of_configs(few.configs)
        limits += " of these configs"
    if cap is not None:
        allowed = allowed.within(cap)
        limits += f" with no shape above {ratio(cap)}"
    in_bins = bins(allowed, legality)
    optima = case.solver.optima(in_bins, most)
    return Solved(in_bins, optima, most if case.decision else _leaves_to_match(optima, most), few, limits)


def _leaves_to_match(optima: Optima, most: int) -> int | None:
    """The fewest leaves of a tree that is legal at all sizes and loses no more than the optimum of `most` leaves.

    That optimum is legal only at measured sizes; larger sizes may need further leaves.
    """
    best = optima.least(optima.most)
    if best is None:
        return None
    goal = optima.least_measured(most)
    bound = best if goal is None else max(best, goal)
    return optima.fewest(bound)


def no_tree(case: Case, most: int) -> str:
    """The message for a case without a tree, with advice."""
    name, count = case.key, counted_leaves(most)
    if case.options.cap is not None:
        without_cap = replace(case, options=replace(case.options, max_slowdown=None))
        # A cap forbids configs without a time, too.
        timed = replace(case.matrix, untimed=None)
        tree = solved_within_options(without_cap, timed, most).optima.tree(most)
        if tree is not None and (loss := figures.of_tree(timed, tree)):
            return (
                f"no table of at most {count} keeps every shape of {name} within {case.options.max_slowdown:g} times "
                f"its best: {ratio(loss.worst, up=True)} is possible; allow it with --max-slowdown, or more leaves"
            )
    return (
        f"no table of at most {count} covers {name}: no config is legal or was measured in so large regions; allow "
        "more with --leaves, or sweep the default space"
    )


def fit_function(case: Case, fewest: int | None = None) -> FittedFunction:
    """The function of a case: the number of leaves, the optima, the simplest tree within the tie, and its figures.

    Args:
        case: data and conditions.
        fewest: leaves to try first, where `--leaves` is given; None for `--leaves`.

    Raises:
        NormtuneError: no legal tree has so few leaves, or meets the conditions.
    """
    options, before = case.options, case.decision and case.decision.figures
    most = before.asked if before else fewest or options.leaves or most_leaves(case.matrix)
    bound = before.asked if before else options.leaves or MOST_LEAVES
    solution = _nowhere_slower(case, most, bound) or solved(case, case.matrix, most, bound)
    count, on_grid = _simplest(case, solution, bound)
    tree = at_crossings(case.matrix, case.legality, on_grid)
    if before:
        between = {name: getattr(before, name) for name in BETWEEN}
    else:
        between = cross_validated(case.matrix, case.legality, min(count, most), options.max_configs)
    scored = _figures(case.matrix, solution, tree, on_grid)._replace(**between)
    sizes = () if case.decision else _other_sizes(case, solution, scored.leaves)
    return FittedFunction(case.key, tree, case.legality.dtypes, case.against_baseline(scored, tree), other_sizes=sizes)


def most_leaves(matrix: TimingMatrix) -> int:
    """The most leaves of a function, unless the user says so or more are needed."""
    return min(_MANY, max(_FEW, len(matrix.problems) // _PER_LEAF))


def _simplest(case: Case, solution: Solved, bound: int) -> tuple[int, Tree]:
    """The fewest leaves of a tree within the tie of the optimum to match, and the simplest such tree of the grid.

    Raises:
        NormtuneError: there is no optimum of at most `bound` leaves.
    """
    optima = solution.optima
    best = optima.least(solution.match) if solution.match else None
    if best is None:
        raise NormtuneError(no_tree(case, bound))
    budget = best + case.options.tie * int(case.matrix.weight.sum())
    fewest = optima.fewest(budget)
    tree = optima.tree(fewest) if fewest else None
    if fewest is None or tree is None:
        raise AssertionError("the optimum itself is within its tie")
    return fewest, simplified(optima, tree, budget)


def _other_sizes(case: Case, solution: Solved, chosen: int) -> tuple[OtherSize, ...]:
    """What trees of fewer leaves lose, and of more where the user chose so few, with and without the baseline."""
    counts = [count for count in _SIZES if count < chosen or (case.options.leaves and count != chosen)]
    if not counts:
        return ()
    optima = case.solver.optima(bins(case.matrix, case.legality), max(counts[-1], solution.optima.most))
    of_baseline = solution.optima.up_to(max(counts[-1], solution.optima.most))

    def loss(of: Optima | Strips, count: int) -> int | None:
        tree = of.tree(count)
        lost = None if tree is None or leaves(tree) < count > chosen else figures.of_tree(case.matrix, tree)
        return None if lost is None else lost.plain

    guarded = {count: loss(of_baseline, count) for count in counts} if case.guarded is not None else {}
    losses = {count: loss(optima, count) for count in counts}
    return tuple(OtherSize(count, lost, guarded.get(count)) for count, lost in losses.items() if lost is not None)


def figures_of(matrix: TimingMatrix, tree: Tree, optimum: int, joined: bool = False) -> Figures:
    """The figures of a tree on a matrix.

    `optimum` is the least mean regret of a tree of as many leaves, log_ppm; `joined` whether it is of merged bins.
    """
    loss = figures.of_tree(matrix, tree)
    if loss is None:
        raise NormtuneError(f"no measured config of {matrix.key} is legal for all dtypes and variants of its function")
    count = leaves(tree)
    return Figures(
        leaves=count,
        asked=count,
        configs=len(distinct(tree)),
        loss=loss,
        gap=max(0, loss.mean - optimum),
        joined=joined,
        unmeasured=sum(config not in matrix.configs for config in configs_of(tree)),
    )


def least_measured(matrix: TimingMatrix, optima: Optima | Strips, count: int) -> int | None:
    """Mean regret of the best tree of at most `count` leaves that need only be legal at measured sizes, log_ppm."""
    least = optima.least_measured(count)
    return None if least is None else least // int(matrix.weight.sum())


def _figures(matrix: TimingMatrix, solution: Solved, tree: Tree, on_grid: Tree) -> Figures:
    """The figures of a tree, which was `on_grid` before its thresholds moved to where times cross."""
    count, few = leaves(tree), solution.few
    optima = solution.optima.up_to(max(count, solution.optima.most))
    best, optimum, cost = optima.least(count), least_measured(matrix, optima, count), cost_of(optima, on_grid)
    if best is None or optimum is None or cost is None:
        raise AssertionError("where there is a tree there is a best one")
    timed = figures_of(matrix, tree, optimum, solution.in_bins.joins(matrix.problems))
    penalised = matrix.assumed.mean(losses(matrix.assumed, tree))
    gap = -((best - cost) // int(matrix.weight.sum()))
    return timed._replace(
        asked=solution.match or count,
        gap=gap if penalised is None else min(gap, max(0, penalised - optimum)),
        limits=solution.limits,
        few=None if few is None else (few.bound, few.mean),
    )
