"""Conditions on an optimum, and the reason if there is none.

In: a case. Out: `Task`, and the optima under its conditions.
"""

from dataclasses import replace
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.case import Case
from normtune.heuristics.regret.fixed_log import ratio
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import Bins, Few, bins, few_configs, least_worst
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.tablefile.tree import counted_leaves


class Task(NamedTuple):
    """Input of an optimum, with its conditions.

    Attributes:
        matrix: all measurements; trees are scored on it.
        allowed: the matrix without entries that the conditions exclude.
        found: `allowed` in bins.
        few: the configs, if their number is limited.
        limits: the conditions, in words.
    """

    matrix: TimingMatrix
    allowed: TimingMatrix
    found: Bins
    few: Few | None
    limits: str


def sought(case: Case, enough: int, most: int) -> tuple[Task, Optima, int | None]:
    """The conditions, the optima under them for up to `most` leaves, and the leaves of the tree that sets the goal.

    None for the leaves if there is no tree. The least worst-case regret is that of trees of as many leaves, so that a
    refit, which only knows that number, has the same conditions.
    """
    while True:
        task = task_of(case, enough)
        optima = case.solver.optima(task.found, most)
        asked = most if case.known else _mark(optima, enough)
        if case.options.objective != "worst" or asked is None or asked <= enough:
            return task, optima, asked
        enough = asked


def task_of(case: Case, count: int) -> Task:
    """The conditions from the options, for trees of at most `count` leaves.

    Raises:
        NormtuneError: no set of so few configs is legal everywhere.
    """
    matrix, legality, options = case.matrix, case.legality, case.options
    allowed, few, limits = matrix, None, ""
    if options.objective == "worst":
        allowed = replace(matrix, untimed=None)  # nothing bounds what these lose
    if options.max_configs is not None:
        few = few_configs(allowed, legality, options.max_configs)
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
    return Task(matrix, allowed, bins(allowed, legality), few, limits)


def _mark(optima: Optima, enough: int) -> int | None:
    """The fewest leaves with which a table that is legal at all sizes loses no more than one of `enough`.

    `enough` is the number of leaves for the measured sizes; larger sizes may need further leaves.
    """
    best = optima.least(optima.most)
    if best is None:
        return None
    goal = optima.least_measured(enough)
    bound = best if goal is None else max(best, goal)
    return optima.fewest(bound)


def no_tree(case: Case, task: Task, most: int) -> str:
    """The reason why there is no tree, with advice."""
    name, count = case.name, counted_leaves(most)
    if case.options.cap is not None:
        free = case.matrix.of_configs(task.few.configs) if task.few else case.matrix
        least = least_worst(free, case.legality, most)
        if least is not None:
            return (
                f"no table of at most {count} keeps every shape of {name} within {case.options.max_slowdown:g} times "
                f"its best: {ratio(least, up=True)} is possible; allow it with --max-slowdown, or more leaves"
            )
    return (
        f"no table of at most {count} covers {name}: no config is legal or was measured in so large regions; allow "
        "more with --leaves, or sweep the default space"
    )
