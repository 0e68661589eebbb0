"""Guard against regressions: a tree has no config where it is measured slower than the baseline's.

The test. On each problem on which a tree and the baseline choose differently, a one-sided t-test of the paired times
tests whether the tree's config is slower (`regret.paired`); all problems of the function are tested together by Holm's
procedure (Holm 1979) at `LEVEL`. A config is slower if the test rejects and the mean ratio is at least `SLOWER`. An
untimed config where the baseline's was timed is treated like a slower one. Problems where the baseline's config was not
timed are counted as not compared.

The guard. Before a tree is solved, each config is barred from the problems where it is slower than the baseline's by a
single test, or untimed, if the baseline's config may answer there. A single test bars more than Holm's procedure can
reject, so every tree of the other configs passes.
"""

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.baseline import Choice
from normtune.heuristics.fitting.figures import Slower
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.regret.paired import Paired, paired
from normtune.kernels.config import Config
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Tree, choose

LEVEL = 0.05
SLOWER = 9_950  # log_ppm: 1 %
# Whether a config is legal at a shape.
IsLegal = Callable[[Config, Shape], bool]


class Guard:
    """The configs of a timing matrix compared with those of a baseline."""

    def __init__(self, matrix: TimingMatrix, baseline: Choice) -> None:
        """Take all measurements of a function, without exclusions, and the answers of the baseline."""
        self.matrix = matrix
        self._theirs = [baseline(shape) for shape in matrix.problems]

    def slower(self, tree: Tree) -> Slower | None:
        """Problems on which a tree is slower than the baseline, all tested together; None if there are none."""
        slow = self._slow(self._choices(tree))
        return Slower(len(slow), round(max(slow.values()))) if slow else None

    def uncompared(self, tree: Tree, is_legal: IsLegal) -> int:
        """Number of problems on which a tree and a legal baseline differ, but no times compare their configs."""
        return sum(
            theirs is not None
            and ours != theirs
            and math.isnan(self._ratio(problem, ours))
            and is_legal(theirs, self.matrix.problems[problem])
            for problem, (ours, theirs) in enumerate(zip(self._choices(tree), self._theirs, strict=True))
        )

    def barred(self, is_legal: IsLegal) -> NDArray[np.bool_]:
        """Bool (problems, configs): slower than the baseline's by a single test, or untimed where that is timed.

        Only where the baseline's config may answer: it was timed, and `is_legal` for the function.
        """
        cells = (self._tests.ratios >= SLOWER) & (self._tests.p <= LEVEL)
        if self.matrix.untimed is not None:
            cells |= self.matrix.untimed
        may_answer = [
            config is not None and self.matrix.loss(index, config) is not None and is_legal(config, shape)
            for index, (config, shape) in enumerate(zip(self._theirs, self.matrix.problems, strict=True))
        ]
        return cells & np.array(may_answer)[:, None]

    @cached_property
    def _tests(self) -> Paired:
        """Tests of all configs against the baseline's, (problems, configs)."""
        tests = Paired(*(np.full(self.matrix.usable.shape, np.nan) for _ in range(2)))
        for problem, config in enumerate(self._theirs):
            column = self.matrix.columns.get(config) if config is not None else None
            if column is not None and self.matrix.rounds is not None:
                tests.ratios[problem], tests.p[problem] = paired(self.matrix.rounds, problem, column)
        return Paired(*(np.where(self.matrix.usable, values, np.nan) for values in tests))

    def _choices(self, tree: Tree) -> list[Config]:
        return [choose(tree, shape, self.matrix.axes) for shape in self.matrix.problems]

    def _ratio(self, problem: int, config: Config) -> float:
        """Mean log-ratio of a config's time and the baseline's, log_ppm; NaN if no times compare them."""
        column = self.matrix.columns.get(config)
        return math.nan if column is None else float(self._tests.ratios[problem, column])

    def _slow(self, choices: list[Config]) -> dict[int, float]:
        """Problems on which choices are slower, by Holm's test and by at least `SLOWER`, with the mean log-ratios."""
        tested = [
            (float(self._tests.p[problem, self.matrix.columns[config]]), problem, ratio)
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
