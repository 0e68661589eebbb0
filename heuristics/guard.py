"""No leaf worse than what is in use: where measurements say that one is, it keeps what is in use.

In: a fitted tree and an incumbent, which is the table that is replaced or the rule of a library. Out: a tree that is on
no measured problem slower than the incumbent, as far as that can be told.

The test. On each problem on which the two choose differently, the paired log-ratios of both configs inside the rounds,
one mean a block (the blocks are the units: rounds of one share their luck), in a one-sided t-test that the tree's
config is slower; all problems of the function together by Holm's procedure (Holm 1979) at `LEVEL`. Slower means that
the test says so and the mean ratio is at least `SLOWER`.

What is kept. The region of a leaf that holds such a problem gets the incumbent's answers at all measured sizes in it,
in the fewest leaves that do so; where the incumbent's config has no time or is not legal, the fitted one stays.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from normtune.heuristics.levels import block_of
from normtune.heuristics.matrix import MISSING, Rounds, TimingMatrix
from normtune.heuristics.optimum import Optima, Rectangle
from normtune.heuristics.solving import Bins
from normtune.heuristics.tidy import boxes, replaced
from normtune.heuristics.tree import Leaf, Tree, choose, configs_of
from normtune.kernels.config import Config

LEVEL = 0.05
SLOWER = 9_950  # millionths: 1 %
_LEAST_BLOCKS = 3

# (rows, hidden) to a config, None where there is no answer.
Choice = Callable[[int, int], Config | None]


class Guarded(NamedTuple):
    """A tree that was compared with an incumbent.

    Attributes:
        tree: with the incumbent's answers where the fitted ones were slower.
        kept: how many leaves of the fitted tree gave way.
    """

    tree: Tree
    kept: int


def guarded(matrix: TimingMatrix, found: Bins, tree: Tree, incumbent: Choice) -> Guarded:
    """The tree, with the incumbent's answers wherever it is slower than these.

    Args:
        matrix: of the measurements.
        found: the bins of its problems, in which the tree has its cuts.
        tree: fitted.
        incumbent: what is in use.
    """
    slow = slower(matrix, lambda rows, hidden: choose(tree, rows, hidden), incumbent)
    # Where the incumbent may not answer, it is no reason to give way elsewhere.
    slow = [
        place for place in slow if _answer(matrix, found, place, tree, incumbent) == incumbent(*matrix.problems[place])
    ]
    if not slow:
        return Guarded(tree, 0)
    optima = Optima(*found, 1)
    answers = dict(zip(boxes(optima, tree), configs_of(tree), strict=True))
    hit = [box for box in answers if any(_holds(found, box, matrix.problems[index]) for index in slow)]
    parts = {box: _kept(matrix, found, box, tree, incumbent) for box in hit}
    changed = {box: part for box, part in parts.items() if part != Leaf(answers[box])}
    return Guarded(replaced(optima, tree, changed), len(changed))


def slower(matrix: TimingMatrix, chosen: Choice, incumbent: Choice) -> list[int]:
    """The problems on which the choice is slower than the incumbent's: by the test, and by at least `SLOWER`."""
    if matrix.rounds is None:
        return []
    places = {config: place for place, config in enumerate(matrix.configs)}
    tested: list[tuple[int, float, float]] = []
    for index, shape in enumerate(matrix.problems):
        ours, theirs = places.get(chosen(*shape), -1), places.get(incumbent(*shape), -1)  # type: ignore[arg-type]
        if min(ours, theirs) < 0 or ours == theirs:
            continue
        means = block_ratios(matrix.rounds, index, ours, theirs)
        if len(means) >= _LEAST_BLOCKS:
            tested.append((index, float(means.mean()), p_value(means)))
    slow: list[int] = []
    for rank, (index, ratio, p) in enumerate(sorted(tested, key=lambda one: (one[2], one[0]))):
        if p * (len(tested) - rank) > LEVEL:  # Holm: the first that is not rejected ends it
            break
        if ratio >= SLOWER:
            slow.append(index)
    return sorted(slow)


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


def _holds(found: Bins, box: Rectangle, shape: tuple[int, int]) -> bool:
    row, column = _bin(found, shape)
    return box.row_from <= row < box.row_to and box.hidden_from <= column < box.hidden_to


def _answer(matrix: TimingMatrix, found: Bins, problem: int, tree: Tree, incumbent: Choice) -> Config:
    """What a problem gets whose leaf gives way: the incumbent's config where it may answer, else the fitted one."""
    shape = matrix.problems[problem]
    config, at = incumbent(*shape), _bin(found, shape)
    if config in found.configs:
        place = found.configs.index(config)
        if found.legal[place, *at] and not found.barred[place, *at]:
            return config
    return choose(tree, *shape)


def _kept(matrix: TimingMatrix, found: Bins, box: Rectangle, tree: Tree, incumbent: Choice) -> Tree:
    """The tree of fewest leaves that gives the incumbent's answers in a rectangle."""
    within = slice(box.row_from, box.row_to), slice(box.hidden_from, box.hidden_to)
    legal = found.legal[:, *within]
    differs = np.zeros(legal.shape, np.int64)
    for index, shape in enumerate(matrix.problems):
        if not _holds(found, box, shape):
            continue
        row, column = _bin(found, shape)
        at = row - box.row_from, column - box.hidden_from
        differs[:, *at] += 1
        differs[found.configs.index(_answer(matrix, found, index, tree, incumbent)), *at] -= 1
    rows, hidden = found.axes
    axes = (
        rows._replace(tops=rows.tops[within[0]], beyond=False),
        hidden._replace(tops=hidden.tops[within[1]], beyond=False),
    )
    most = 1
    while True:
        optima = Optima(axes, found.configs, differs, np.zeros_like(legal), legal, most)
        if optima.least(most) == 0 or most >= legal.shape[1] * legal.shape[2]:
            kept = optima.tree(most)
            if kept is None:
                raise AssertionError("a tree with a leaf for each bin is legal, as the fitted one is")
            return kept
        most *= 2
