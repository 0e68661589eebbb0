"""Expected change of a table if it were measured again.

Method. A bootstrap over blocks of rounds (`bootstrap`): for each problem as many blocks as it has are drawn with
replacement, and the same fit is repeated on them with the same number of leaves. There are up to `TABLES` draws with a
fixed seed. The resulting tables are scored on the measured times. A bootstrap cannot vary properties that all blocks of
a sweep share, such as the binaries, the GPU and the day; `benchmarks/two_sweeps.py` does. The scatter of eight blocks
drawn from eight is too small by the factor sqrt(7/8).
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import losses
from normtune.heuristics.stability.bootstrap import Blocks
from normtune.heuristics.stability.refit import Fitted, refitted
from normtune.heuristics.stability.tied_thresholds import TreeCut, splits, tied_thresholds
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.tablefile.tree import Split, Tree, choose, leaves
from normtune.results.parallel.maps import in_order
from normtune.results.parallel.processes import cores

# The number of tables that two cores solve in two minutes, at 2.1 ns a step: at most 100 and at least 20.
TABLES, LEAST_TABLES = 100, 20
_STEPS = 110_000_000_000
SHARE = 95  # percent of the tables that `Spread.most` bounds
_SEED = 20


class Spread(NamedTuple):
    """The mean over the tables of a bootstrap, and their `SHARE` % quantile."""

    mean: float
    most: float


class Held(NamedTuple):
    """A threshold, and the share of tables with a tied threshold: same axis, overlapping region."""

    cut: TreeCut
    share: float


class Stability(NamedTuple):
    """Stability of a function.

    Attributes:
        key: of the function.
        whole: all shapes of the operator.
        leaves: of its tree.
        tables: number of tables from the bootstrap; draws without a legal table are left out.
        held: its thresholds, from the root down.
        weighted: share of the problems, by weight, whose config changes.
        plain: the same with equal weights.
        lost: excess loss of the tables over the fitted table on the measured times, mean regret in log_ppm; below 0 if
            they lose less, as the fitted table may lose up to the tie more than the best.
    """

    key: Key
    whole: Box
    leaves: int
    tables: int
    held: tuple[Held, ...]
    weighted: Spread
    plain: Spread
    lost: Spread


def tables_of(functions: Sequence[Fitted]) -> int:
    """Number of tables drawn for these functions, from their sizes and leaves."""
    steps = sum(_steps(function) for function in functions)
    return min(TABLES, max(LEAST_TABLES, _STEPS // max(1, steps)))


def _steps(fitted: Fitted) -> int:
    """Sums that the solver compares: pairs of leaves x thresholds of one axis x bounds of the other."""
    first, second = (len({*sizes}) + 1 for sizes in zip(*fitted.case.matrix.problems, strict=True))
    cuts = first * (first + 1) * second**3 + second * (second + 1) * first**3
    return int(fitted.function.figures.asked**2 * cuts // 24)


def stability(
    functions: Sequence[Fitted], tables: int | None = None, told: Callable[[float], None] | None = None
) -> list[Stability]:
    """The stability of functions, in their order.

    Args:
        functions: of a table.
        tables: number of tables of the bootstrap, at least one; None for `tables_of`.
        told: called once, with the remaining seconds, when the first table of each function is done.
    """
    tables = tables_of(functions) if tables is None else tables
    start = time.perf_counter()
    first = [_drawn(function, 0) for function in functions]
    each = time.perf_counter() - start
    if told:
        told(each * (tables - 1) / cores())
    # Consecutive items go to different processes, so each gets the same number of fits of a function.
    items = [(index, number) for index in range(len(functions)) for number in range(1, tables)]
    trees = in_order(lambda item: _drawn(functions[item[0]], item[1]), items, each * (tables - 1))
    return [
        _judged(function, [tree, *(next(trees) for _ in range(1, tables))])
        for function, tree in zip(functions, first, strict=True)
    ]


def _drawn(fitted: Fitted, number: int) -> Tree | None:
    """The tree of the draw with that number; None if no legal tree exists."""
    draw = np.random.default_rng([_SEED, crc32(str(fitted.case.key).encode()), number])
    return refitted(fitted, Blocks(fitted.case.matrix).drawn(draw))


def _judged(fitted: Fitted, drawn: Sequence[Tree | None]) -> Stability:
    function, matrix = fitted.function, fitted.case.matrix
    tables = [tree for tree in drawn if tree is not None]
    cuts = tied_thresholds(_allowed(fitted), fitted.case.legality, function.tree, fitted.case.options.tie)
    cuts_of_tables = [splits(tree, fitted.case.legality.spec.whole) for tree in tables]
    now, here = _choices(matrix, function.tree), losses(matrix, function.tree)
    changed = np.array([now != _choices(matrix, tree) for tree in tables]).reshape(len(tables), len(matrix.problems))
    lost = [_more(matrix, here, losses(matrix, tree)) for tree in tables]
    return Stability(
        key=function.key,
        whole=fitted.case.legality.spec.whole,
        leaves=leaves(function.tree),
        tables=len(tables),
        held=tuple(Held(cut, share_of(cut, cuts_of_tables)) for cut in cuts),
        weighted=_spread(changed @ matrix.weight / matrix.weight.sum()),
        plain=_spread(changed.mean(axis=1)),
        lost=_spread(np.array(lost, np.float64)),
    )


def _allowed(fitted: Fitted) -> TimingMatrix:
    """The measurements without entries that the options exclude."""
    options, matrix = fitted.case.options, fitted.case.matrix
    cap = fitted.function.figures.loss.worst if options.objective == "worst" else options.cap
    return matrix if cap is None else matrix.within(cap)


def _choices(matrix: TimingMatrix, tree: Tree) -> NDArray[np.object_]:
    choices = np.empty(len(matrix.problems), np.object_)
    for index, shape in enumerate(matrix.problems):
        choices[index] = choose(tree, shape, matrix.axes)
    return choices


def _more(matrix: TimingMatrix, here: Sequence[int | None], there: Sequence[int | None]) -> int:
    """Excess loss of the second over the first, on the problems with times of both."""
    pairs = zip(there, here, strict=True)
    return matrix.mean([None if a is None or b is None else a - b for a, b in pairs]) or 0


def share_of(cut: TreeCut, tables: Sequence[Sequence[tuple[Split, Box]]]) -> float:
    """Share of the tables with a tied threshold on the same axis, in an overlapping region."""
    has = [
        any(
            split.axis == cut.axis and cut.least <= split.threshold <= cut.most and not box.overlap(cut.box).is_empty
            for split, box in cuts
        )
        for cuts in tables
    ]
    return float(np.mean(has)) if has else 0.0


def _spread(values: NDArray[np.float64]) -> Spread:
    return (
        Spread(float(values.mean()), float(np.quantile(values, SHARE / 100, method="higher")))
        if len(values)
        else Spread(0.0, 0.0)
    )
