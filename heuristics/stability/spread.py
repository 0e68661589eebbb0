"""How far a table would change if it were measured again.

In: the functions of a fit with what they were fitted to. Out: `Stability` of each: which thresholds the measurements
cannot tell apart, on how many shapes the config would be another one, and what that would cost.

Method. A bootstrap over blocks of rounds (`bootstrap`): of each problem as many blocks as it has are drawn again, and
the same fit is made to what they say, its number of leaves as it is. Up to `TABLES` times, seeded, so that it says the
same each time. The tables that come of it are judged on the times that were measured. What blocks of one sweep have in
common, the binaries, the GPU and its day, no bootstrap can vary: `two_sweeps` is for that. Eight blocks drawn from
eight scatter by the factor sqrt(7/8) too little.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.parallel import MOST_PROCESSES, in_order
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import losses
from normtune.heuristics.stability.bootstrap import Blocks
from normtune.heuristics.stability.equivalent import Cut, equivalent, splits
from normtune.heuristics.stability.refit import Fitted, refitted
from normtune.heuristics.tablefile.tree import Box, Split, Tree, choose, leaves

# As many tables as are solved in two minutes on two cores, a step in 2.1 ns: never more than 100, nor fewer than 20.
TABLES, LEAST_TABLES = 100, 20
_STEPS = 110_000_000_000
SHARE = 95  # percent of the tables that `Spread.most` holds for
_SEED = 20


class Spread(NamedTuple):
    """Over the tables of a bootstrap: the mean, and what `SHARE` % of them do not exceed."""

    mean: float
    most: float


class Held(NamedTuple):
    """A threshold, and the share of the tables that have a cut of its axis among the equivalent ones where it is."""

    cut: Cut
    share: float


class Stability(NamedTuple):
    """How stable a function is.

    Attributes:
        key, dtype: of the function.
        max_hidden: the largest hidden size that can occur.
        leaves: of its tree.
        tables: how many came of the bootstrap; draws that have no legal table are left out.
        held: its cuts, from the root down.
        weighted: share of the problems, by weight, whose config is another one.
        plain: the same, each problem counting as one.
        lost: what the tables lose more than the fitted one on what was measured, mean regret in millionths; below 0
            where they lose less, as the fitted one may lose up to the tie more than the best.
    """

    key: str
    dtype: str
    max_hidden: int
    leaves: int
    tables: int
    held: tuple[Held, ...]
    weighted: Spread
    plain: Spread
    lost: Spread


def tables_of(functions: Sequence[Fitted]) -> int:
    """How many tables are drawn of these functions: a number that depends on their sizes and leaves alone."""
    steps = sum(_steps(one) for one in functions)
    return min(TABLES, max(LEAST_TABLES, _STEPS // max(1, steps)))


def _steps(one: Fitted) -> int:
    """Sums that the exact program compares: pairs of leaves, by cuts of either axis, by bounds of the other one."""
    rows, hidden = (len({shape[axis] for shape in one.case.matrix.problems}) + 1 for axis in (0, 1))
    cuts = rows * (rows + 1) * hidden**3 + hidden * (hidden + 1) * rows**3
    return int(one.function.figures.asked**2 * cuts // 24)


def stability(
    functions: Sequence[Fitted], tables: int | None = None, told: Callable[[float], None] | None = None
) -> list[Stability]:
    """The stability of functions, in their order.

    Args:
        functions: of a table.
        tables: of the bootstrap, at least one; None for as many as `tables_of` says.
        told: is called once, with the seconds that are left, when the first table of each function is done.
    """
    tables = tables_of(functions) if tables is None else tables
    start = time.perf_counter()
    first = [_drawn(one, 0) for one in functions]
    each = time.perf_counter() - start
    if told:
        told(each * (tables - 1) / MOST_PROCESSES)
    # Neighbours go to different processes, so those of one function share its time evenly.
    items = [(place, number) for place in range(len(functions)) for number in range(1, tables)]
    trees = in_order(partial(_of_item, functions), items)
    return [
        _judged(one, [own, *(next(trees) for _ in range(1, tables))]) for one, own in zip(functions, first, strict=True)
    ]


def _of_item(functions: Sequence[Fitted], item: tuple[int, int]) -> Tree | None:
    return _drawn(functions[item[0]], item[1])


def _drawn(one: Fitted, number: int) -> Tree | None:
    """The tree of the draw of that number; None where it has no legal one."""
    draw = np.random.default_rng([_SEED, crc32(one.case.name.encode()), number])
    return refitted(one, Blocks(one.case.matrix).drawn(draw))


def _judged(one: Fitted, drawn: Sequence[Tree | None]) -> Stability:
    function, matrix = one.function, one.case.matrix
    found = [tree for tree in drawn if tree is not None]
    cuts = equivalent(_allowed(one), one.case.legality, function.tree, one.case.options.tie)
    at = [splits(tree, one.case.legality.spec.max_hidden) for tree in found]
    now, here = _choices(matrix, function.tree), losses(matrix, function.tree)
    changed = np.array([now != _choices(matrix, tree) for tree in found]).reshape(len(found), len(matrix.problems))
    lost = [_more(matrix, here, losses(matrix, tree)) for tree in found]
    return Stability(
        key=function.key,
        dtype=function.dtype,
        max_hidden=one.case.legality.spec.max_hidden,
        leaves=leaves(function.tree),
        tables=len(found),
        held=tuple(Held(cut, share_of(cut, at)) for cut in cuts),
        weighted=_spread(changed @ matrix.weight / matrix.weight.sum()),
        plain=_spread(changed.mean(axis=1)),
        lost=_spread(np.array(lost, np.float64)),
    )


def _allowed(one: Fitted) -> TimingMatrix:
    """The measurements without what the options exclude: a shape that would be worse than what was asked for."""
    options, matrix = one.case.options, one.case.matrix
    cap = one.function.figures.loss.worst if options.objective == "worst" else options.cap
    return matrix if cap is None else matrix.within(cap)


def _choices(matrix: TimingMatrix, tree: Tree) -> NDArray[np.object_]:
    found = np.empty(len(matrix.problems), np.object_)
    for index, shape in enumerate(matrix.problems):
        found[index] = choose(tree, *shape)
    return found


def _more(matrix: TimingMatrix, here: Sequence[int | None], there: Sequence[int | None]) -> int:
    """What is lost there more than here, over the problems at which both have a time."""
    pairs = zip(there, here, strict=True)
    return matrix.mean([None if a is None or b is None else a - b for a, b in pairs]) or 0


def share_of(cut: Cut, tables: Sequence[Sequence[tuple[Split, Box]]]) -> float:
    """The share of the tables that cut its axis at a threshold that is as good, in a region that meets its own."""
    has = [
        any(
            one.axis == cut.axis and cut.least <= one.threshold <= cut.most and not box.overlap(cut.box).is_empty
            for one, box in own
        )
        for own in tables
    ]
    return float(np.mean(has)) if has else 0.0


def _spread(values: NDArray[np.float64]) -> Spread:
    return (
        Spread(float(values.mean()), float(np.quantile(values, SHARE / 100, method="higher")))
        if len(values)
        else Spread(0.0, 0.0)
    )
