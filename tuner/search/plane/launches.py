"""What a choice has to know of the launches of configs at a problem, each asked for once.

In: candidates. Out: the rank of the number of programs, and a number that stands for the binary.
"""

import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import count
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


class Binaries:
    """Numbers of the binaries of an operator."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._next = count()

    def number(self, binary: Hashable) -> int:
        """The same for the same binary; may be called by several threads."""
        return self._numbers.setdefault(binary, next(self._next))


class Launches:
    """Of the candidates of a problem.

    Args:
        candidate: of the number of a config.
        binaries: of the operator.
    """

    def __init__(self, candidate: CandidateOf, binaries: Binaries) -> None:
        self._candidate, self._number = candidate, binaries.number
        self._grids: dict[int, int] = {}
        self._binaries: dict[int, int] = {}

    def grids(self, numbers: Codes) -> Codes:
        """Ranks in `WAVES` of the number of programs of candidates, (configs,)."""
        known, asked = self._grids, numbers.tolist()
        for number in asked:
            if number not in known:
                known[number] = _rank(self._launch(number).grid)
        return np.array([known[number] for number in asked], np.int64)

    def binaries(self, numbers: Codes) -> list[int]:
        """Numbers of the binaries of candidates."""
        known, asked = self._binaries, numbers.tolist()
        for number in asked:
            if number not in known:
                known[number] = self._number(self._launch(number).binary)
        return [known[number] for number in asked]

    def _launch(self, number: int) -> AnyLaunch:
        candidate = self._candidate(number)
        assert candidate is not None
        return candidate.launch


@lru_cache(maxsize=100_000)
def _rank(programs: int) -> int:
    return min(round(math.log2(1 + programs / _AT_ONCE) / WAVES[1]), len(WAVES) - 1)
