"""Guard against regressions: where a leaf is measured slower than the baseline, the baseline's config is kept.

In: a fitted tree and an incumbent: the table that is replaced, or the rule of a library. Out: a tree that is on no
measured problem slower than the incumbent, as far as measurements can show.

The test. On each problem on which the two choose differently, the paired log-ratios of both configs inside the rounds
are averaged by block (the unit, because rounds of a block share their noise). A one-sided t-test asks whether the
tree's config is slower; all problems of the function are tested together by Holm's procedure (Holm 1979) at `LEVEL`. A
config is slower if the test rejects and the mean ratio is at least `SLOWER`.

Replacement. The region of a leaf with such problems is divided again, with the leaf's own config and the incumbent's
configs on those problems as candidates. The result is the fewest parts in which none is slower than the incumbent's and
which together lose no more than the leaf did, or else, of at most `PARTS` (twice as many until a tree is legal), those
of least regret. If the incumbent's config has no time or is not legal, the fitted one stays. (Giving the whole region
back to the incumbent would be simpler, and ruinous: a leaf that loses 2 % on one of its 40 problems would get a rule
that loses up to 765 % on the others.)
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from normtune.heuristics.regret.effects import block_of
from normtune.heuristics.regret.matrix import MISSING, Rounds, TimingMatrix
from normtune.heuristics.solver.bins import Bins
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.solver.simplify import boxes, replaced
from normtune.heuristics.tablefile.tree import Box, Leaf, Tree, choose, configs_of
from normtune.kernels.config import Config

LEVEL = 0.05
SLOWER = 9_950  # millionths: 1 %
PARTS = 4
_LEAST_BLOCKS = 3

# (rows, hidden) to a config, None if there is no answer.
Choice = Callable[[int, int], Config | None]


class Guarded(NamedTuple):
    """A tree after the comparison with an incumbent.

    Attributes:
        tree: divided again where it was slower.
        kept: number of leaves of the fitted tree that were replaced.
    """

    tree: Tree
    kept: int


def guarded(matrix: TimingMatrix, in_bins: Bins, tree: Tree, incumbent: Choice) -> Guarded:
    """The tree, divided again wherever it is slower than the incumbent.

    Args:
        matrix: of the measurements.
        in_bins: the bins of its problems, with all cuts of the tree.
        tree: fitted.
        incumbent: the baseline.
    """
    slow = slower(matrix, lambda rows, hidden: choose(tree, rows, hidden), incumbent)
    slow = [index for index in slow if _may_answer(in_bins, matrix.problems[index], incumbent)]
    if not slow:
        return Guarded(tree, 0)
    optima = Optima(*in_bins, 1)
    parts: list[Tree] = []
    kept = 0
    for box, config in zip(boxes(optima, tree), configs_of(tree), strict=True):
        part = None
        if any(_holds(in_bins, box, matrix.problems[index]) for index in slow):
            part = _divided(matrix, in_bins, box, config, slow, incumbent)
        kept += part is not None
        parts.append(part or Leaf(config))
    return Guarded(replaced(tree, iter(parts)), kept)


def slower(matrix: TimingMatrix, chosen: Choice, incumbent: Choice) -> list[int]:
    """Problems on which the choice is slower than the incumbent's: by the test, and by at least `SLOWER`."""
    return [*_slower_by(matrix, chosen, incumbent)]


def _slower_by(matrix: TimingMatrix, chosen: Choice, incumbent: Choice) -> dict[int, float]:
    """The problems of `slower`, in order, with their mean log-ratios, millionths."""
    if matrix.rounds is None:
        return {}
    indices = {config: column for column, config in enumerate(matrix.configs)}
    tested: list[tuple[int, float, float]] = []
    for index, shape in enumerate(matrix.problems):
        ours, theirs = indices.get(chosen(*shape), -1), indices.get(incumbent(*shape), -1)  # type: ignore[arg-type]
        if min(ours, theirs) < 0 or ours == theirs:
            continue
        means = block_ratios(matrix.rounds, index, ours, theirs)
        if len(means) >= _LEAST_BLOCKS:
            tested.append((index, float(means.mean()), p_value(means)))
    slow: dict[int, float] = {}
    for rank, (index, ratio, p) in enumerate(sorted(tested, key=lambda candidate: (candidate[2], candidate[0]))):
        if p * (len(tested) - rank) > LEVEL:  # Holm's procedure stops at the first that is not rejected
            break
        if ratio >= SLOWER:
            slow[index] = ratio
    return dict(sorted(slow.items()))


class Slower(NamedTuple):
    """Problems on which a tree is slower than the baseline.

    Attributes:
        problems: their number.
        most: mean log-ratio on the worst of them, millionths.
    """

    problems: int
    most: int


def still_slower(matrix: TimingMatrix, tree: Tree, incumbent: Choice) -> Slower | None:
    """Problems on which a tree is slower than the incumbent, by the test of `slower`; None if there are none."""
    slow = _slower_by(matrix, lambda rows, hidden: choose(tree, rows, hidden), incumbent)
    return Slower(len(slow), round(max(slow.values()))) if slow else None


def slower_cells(matrix: TimingMatrix, incumbent: Choice) -> NDArray[np.bool_]:
    """Bool (problems, configs): the config is slower than the incumbent's, each tested by itself."""
    return np.array(
        [
            [_is_slower(matrix, index, config, incumbent) for config in matrix.configs]
            for index in range(len(matrix.problems))
        ]
    )


def block_ratios(rounds: Rounds, problem: int, left: int, right: int) -> NDArray[np.float64]:
    """The mean log-ratio of two configs in each block in which both were timed, in the order of blocks, millionths."""
    logs = rounds.logs[problem]
    both = (logs[left] != MISSING) & (logs[right] != MISSING)
    ratios = logs[left, both].astype(np.float64) - logs[right, both]
    _, block = np.unique(block_of(rounds.labels[problem, both]), return_inverse=True)
    return np.bincount(block, ratios) / np.bincount(block) if len(ratios) else ratios


def p_value(means: NDArray[np.float64]) -> float:
    """Probability of a mean at least this far above 0 if the true mean is 0: Student's t, n - 1 degrees of freedom."""
    count = len(means)
    scatter = float(means.std(ddof=1)) / math.sqrt(count)
    if scatter == 0.0:
        return 0.0 if means[0] > 0 else 1.0
    return float(stdtr(count - 1, -float(means.mean()) / scatter))


def _bin(in_bins: Bins, shape: tuple[int, int]) -> tuple[int, int]:
    rows, hidden = in_bins.axes
    return rows.bin(shape[0]), hidden.bin(shape[1])


def _holds(in_bins: Bins, box: Box, shape: tuple[int, int]) -> bool:
    return box.holds(*_bin(in_bins, shape))


def _may_answer(in_bins: Bins, shape: tuple[int, int], incumbent: Choice) -> bool:
    """Whether the incumbent's config may answer on a problem; otherwise the leaf is not replaced for it."""
    config, cell = incumbent(*shape), _bin(in_bins, shape)
    if config not in in_bins.configs:
        return False
    index = in_bins.configs.index(config)
    return bool(in_bins.legal[index, *cell]) and not in_bins.barred[index, *cell]


def _divided(
    matrix: TimingMatrix, in_bins: Bins, box: Box, fitted: Config, slow: Sequence[int], incumbent: Choice
) -> Tree | None:
    """The tree for a rectangle in which no config is slower than the incumbent's; None if there is none.

    Args:
        matrix: of the measurements.
        in_bins: its problems in their bins.
        box: of a leaf.
        fitted: the config of the leaf.
        slow: the problems on which that is slower than the incumbent's.
        incumbent: the baseline.
    """
    within = slice(box.least_rows, box.most_rows + 1), slice(box.least_hidden, box.most_hidden + 1)
    kept = {
        fitted,
        *(incumbent(*matrix.problems[index]) for index in slow if _holds(in_bins, box, matrix.problems[index])),
    }
    indices = [number for number, config in enumerate(in_bins.configs) if config in kept]
    configs = tuple(in_bins.configs[number] for number in indices)
    barred = in_bins.barred[indices][:, *within]
    for index, shape in enumerate(matrix.problems):
        if _holds(in_bins, box, shape) and _may_answer(in_bins, shape, incumbent):
            row, column = _bin(in_bins, shape)
            cell = row - box.least_rows, column - box.least_hidden
            for number, config in enumerate(configs):
                # The fitted config was tested together with all others of the tree; each of the rest is tested alone.
                refused = index in slow if config == fitted else _is_slower(matrix, index, config, incumbent)
                barred[number, *cell] |= refused
    rows, hidden = in_bins.axes
    axes = (
        rows._replace(tops=rows.tops[within[0]], beyond=False),
        hidden._replace(tops=hidden.tops[within[1]], beyond=False),
    )
    cost, legal = in_bins.cost[indices][:, *within], in_bins.legal[indices][:, *within]
    before = int(cost[configs.index(fitted)].sum())
    most = PARTS
    while True:
        optima = Optima(axes, configs, cost, barred, legal, most)
        if optima.least(most) is not None or most >= legal.shape[1] * legal.shape[2]:
            break
        most *= 2
    least = [optima.least(count) for count in range(1, most + 1)]
    enough = next((count for count, value in enumerate(least, 1) if value is not None and value <= before), most)
    return optima.tree(enough)


def _is_slower(matrix: TimingMatrix, problem: int, config: Config, incumbent: Choice) -> bool:
    """Whether a config is slower than the incumbent's on one problem, in a single test."""
    theirs = incumbent(*matrix.problems[problem])
    if matrix.rounds is None or theirs is None or config == theirs or matrix.loss(problem, config) is None:
        return False
    means = block_ratios(matrix.rounds, problem, matrix.configs.index(config), matrix.configs.index(theirs))
    return len(means) >= _LEAST_BLOCKS and float(means.mean()) >= SLOWER and p_value(means) <= LEVEL
