"""A GPU that others disturb, in simulated time: what `timing.rounds` takes of recorded times then.

In: the disturbances, recorded rounds. Out: a `Disturbed` device for `simulation.simulate`. Every batch of launches
takes its recorded time times the mean of the slowdown while it runs.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.timing.protocol import SENTINEL_BYTES, SENTINEL_COPIES
from normtune.tuner.timing.rounds import RoundCounts, Rounds

# Of an H200: seconds of a sentinel, and the deviation of its log time.
_SENTINEL_SECONDS = (1 + SENTINEL_COPIES) * 2 * SENTINEL_BYTES / 4.0e12
_SENTINEL_NOISE = 0.002
_SLICE_SECONDS = 0.1


class Disturbances(NamedTuple):
    """What happens on a GPU besides the sweep.

    Attributes:
        stretches: share of the time in stretches in which everything is slower.
        stretch_seconds: mean length of such a stretch.
        spikes: probability that a batch of launches is slower by itself.
        period, busy: seconds of the period of a neighbour, and the share of it in which everything is slower.
        least, most: limits of the slowdown of a stretch and of a spike, drawn evenly in their logarithm; a neighbour's
            is their geometric mean.
    """

    stretches: float = 0.0
    stretch_seconds: float = 0.05
    spikes: float = 0.0
    period: float = 0.0
    busy: float = 0.0
    least: float = 1.05
    most: float = 3.0


class Disturbed:
    """A device under disturbances.

    Args:
        disturbances: of the device.
        seed: of the disturbances.
        voids: whether disturbed rounds are void, as in a sweep; else the first rounds count.

    Attributes:
        counts: of all rounds so far.
    """

    def __init__(self, disturbances: Disturbances, seed: int = 0, voids: bool = True) -> None:
        self._of = disturbances
        self._random = random.Random(seed)
        self._voids = voids
        self.counts = RoundCounts()
        self._stretches: list[tuple[float, float, float]] = []  # begin, end, slowdown
        self._drawn = self._now = 0.0
        self._sentinel = _Batch(
            self, lambda: _SENTINEL_SECONDS * math.exp(self._random.gauss(0, _SENTINEL_NOISE)), 1, 0
        )
        clock = (lambda: self._now), self._pass
        self._rounds = Rounds(self._sentinel, lambda: None, _Unwatched(), seed, *clock)

    def block(
        self, times: Mapping[Config, Sequence[int]], launches: float, fixed: float
    ) -> tuple[dict[Config, list[int]], float]:
        """A block of rounds of recorded times, and its seconds.

        Args:
            times: of each config in the rounds of the block, ns; a round that is taken again has one of them.
            launches: of a batch, of which all but one are timed.
            fixed: seconds of a batch besides them.
        """
        begun = self._now
        graphs = {
            config: _Batch(self, _turns(list(samples), self._random), launches, fixed, self._of.spikes)
            for config, samples in times.items()
        }
        if self._voids:
            found = self._rounds.of(graphs, ROUNDS_PER_BLOCK)
            self.counts = self.counts.plus(self._rounds.counts)
            return found, self._now - begun
        self.counts = self.counts.plus(RoundCounts(ROUNDS_PER_BLOCK))
        taken: dict[Config, list[int]] = {config: [] for config in graphs}
        for _ in range(ROUNDS_PER_BLOCK):
            order = list(graphs)
            self._random.shuffle(order)
            for config in order:
                graphs[config].replay()
                taken[config].append(graphs[config].nanoseconds())
        return taken, self._now - begun

    def run(self, seconds: float, spikes: float) -> float:
        """Let undisturbed seconds pass on the device; returns the slowdown."""
        factor = self._slowdown(self._now, self._now + seconds)
        if spikes and self._random.random() < spikes:
            factor *= self._draw()
        self._now += seconds * factor
        return factor

    def _pass(self, seconds: float) -> None:
        self._now += seconds

    def _draw(self) -> float:
        return math.exp(self._random.uniform(math.log(self._of.least), math.log(self._of.most)))

    def _slowdown(self, begin: float, end: float) -> float:
        while self._drawn <= end:
            self._draw_slice()
        extra = sum(
            (factor - 1) * max(0.0, min(end, until) - max(begin, since)) for since, until, factor in self._stretches
        )
        self._stretches = [stretch for stretch in self._stretches if stretch[1] > begin]
        return 1 + extra / (end - begin) if end > begin else 1.0

    def _draw_slice(self) -> None:
        """The disturbances that begin in the next slice of time."""
        begin, end, of = self._drawn, self._drawn + _SLICE_SECONDS, self._of
        if of.stretches:
            gap = of.stretch_seconds * (1 - of.stretches) / of.stretches
            at = begin + self._random.expovariate(1 / gap)
            while at < end:
                until = at + self._random.expovariate(1 / of.stretch_seconds)
                self._stretches.append((at, until, self._draw()))
                end = max(end, until)
                at = until + self._random.expovariate(1 / gap)
        if of.period:
            factor, count = math.sqrt(of.least * of.most), math.ceil(begin / of.period)
            while count * of.period < end:
                self._stretches.append((count * of.period, (count + of.busy) * of.period, factor))
                count += 1
        self._drawn = end


class _Unwatched:
    """A device whose clocks nobody sees."""

    def begin_round(self) -> None:
        """Do nothing."""

    def end_round(self) -> bool:
        """Nothing was seen."""
        return False


class _Batch:
    """A batch of launches on a disturbed device; `rounds.Timed`."""

    def __init__(
        self, device: Disturbed, seconds: Callable[[], float], launches: float, fixed: float, spikes: float = 0.0
    ) -> None:
        self._device, self._seconds, self._spikes = device, seconds, spikes
        self._launches, self._fixed = launches, fixed
        self._last = 0

    def replay(self) -> None:
        """The launches run."""
        seconds = self._seconds()
        factor = self._device.run(self._launches * seconds + self._fixed, self._spikes)
        self._last = round(1e9 * seconds * factor)

    def nanoseconds(self) -> int:
        """Time of a launch in the last replay."""
        return self._last


def _turns(samples: list[int], drawn: random.Random) -> Callable[[], float]:
    """Seconds of a config in its next round: those recorded in turn, then any of them."""
    left = list(reversed(samples))
    return lambda: 1e-9 * (left.pop() if left else drawn.choice(samples))
