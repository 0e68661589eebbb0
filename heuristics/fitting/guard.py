"""Guard against regressions: where a leaf is measured slower than the baseline, the baseline's config is kept.

The test. On each problem on which the tree and the baseline choose differently, a one-sided t-test of the paired times
tests whether the tree's config is slower (`regret.paired`); all problems of the function are tested together by Holm's
procedure (Holm 1979) at `LEVEL`. A config is slower if the test rejects and the mean ratio is at least `SLOWER`. An
untimed config where the baseline's was timed is treated like a slower one. Problems where the baseline's config was not
timed are counted as not compared.

Replacement. The region of a leaf with such problems is divided again, with the leaf's own config and the baseline's
configs on those problems as candidates. The result has the fewest parts that are nowhere slower than the baseline and
lose no more than the leaf; if that is impossible, the parts of least regret among at most `PARTS` (doubled until a tree
is legal). If the baseline's config has no time or is not legal, the fitted one stays. (The baseline's config in the
whole region would be ruinous: a leaf that loses 2 % on one of its 40 problems would get a rule that loses up to 765 %
on the others.) Replaced problems are no longer tested, so Holm's procedure may reject others: the procedure is repeated
until nothing changes.
"""

import math
from collections.abc import Callable, Collection
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.figures import Slower
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.regret.paired import Paired, paired
from normtune.heuristics.solver.bins import Bins
from normtune.heuristics.solver.optimum import Optima
from normtune.heuristics.solver.simplify import boxes, replaced
from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Leaf, Tree, choose, configs_of

LEVEL = 0.05
SLOWER = 9_950  # log_ppm: 1 %
PARTS = 4

# Config for a shape; None without an answer.
AnswerAt = Callable[[Shape], Config | None]


class Guarded(NamedTuple):
    """A tree after the comparison with a baseline.

    Attributes:
        tree: with slow leaves divided again.
        kept: number of leaves of the fitted tree that were replaced.
    """

    tree: Tree
    kept: int


class Guard:
    """The configs of a timing matrix compared with those of a baseline."""

    def __init__(self, matrix: TimingMatrix, baseline: AnswerAt, is_legal: Callable[[Config, Shape], bool]) -> None:
        """Take all measurements of a function, without exclusions, and the answers of the baseline."""
        self.matrix = matrix
        self._is_legal = is_legal
        self._columns = {config: column for column, config in enumerate(matrix.configs)}
        self._theirs = [baseline(shape) for shape in matrix.problems]

    def guarded(self, in_bins: Bins, tree: Tree) -> Guarded:
        """The tree, divided again wherever it is slower than the baseline; `in_bins` has the tree's thresholds."""
        result, slow = Guarded(tree, 0), frozenset[int]()
        while True:
            new = {index for index in self._rejected(result.tree) if self._may_answer(in_bins, index)} - slow
            if not new:
                return result
            slow |= new
            result = self._divided(in_bins, tree, slow)

    def slower(self, tree: Tree) -> Slower | None:
        """Problems on which a tree is slower than the baseline, all tested together; None if there are none."""
        slow = self._slow(self._choices(tree))
        return Slower(len(slow), round(max(slow.values()))) if slow else None

    def refuses(self, tree: Tree) -> bool:
        """Whether a tree is slower than the baseline on any problem, or has no time where the baseline has one."""
        return bool(self._rejected(tree))

    def uncompared(self, tree: Tree) -> int:
        """Number of problems on which a tree and the baseline differ, but no times compare their configs."""
        return sum(
            theirs is not None
            and ours != theirs
            and math.isnan(self._ratio(problem, ours))
            and self._is_legal(theirs, self.matrix.problems[problem])
            for problem, (ours, theirs) in enumerate(zip(self._choices(tree), self._theirs, strict=True))
        )

    @cached_property
    def refused(self) -> NDArray[np.bool_]:
        """Bool (problems, configs): slower than the baseline's by a single test, or untimed where that is timed."""
        cells = (self._tests.ratios >= SLOWER) & (self._tests.p <= LEVEL)
        return cells if self.matrix.untimed is None else cells | (self.matrix.untimed & self._has_time[:, None])

    @cached_property
    def _tests(self) -> Paired:
        """Tests of all configs against the baseline's, (problems, configs)."""
        tests = Paired(*(np.full(self.matrix.usable.shape, np.nan) for _ in range(2)))
        for problem, config in enumerate(self._theirs):
            column = self._columns.get(config) if config is not None else None
            if column is not None and self.matrix.rounds is not None:
                tests.ratios[problem], tests.p[problem] = paired(self.matrix.rounds, problem, column)
        return Paired(*(np.where(self.matrix.usable, values, np.nan) for values in tests))

    @cached_property
    def _has_time(self) -> NDArray[np.bool_]:
        """Bool (problems,): the baseline's config was timed."""
        return np.array(
            [
                config is not None and self.matrix.loss(index, config) is not None
                for index, config in enumerate(self._theirs)
            ]
        )

    def _choices(self, tree: Tree) -> list[Config]:
        return [choose(tree, shape, self.matrix.axes) for shape in self.matrix.problems]

    def _ratio(self, problem: int, config: Config) -> float:
        """Mean log-ratio of a config's time and the baseline's, log_ppm; NaN if no times compare them."""
        column = self._columns.get(config)
        return math.nan if column is None else float(self._tests.ratios[problem, column])

    def _rejected(self, tree: Tree) -> set[int]:
        """Problems on which a tree is slower, or untimed where the baseline is timed."""
        choices = self._choices(tree)
        columns = [self._columns.get(config) for config in choices]
        untimed = self.matrix.untimed
        return {*self._slow(choices)} | {
            problem
            for problem, column in enumerate(columns)
            if untimed is not None and column is not None and untimed[problem, column] and self._has_time[problem]
        }

    def _slow(self, choices: list[Config]) -> dict[int, float]:
        """Problems on which choices are slower, by Holm's test and by at least `SLOWER`, with the mean log-ratios."""
        tested = [
            (float(self._tests.p[problem, self._columns[config]]), problem, ratio)
            for problem, config in enumerate(choices)
            if config != self._theirs[problem] and not math.isnan(ratio := self._ratio(problem, config))
        ]
        slow: dict[int, float] = {}
        for rank, (p, problem, ratio) in enumerate(sorted(tested)):
            if p * (len(tested) - rank) > LEVEL:  # Holm's procedure stops at the first that is not rejected
                break
            if ratio >= SLOWER:
                slow[problem] = ratio
        return slow

    def _may_answer(self, in_bins: Bins, problem: int) -> bool:
        """Whether the baseline's config is timed and legal on a problem, and so may replace a leaf's."""
        config, cell = self._theirs[problem], in_bins.cell(self.matrix.problems[problem])
        if not self._has_time[problem] or config not in in_bins.configs:
            return False
        index = in_bins.configs.index(config)
        return bool(in_bins.legal[index, *cell]) and not in_bins.barred[index, *cell]

    def _divided(self, in_bins: Bins, tree: Tree, slow: frozenset[int]) -> Guarded:
        """The tree in which the leaves with slow problems are divided again."""
        parts: list[Tree] = []
        kept = 0
        for box, config in zip(boxes(Optima(*in_bins, 1), tree), configs_of(tree), strict=True):
            inside = [index for index, shape in enumerate(self.matrix.problems) if box.holds(in_bins.cell(shape))]
            part = None if slow.isdisjoint(inside) else self._part(in_bins, box, config, inside, slow)
            kept += part is not None
            parts.append(part or Leaf(config))
        return Guarded(replaced(tree, iter(parts)), kept)

    def _part(
        self, in_bins: Bins, box: Box, fitted: Config, inside: Collection[int], slow: frozenset[int]
    ) -> Tree | None:
        """The tree for the `box` of a leaf in which no config is slower than the baseline's; None if there is none.

        `fitted` is the leaf's config, `inside` the problems in the box, `slow` those where a fitted config is slower.
        """
        within = tuple(slice(least, most + 1) for _, least, most in box)
        kept = {fitted, *(self._theirs[index] for index in inside if index in slow)}
        indices = [number for number, config in enumerate(in_bins.configs) if config in kept]
        configs = tuple(in_bins.configs[number] for number in indices)
        barred = in_bins.barred[indices][:, *within]
        for index in inside:
            if self._may_answer(in_bins, index):
                place = in_bins.cell(self.matrix.problems[index])
                cell = tuple(at - own.least for at, own in zip(place, box, strict=True))
                for number, config in enumerate(configs):
                    # The fitted config was tested with Holm's procedure, each of the others by a single test.
                    alone = config in self._columns and self.refused[index, self._columns[config]]
                    barred[number, *cell] |= index in slow if config == fitted else alone
        axes = tuple(
            axis._replace(tops=axis.tops[own], beyond=False) for axis, own in zip(in_bins.axes, within, strict=True)
        )
        cost, legal = in_bins.cost[indices][:, *within], in_bins.legal[indices][:, *within]
        before = int(cost[configs.index(fitted)].sum())
        most = PARTS
        while True:
            optima = Optima(axes, configs, cost, barred, legal, most)
            if optima.least(most) is not None or most >= legal[0].size:
                break
            most *= 2
        least = [optima.least(count) for count in range(1, most + 1)]
        enough = next((count for count, value in enumerate(least, 1) if value is not None and value <= before), most)
        return optima.tree(enough)
