"""No leaf worse than what is in use: where measurements say that one is, it keeps what is in use.

In: a fitted tree and an incumbent, which is the table that is replaced or the rule of a library. Out: a tree that is on
no measured problem slower than the incumbent, as far as that can be told.

The test. On each problem on which the two choose differently, the paired log-ratios of both configs inside the rounds,
one mean a block (the blocks are the units: rounds of one share their luck), in a one-sided t-test that the tree's
config is slower; all problems of the function together by Holm's procedure (Holm 1979) at `LEVEL`. Slower means that
the test says so and the mean ratio is at least `SLOWER`.

What is kept. The region of a leaf that holds such problems is cut anew, with its own config and with those that the
incumbent has on them: into the fewest parts in which none is slower than the incumbent's and which together lose no
more than the leaf did, or else, of at most `PARTS`, those that lose least. Where the incumbent's config has no time or
is not legal, the fitted one stays. (Giving the whole region back to the incumbent would be simpler, and ruinous: a leaf
that loses 2 % on one of its 40 problems would get a rule that loses up to 765 % on the others.)
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

# (rows, hidden) to a config, None where there is no answer.
Choice = Callable[[int, int], Config | None]


class Guarded(NamedTuple):
    """A tree that was compared with an incumbent.

    Attributes:
        tree: cut anew where it was slower.
        kept: how many leaves of the fitted tree gave way.
    """

    tree: Tree
    kept: int


def guarded(matrix: TimingMatrix, found: Bins, tree: Tree, incumbent: Choice) -> Guarded:
    """The tree, cut anew wherever it is slower than the incumbent.

    Args:
        matrix: of the measurements.
        found: the bins of its problems, in which the tree has its cuts.
        tree: fitted.
        incumbent: what is in use.
    """
    slow = slower(matrix, lambda rows, hidden: choose(tree, rows, hidden), incumbent)
    slow = [index for index in slow if _may_answer(found, matrix.problems[index], incumbent)]
    if not slow:
        return Guarded(tree, 0)
    optima = Optima(*found, 1)
    parts: list[Tree] = []
    kept = 0
    for box, config in zip(boxes(optima, tree), configs_of(tree), strict=True):
        part = None
        if any(_holds(found, box, matrix.problems[index]) for index in slow):
            part = _cut_anew(matrix, found, box, config, slow, incumbent)
        kept += part is not None
        parts.append(part or Leaf(config))
    return Guarded(replaced(tree, iter(parts)), kept)


def slower(matrix: TimingMatrix, chosen: Choice, incumbent: Choice) -> list[int]:
    """The problems on which the choice is slower than the incumbent's: by the test, and by at least `SLOWER`."""
    return [*_slower_by(matrix, chosen, incumbent)]


def _slower_by(matrix: TimingMatrix, chosen: Choice, incumbent: Choice) -> dict[int, float]:
    """The problems of `slower`, in order, with their mean log-ratios, millionths."""
    if matrix.rounds is None:
        return {}
    places = {config: place for place, config in enumerate(matrix.configs)}
    tested: list[tuple[int, float, float]] = []
    for index, shape in enumerate(matrix.problems):
        ours, theirs = places.get(chosen(*shape), -1), places.get(incumbent(*shape), -1)  # type: ignore[arg-type]
        if min(ours, theirs) < 0 or ours == theirs:
            continue
        means = block_ratios(matrix.rounds, index, ours, theirs)
        if len(means) >= _LEAST_BLOCKS:
            tested.append((index, float(means.mean()), p_value(means)))
    slow: dict[int, float] = {}
    for rank, (index, ratio, p) in enumerate(sorted(tested, key=lambda one: (one[2], one[0]))):
        if p * (len(tested) - rank) > LEVEL:  # Holm: the first that is not rejected ends it
            break
        if ratio >= SLOWER:
            slow[index] = ratio
    return dict(sorted(slow.items()))


class Slower(NamedTuple):
    """Problems on which a tree is slower than what is in use.

    Attributes:
        problems: how many.
        most: mean log-ratio on the worst of them, millionths.
    """

    problems: int
    most: int


def still_slower(matrix: TimingMatrix, tree: Tree, incumbent: Choice) -> Slower | None:
    """Where a tree is slower than the incumbent, by the test of `slower`; None where it is nowhere so."""
    found = _slower_by(matrix, lambda rows, hidden: choose(tree, rows, hidden), incumbent)
    return Slower(len(found), round(max(found.values()))) if found else None


def slower_cells(matrix: TimingMatrix, incumbent: Choice) -> NDArray[np.bool_]:
    """Bool (problems, configs): where a config is slower than the incumbent's, each tested by itself."""
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
    """How likely a mean so far above 0 is where the true one is not: Student's t with a degree of freedom fewer."""
    count = len(means)
    scatter = float(means.std(ddof=1)) / math.sqrt(count)
    if scatter == 0.0:
        return 0.0 if means[0] > 0 else 1.0
    return float(stdtr(count - 1, -float(means.mean()) / scatter))


def _bin(found: Bins, shape: tuple[int, int]) -> tuple[int, int]:
    rows, hidden = found.axes
    return rows.bin(shape[0]), hidden.bin(shape[1])


def _holds(found: Bins, box: Box, shape: tuple[int, int]) -> bool:
    return box.holds(*_bin(found, shape))


def _may_answer(found: Bins, shape: tuple[int, int], incumbent: Choice) -> bool:
    """Whether the incumbent's config may answer on a problem; where it may not, it is no reason to give way."""
    config, at = incumbent(*shape), _bin(found, shape)
    if config not in found.configs:
        return False
    place = found.configs.index(config)
    return bool(found.legal[place, *at]) and not found.barred[place, *at]


def _cut_anew(
    matrix: TimingMatrix, found: Bins, box: Box, fitted: Config, slow: Sequence[int], incumbent: Choice
) -> Tree | None:
    """The tree for a rectangle in which no config is slower than the incumbent's; None where there is none.

    Args:
        matrix: of the measurements.
        found: the bins of its problems.
        box: of a leaf.
        fitted: the config of the leaf.
        slow: the problems on which that is slower than the incumbent's.
        incumbent: what is in use.
    """
    within = slice(box.least_rows, box.most_rows + 1), slice(box.least_hidden, box.most_hidden + 1)
    kept = {
        fitted,
        *(incumbent(*matrix.problems[index]) for index in slow if _holds(found, box, matrix.problems[index])),
    }
    places = [place for place, config in enumerate(found.configs) if config in kept]
    configs = tuple(found.configs[place] for place in places)
    barred = found.barred[places][:, *within]
    for index, shape in enumerate(matrix.problems):
        if _holds(found, box, shape) and _may_answer(found, shape, incumbent):
            row, column = _bin(found, shape)
            at = row - box.least_rows, column - box.least_hidden
            for place, config in enumerate(configs):
                # The fitted config was tested together with all others of the tree; the rest is tested one by one.
                refused = index in slow if config == fitted else _is_slower(matrix, index, config, incumbent)
                barred[place, *at] |= refused
    rows, hidden = found.axes
    axes = (
        rows._replace(tops=rows.tops[within[0]], beyond=False),
        hidden._replace(tops=hidden.tops[within[1]], beyond=False),
    )
    cost, legal = found.cost[places][:, *within], found.legal[places][:, *within]
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
    """Whether a config is slower than the incumbent's on one problem, for a test of its own."""
    theirs = incumbent(*matrix.problems[problem])
    if matrix.rounds is None or theirs is None or config == theirs or matrix.loss(problem, config) is None:
        return False
    means = block_ratios(matrix.rounds, problem, matrix.configs.index(config), matrix.configs.index(theirs))
    return len(means) >= _LEAST_BLOCKS and float(means.mean()) >= SLOWER and p_value(means) <= LEVEL
