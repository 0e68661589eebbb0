"""The function of least regret on one timing matrix; `sharing` decides whether another function is shared instead.

First the optimum is found. Of the trees whose loss exceeds the optimum's by at most the tie, the simplest is chosen
(`simplify`). Leaves slower than the baseline are replaced (`guard`). The gap to the optimum is one of the figures.
"""

from dataclasses import replace
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting import figures
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.fitting.figures import Figures
from normtune.heuristics.fitting.guard import Guard
from normtune.heuristics.fitting.options import MOST_LEAVES, FitOptions
from normtune.heuristics.fitting.result import FittedFunction
from normtune.heuristics.regret.fixed_log import ratio
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import Bins, Few, bins, few_configs, least_worst, losses
from normtune.heuristics.solver.cross_validation import MAX_LEAVES, cross_validated, most_leaves
from normtune.heuristics.solver.crossing import crossed, uncrossed
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.solver.simplify import cost_of, simplified
from normtune.heuristics.solver.strips import Strips
from normtune.kernels.tablefile.tree import Tree, configs_of, counted_leaves, distinct, leaves

# The most leaves, and configs, in `_avoiding`: twice as many take half a minute on the recording grid.
_MOST_TRIED = 64
# Figures that a refit takes from the header of the table.
_DECIDED = ("kept", "cross_validated", "plain_validated", "worst_validated", "extrapolated", "slower", "uncompared")


class Conditioned(NamedTuple):
    """A timing matrix under the conditions of a fit.

    Attributes:
        matrix: all measurements; trees are scored on it.
        allowed: the matrix without entries that the conditions exclude.
        in_bins: `allowed` in bins.
        few: the configs, if their number is limited.
        limits: the conditions as text.
        strict: whether configs slower than the baseline are also excluded.
    """

    matrix: TimingMatrix
    allowed: TimingMatrix
    in_bins: Bins
    few: Few | None
    limits: str
    strict: bool = False


def sought(case: Case, enough: int, most: int) -> tuple[Conditioned, Optima, int | None]:
    """The conditions, the optima under them for up to `most` leaves, and the leaves of the optimum to match.

    The last is None if no tree exists.
    """
    conditions = conditioned(case, enough)
    optima = case.solver.optima(conditions.in_bins, most)
    return conditions, optima, most if case.known else _leaves_to_match(optima, enough)


def conditioned(case: Case, count: int) -> Conditioned:
    """The conditions from the options, for trees of at most `count` leaves.

    Raises:
        NormtuneError: no set of so few configs is legal everywhere.
    """
    matrix, legality, options = case.matrix, case.legality, case.options
    allowed, few, limits, cap = matrix, None, "", options.cap
    if options.max_configs is not None:
        few = None if cap is None else few_configs(allowed.within(cap), legality, options.max_configs, leaves=count)
        # Without such a set the message names the bound that is possible.
        few = few or few_configs(allowed, legality, options.max_configs, leaves=count)
        if few is None:
            raise NormtuneError(
                f"no choice of at most {options.max_configs} config{'s' * (options.max_configs != 1)} covers "
                f"{matrix.key}: each is illegal or was not measured somewhere; allow more with "
                "--max-configs, or sweep the default space"
            )
        allowed = allowed.of_configs(few.configs)
        limits += " of these configs"
    if cap is not None:
        allowed = allowed.within(cap)
        limits += f" with no shape above {ratio(cap)}"
    return Conditioned(matrix, allowed, bins(allowed, legality), few, limits)


def _leaves_to_match(optima: Optima, enough: int) -> int | None:
    """The fewest leaves of a tree that is legal at all sizes and loses no more than the optimum of `enough` leaves.

    That optimum is legal only at measured sizes; larger sizes may need further leaves.
    """
    best = optima.least(optima.most)
    if best is None:
        return None
    goal = optima.least_measured(enough)
    bound = best if goal is None else max(best, goal)
    return optima.fewest(bound)


def no_tree(case: Case, conditions: Conditioned, most: int) -> str:
    """The message for a case without a tree, with advice."""
    name, count = case.key, counted_leaves(most)
    if case.options.cap is not None:
        least = least_worst(case.matrix, case.legality, most, case.options.max_configs)
        if least is not None:
            return (
                f"no table of at most {count} keeps every shape of {name} within {case.options.max_slowdown:g} times "
                f"its best: {ratio(least, up=True)} is possible; allow it with --max-slowdown, or more leaves"
            )
    return (
        f"no table of at most {count} covers {name}: no config is legal or was measured in so large regions; allow "
        "more with --leaves, or sweep the default space"
    )


def fit_function(case: Case, bound: int | None = None) -> FittedFunction:
    """The function of a case.

    Args:
        case: data and conditions.
        bound: the most leaves after slow leaves are replaced by the baseline's answers; None for any number.

    Raises:
        NormtuneError: no legal tree has so few leaves, or meets the conditions.
    """
    matrix, legality, options = case.matrix, case.legality, case.options
    known, baseline, guard = case.known, case.baseline, case.guard
    validated, enough, most = None, None, known.figures.asked if known else options.leaves or MAX_LEAVES[0]
    if known is None and options.leaves is None:
        most = most_leaves(matrix, case.solver.optima(bins(matrix, legality), MAX_LEAVES[1]))
    if known is None:
        validated = cross_validated(matrix, legality, most, options.max_configs)
        enough = None if options.leaves else validated.chosen()
    validated_leaves = most
    conditions, optima, count = sought(case, enough or most, most)
    # Without a bound from the user, a function may have as many leaves as it needs.
    while count is None and known is None and options.leaves is None and most < MOST_LEAVES:
        most = min(2 * most, MOST_LEAVES)
        conditions, optima, count = sought(case, most, most)
    best = _within_tie(matrix, optima, count, options)
    if best is None or count is None:
        raise NormtuneError(no_tree(case, conditions, most))

    # A refit scores the tree of the earlier fit only if it depends on a replaced table, which no longer exists.
    kept, replacing, advice = 0, case.given is not None, ""
    if case.given is not None:
        tree = case.given
    else:
        simplest = tree = simplified(optima, best.tree, best.budget)
        if baseline and guard:
            unguarded, (tree, kept) = tree, guard.guarded(conditions.in_bins, tree)
            if (known and known.figures.strict) or _is_beyond(case, guard, tree, bound):
                strict = _nowhere_slower(case, guard, min(enough or most, most), most)
                if strict is None:
                    tree, kept, advice = unguarded, 0, _avoiding(case, guard, most)
                elif not baseline.is_replaced:
                    kept, (conditions, optima, count, tree) = 0, strict
                else:  # a check cannot repeat conditions that come from a table that no longer exists
                    tree = strict[-1]
            replacing = baseline.is_replaced and tree != simplest
        tree = crossed(matrix, legality, tree)
    if known:
        decided = {name: getattr(known.figures, name) for name in _DECIDED}
    else:
        shown = min(best.leaves, validated_leaves)
        decided = {
            "kept": kept,
            "cross_validated": validated and validated.inside(shown),
            "plain_validated": validated and validated.plain_inside(shown),
            "worst_validated": validated and validated.worst_inside(shown),
            "extrapolated": validated and validated.outside(shown),
            "slower": guard.slower(tree) if guard else None,
            "uncompared": guard.uncompared(tree) if guard else 0,
        }
    scored = _figures(conditions, optima, tree, count)._replace(**decided, advice=advice)
    return FittedFunction(matrix.key, tree, legality.dtypes, scored, replacing)


class _WithinTie(NamedTuple):
    """The tree of fewest leaves within the tie of an optimum, its leaves, and the largest cost of a simpler tree."""

    tree: Tree
    leaves: int
    budget: int


def _within_tie(matrix: TimingMatrix, optima: Optima, count: int | None, options: FitOptions) -> _WithinTie | None:
    """A tree within the tie of the optimum of `count` leaves; None without an optimum."""
    best = optima.least(count) if count else None
    if best is None:
        return None
    budget = best + options.tie * int(matrix.weight.sum())
    fewest = optima.fewest(budget)
    tree = optima.tree(fewest) if fewest else None
    if fewest is None or tree is None:
        raise AssertionError("the optimum itself is within its tie")
    return _WithinTie(tree, fewest, budget)


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


def _is_beyond(case: Case, guard: Guard, tree: Tree, bound: int | None) -> bool:
    """Whether a tree with replaced leaves exceeds the bound on leaves, or on configs, and is still slower somewhere."""
    if bound is not None and leaves(tree) > bound:
        return True
    return case.options.max_configs is not None and guard.refuses(tree)


def _nowhere_slower(case: Case, guard: Guard, enough: int, most: int) -> tuple[Conditioned, Optima, int, Tree] | None:
    """The best tree within all bounds that has no config slower than the baseline; None if none exists."""
    matrix = case.matrix
    strict = case.on(matrix.without(guard.refused), case.known)
    try:
        conditions, optima, count = sought(strict, enough, most)
    except NormtuneError:
        return None
    best = _within_tie(matrix, optima, count, case.options)
    if best is None or count is None:
        return None
    tree = simplified(optima, best.tree, best.budget)
    return conditions._replace(matrix=matrix, strict=True), optima, count, tree


def _avoiding(case: Case, guard: Guard, most: int) -> str:
    """Options with which a table is nowhere slower than the baseline; empty if none are found.

    They have the fewest leaves; with a bound on configs, both bounds are doubled until they suffice.
    """
    options = case.options
    while most < _MOST_TRIED or (options.max_configs or _MOST_TRIED) < _MOST_TRIED:
        most = min(2 * most, _MOST_TRIED)
        options = replace(options, max_configs=options.max_configs and min(2 * options.max_configs, _MOST_TRIED))
        strict = _nowhere_slower(replace(case, options=options), guard, most, most)
        if strict:
            optima = strict[1]
            if options.max_configs is None:
                most = next(count for count in range(1, most + 1) if optima.least(count) is not None)
            few = [f"--max-configs {options.max_configs}"] if options.max_configs else []
            return " ".join([f"--leaves {most}", *few])
    return ""


def _figures(conditions: Conditioned, optima: Optima, tree: Tree, asked: int) -> Figures:
    count, matrix, few = leaves(tree), conditions.matrix, conditions.few
    optima = optima.up_to(max(count, optima.most))
    best, optimum = optima.least(count), least_measured(matrix, optima, count)
    if best is None or optimum is None:
        raise AssertionError("where there is a tree there is a best one")
    timed = figures_of(matrix, tree, optimum, conditions.in_bins.joins(matrix.problems))
    penalised = matrix.assumed.mean(losses(matrix.assumed, tree))
    # A tree with its cuts on the grid is legal at all sizes, and compared with such trees. Any other tree is compared
    # with trees that need not be legal beyond the measured sizes.
    cost = cost_of(optima, uncrossed(matrix, optima.axes, tree))
    gap = timed.gap if cost is None else -((best - cost) // int(matrix.weight.sum()))
    return timed._replace(
        asked=asked,
        gap=gap if penalised is None else min(gap, max(0, penalised - optimum)),
        limits=conditions.limits,
        strict=conditions.strict,
        few=None if few is None else (few.bound, few.mean),
    )
