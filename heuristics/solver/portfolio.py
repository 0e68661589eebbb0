"""The few candidates that together serve all problems at little cost, and a proved bound on what any such set costs.

This is the p-median problem. Candidates are added by largest saving, then exchanged while that helps. If they do not
cover all problems, `scipy.optimize.milp` finds a set that does. For any price u of each problem, no set costs less than

    sum of u  -  the sum of the `size` largest savings,  a candidate's savings being the sum of max(0, u - its cost).

Subgradient steps raise that bound (Cornuejols, Fisher, Nemhauser 1977), and propose further sets. Costs are integers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_STEPS = 300
_PATIENCE = 8  # steps without progress before the step size is halved
_COVER_NODES = 1000  # of branch and bound, for a covering set


class Portfolio(NamedTuple):
    """A choice of candidates.

    Attributes:
        chosen: their indices, ascending.
        cost: the sum over problems of the least cost among them.
        bound: lower bound on the cost of any set of the allowed size; equal to `cost` if that is proved least.
    """

    chosen: tuple[int, ...]
    cost: int
    bound: int


def portfolio(cost: NDArray[np.int64], size: int, barred: NDArray[np.bool_] | None = None) -> Portfolio | None:
    """At most `size` candidates of little cost.

    Args:
        cost: int64 (P problems, C candidates), in any unit; may be negative; barred entries are ignored.
        size: the most candidates, at least 1.
        barred: bool (P, C): a candidate may not answer; None for nowhere.

    Returns:
        None if no such set that covers every problem was found.

    Raises:
        ValueError: `size` is below 1.
        OverflowError: the costs are too large to be summed exactly.
    """
    if size < 1:
        raise ValueError(f"size is {size}: expected at least 1")
    excess = _excess(cost, barred)
    return None if excess is None else _solved(excess, size)


def fewest(cost: NDArray[np.int64], barred: NDArray[np.bool_] | None, budget: int) -> Portfolio | None:
    """The smallest set that was found whose cost is at most `budget`.

    Costs, barred entries and errors are those of `portfolio`; `budget` is in the unit of the costs.

    Returns:
        The bound is that of sets of as many candidates. None if even all candidates together cost more, or leave a
        problem uncovered.
    """
    excess = _excess(cost, barred)
    if excess is None:
        return None
    for size in range(1, min(cost.shape) + 1):
        result = _solved(excess, size, budget)
        if result and result.cost <= budget:
            return result
    return None


class _Excess(NamedTuple):
    """Costs above the least of each problem.

    Attributes:
        table: int64 (C candidates, P problems), `uncovered` where barred.
        uncovered: more than any set costs that covers all problems.
        least: the sum of the problems' least costs.
    """

    table: NDArray[np.int64]
    uncovered: int
    least: int

    def present(self, chosen: Sequence[int]) -> NDArray[np.int64]:
        """Int64 (P,): the least cost of each problem among the chosen."""
        return self.table[list(chosen)].min(axis=0, initial=self.uncovered)

    def total(self, chosen: Sequence[int]) -> int:
        """Cost of a set, uncovered problems included."""
        return int(self.present(chosen).sum())


def _excess(cost: NDArray[np.int64], barred: NDArray[np.bool_] | None) -> _Excess | None:
    """The table of a problem; None if some problem has no candidate."""
    allowed = np.ones(cost.shape, np.bool_) if barred is None else ~barred
    if not cost.shape[1] or not allowed.any(axis=1).all():
        return None
    least = np.where(allowed, cost, np.iinfo(np.int64).max).min(axis=1)
    regret = np.where(allowed, cost - least[:, None], 0)
    uncovered, offset = 1 + sum(regret.max(axis=1).tolist()), sum(least.tolist())
    if max(uncovered * len(cost), abs(offset)) >= 1 << 62:
        raise OverflowError(f"costs of {len(cost)} problems are too large to be summed exactly")
    return _Excess(np.ascontiguousarray(np.where(allowed, regret, uncovered).T), uncovered, offset)


def _solved(excess: _Excess, size: int, budget: int | None = None) -> Portfolio | None:
    """A set of at most `size` candidates; with a budget, None as soon as it is proved too small."""
    chosen = _exchanged(excess, _filled(excess, [], size))
    if excess.total(chosen) >= excess.uncovered:
        cover = _cover(excess, size)
        if cover is None:
            return None
        chosen = _exchanged(excess, _filled(excess, cover, size))
    bound, proposed = _bound(excess, size, chosen, None if budget is None else budget - excess.least)
    chosen = min(chosen, _exchanged(excess, proposed), key=excess.total)
    total = excess.total(chosen)
    return Portfolio(_needed(excess, chosen), total + excess.least, min(total, bound) + excess.least)


def _filled(excess: _Excess, chosen: Sequence[int], size: int) -> list[int]:
    """The set with further candidates up to `size`, by largest saving, while there is any."""
    result, present = list(chosen), excess.present(chosen)
    while len(result) < size and present.any():
        result.append(int(np.minimum(present, excess.table).sum(axis=1).argmin()))
        present = np.minimum(present, excess.table[result[-1]])
    return result or [0]


def _exchanged(excess: _Excess, chosen: Sequence[int]) -> list[int]:
    """The set after the best exchanges of one member for another, while that helps."""
    result, total = list(chosen), excess.total(chosen)
    while True:
        best = (total, -1, -1)
        for place in range(len(result)):
            others = excess.present(result[:place] + result[place + 1 :])
            totals = np.minimum(others, excess.table).sum(axis=1)
            best = min(best, (int(totals.min()), place, int(totals.argmin())))
        if best[0] >= total:
            return result
        total, result[best[1]] = best[0], best[2]


def _needed(excess: _Excess, chosen: Sequence[int]) -> tuple[int, ...]:
    """The set without redundant candidates, ascending; the last is removed first."""
    result, total = sorted({*chosen}), excess.total(chosen)
    for candidate in reversed(result):
        fewer = [other for other in result if other != candidate]
        if fewer and excess.total(fewer) == total:
            result = fewer
    return tuple(result)


def _cover(excess: _Excess, size: int) -> list[int] | None:
    """The fewest candidates that cover all problems; None if more than `size`, or none in `_COVER_NODES` nodes."""
    from scipy.optimize import LinearConstraint, milp

    count = len(excess.table)
    result = milp(
        np.ones(count),
        integrality=np.ones(count),
        bounds=(0, 1),
        constraints=LinearConstraint((excess.table < excess.uncovered).T, 1),
        options={"node_limit": _COVER_NODES},
    )
    chosen = [] if result.x is None else np.flatnonzero(result.x > 0.5).tolist()
    return chosen if chosen and len(chosen) <= size and excess.total(chosen) < excess.uncovered else None


def _bound(excess: _Excess, size: int, chosen: Sequence[int], budget: int | None) -> tuple[int, list[int]]:
    """A bound on sets of `size`, and the best set of largest savings on the way.

    Polyak's steps: the gap to the least cost over the squared length of the subgradient, scaled by `scale` / 1024. They
    end once the bound reaches that cost or exceeds the budget.
    """
    prices = best_prices = excess.present(chosen)
    least, proposed = excess.total(chosen), list(chosen)
    best, scale, idle = -1, 1024, 0
    for _ in range(_STEPS):
        margins = np.maximum(prices - excess.table, 0)
        savings = margins.sum(axis=1)
        top = np.argsort(-savings, kind="stable")[:size]
        bound = int(prices.sum()) - sum(savings[top].tolist())
        if bound > best:
            best, best_prices, idle = bound, prices, 0
        else:
            idle += 1
        if (total := excess.total(top.tolist())) < least:
            least, proposed = total, top.tolist()
        if best >= least or (budget is not None and best > budget):
            break
        if idle == _PATIENCE:
            scale, idle, prices = scale // 2, 0, best_prices
            if scale < 16:
                break
            continue
        slope = 1 - (margins[top] > 0).sum(axis=0)
        length = int((slope * slope).sum())
        if not length:
            break
        step = max(1, (least - bound) * scale // (1024 * length))
        prices = np.clip(prices + slope * step, 0, excess.uncovered)
    return best, proposed
