"""What a choice has to know of the launches of configs at a problem, each asked for once.

In: candidates. Out: the rank of the number of programs, and a number that stands for the binary.
"""

import math
from collections.abc import Callable, Hashable
from functools import cache
from typing import TypeAlias

import numpy as np

from normtune.kernels.call import AnyLaunch
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.plane.moves import Array, Codes

# Number of programs that run at once, roughly: fewer take as long as one. Values of the logs of their number.
_AT_ONCE = 128
WAVES: Array = 0.25 * np.arange(49.0)

# The candidate of a config's number; None if it is illegal, another one's if that has the same launch.
CandidateOf: TypeAlias = Callable[[int], Candidate | None]


class Launches:
    """Of the candidates of a problem; `binary_number` may be called by several threads."""

    def __init__(self, candidate: CandidateOf, binary_number: Callable[[Hashable], int]) -> None:
        self._candidate = candidate
        self._grid = cache(lambda number: _rank(self._launch(number).grid))
        self._binary = cache(lambda number: binary_number(self._launch(number).binary))

    def grids(self, numbers: Codes) -> Codes:
        """Ranks in `WAVES` of the number of programs of candidates, (configs,)."""
        return np.array([*map(self._grid, numbers.tolist())], np.int64)

    def binaries(self, numbers: Codes) -> list[int]:
        """Numbers of the binaries of candidates."""
        return [*map(self._binary, numbers.tolist())]

    def _launch(self, number: int) -> AnyLaunch:
        candidate = self._candidate(number)
        assert candidate is not None
        return candidate.launch


@cache
def _rank(programs: int) -> int:
    return min(round(math.log2(1 + programs / _AT_ONCE) / WAVES[1]), len(WAVES) - 1)
