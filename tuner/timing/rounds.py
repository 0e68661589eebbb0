"""Rounds of launches on one device: disturbed ones are void and taken again.

In: batches of launches that can be replayed, a sentinel, a watch. Out: nanoseconds by label, a number per round.
Nothing here knows a GPU, so that disturbances can be simulated.

A round is void if one of these holds:

* A sentinel, a copy of fixed size before and after each round, is more than 2 % off its running median.
* The watch saw heat, a hardware slowdown, or a clock below its usual value.
* One of the fastest configs took over 10 % longer than in another round of the block, which has the same offsets and
  graphs. On an undisturbed H200 that holds for 4 % of the blocks of RMSNorm's forward and 1 % of its backward.

While the sentinel is unusual, no round begins: it is replayed again after pauses of 2 ms, 4 ms and so on. After
`MAX_VOID_ROUNDS` void rounds or as many pauses in a block the least disturbed rounds are kept.
"""

import math
import random
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, Protocol, TypeVar

from normtune.kernels.config import COPY

SENTINEL_TOLERANCE = 0.02
SENTINEL_WINDOW = 64
# Most void rounds of a block that are taken again.
MAX_VOID_ROUNDS = 6
FIRST_PAUSE_SECONDS = 0.002
# How much longer than in another round of its block a config may take, and which configs count: those at most this much
# slower than the fastest, as the others enter no table.
AGREEMENT = math.log(1.1)
_LIKELY = 1.1

Label = TypeVar("Label", bound=Hashable)


class RoundCounts(NamedTuple):
    """Numbers of rounds: all, void ones, those with a slow sentinel or clock or put off, and disturbed ones kept."""

    taken: int = 0
    void: int = 0
    slowed: int = 0
    kept: int = 0

    def plus(self, other: "RoundCounts") -> "RoundCounts":
        """The sums."""
        return RoundCounts(*(mine + its for mine, its in zip(self, other, strict=True)))


class Timed(Protocol):
    """A batch of launches that a round replays."""

    def replay(self) -> None:
        """Enqueue the batch on the current stream."""
        ...

    def nanoseconds(self) -> int:
        """Mean time of the timed launches in the last replay, which must be complete."""
        ...


class RoundWatch(Protocol):
    """Sees disturbances of the device beside the timing."""

    def begin_round(self) -> None:
        """A round begins."""
        ...

    def end_round(self) -> bool:
        """The round has ended; whether the device was slowed down meanwhile."""
        ...


class Rounds:
    """Takes the rounds of all problems on a device.

    Args:
        sentinel: the copy.
        wait: waits until the device has done everything.
        watch: of the device.
        seed: of the order of the configs in a round.
        clock, sleep: seconds.

    Attributes:
        counts: of the last block.
    """

    def __init__(
        self,
        sentinel: Timed,
        wait: Callable[[], None],
        watch: RoundWatch,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._busy = self._slept = 0.0
        self._sentinel = sentinel
        self._wait = wait
        self._watch = watch
        self._random = random.Random(seed)
        self._sentinels: deque[int] = deque(maxlen=SENTINEL_WINDOW)
        self.counts = RoundCounts()

    def of(self, graphs: Mapping[Label, Timed], count: int, repeatable: bool = True) -> dict[Label, list[int]]:
        """`count` rounds of all graphs, a block: nanoseconds by label. Launches from Python are not `repeatable`."""
        order = list(graphs)
        rounds: list[Mapping[Label, int]] = []
        calm: list[bool] = []
        start, pauses = self._clock(), 0
        was_calm = self._is_quiet()
        while True:
            while not was_calm and pauses < MAX_VOID_ROUNDS and self._pause(FIRST_PAUSE_SECONDS * 2**pauses):
                pauses += 1
                was_calm = self._is_quiet()
            self._random.shuffle(order)
            self._watch.begin_round()
            for label in order:
                graphs[label].replay()
            self._sentinel.replay()
            self._wait()
            is_slow, is_calm = self._watch.end_round(), self._is_usual()
            rounds.append({label: graphs[label].nanoseconds() for label in order})
            calm.append(was_calm and is_calm and not is_slow)
            was_calm = is_calm
            excess = _excess(rounds) if repeatable else [0.0] * len(rounds)
            good = [calm[i] and excess[i] <= AGREEMENT for i in range(len(rounds))]
            if sum(good) >= count or len(rounds) == count + MAX_VOID_ROUNDS:
                break
        best = sorted(range(len(rounds)), key=lambda i: (not good[i], not calm[i], excess[i], i))[:count]
        self._busy += self._clock() - start
        disturbed = sum(not good[i] for i in best)
        self.counts = RoundCounts(len(rounds), len(rounds) - count, pauses + len(rounds) - sum(calm), disturbed)
        return {label: [rounds[i][label] for i in sorted(best)] for label in graphs}

    def _is_quiet(self) -> bool:
        """Whether the sentinel takes its usual time now."""
        self._sentinel.replay()
        self._wait()
        return self._is_usual()

    def _pause(self, seconds: float) -> bool:
        """Wait for a disturbance to end, in all at most half of the time; whether that was possible."""
        if self._slept > self._busy / 2:
            return False
        self._slept += seconds
        self._sleep(seconds)
        return True

    def _is_usual(self) -> bool:
        sentinel = self._sentinel.nanoseconds()
        usual = median(self._sentinels) if self._sentinels else sentinel
        self._sentinels.append(sentinel)
        return abs(sentinel - usual) <= SENTINEL_TOLERANCE * usual


def _excess(rounds: Sequence[Mapping[Label, int]]) -> list[float]:
    """Of each round the largest log ratio of a fast config's time to its least time in any round."""
    least = {label: max(1, min(times[label] for times in rounds)) for label in rounds[0] if label != COPY}
    limit = _LIKELY * min(least.values(), default=0)
    fast = [label for label, time in least.items() if time <= limit]
    return [max((math.log(max(1, times[label]) / least[label]) for label in fast), default=0.0) for times in rounds]
