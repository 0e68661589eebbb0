"""Moves thresholds of counts, such as rows, to where the interpolated times of both sides are equal.

A threshold moves in the gap between the two measured counts beside it, so every measured shape keeps its config.
Log-time is interpolated linearly in log count; at each combination of the other sizes between the nearest counts at
which both configs have times, since a grid need not have all counts there. So is the excess regret of the configs below
the threshold over those above it, summed over the other sizes of its region: a at the smaller count, b at the larger.
In the first part -a / (b - a) of the gap, by ratio, the configs below lose less. The roundest integer near its end is
taken; but where in the gap the programs of a config fill the GPU, the count after that, since times jump there and
the line between two measured counts does not know it.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from fractions import Fraction
from functools import partial
from math import isqrt
from operator import itemgetter

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.grid import roundest
from normtune.kernels.box import Box, Interval
from normtune.kernels.config import Config
from normtune.kernels.problem import MAX_ROWS, Shape
from normtune.kernels.sizes import is_derived
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, comparison, halves, regions

# A gap has 2**4 parts of equal ratio. To be rounder, a threshold may be `_NEAR` parts away from the crossing: at the
# held-out shapes of the recorded H200, the losses with 0 to 4 parts differ by 0.02 %.
_HALVINGS, _NEAR = 4, 2
_PARTS = 1 << _HALVINGS


def at_crossings(matrix: TimingMatrix, legality: Legality, tree: Tree) -> Tree:
    """The tree with thresholds of counts where times cross; those without known times, or not legal there, stay.

    `matrix` has all measurements; the tree is legal.
    """
    moved = _Crossing(matrix.assumed, legality).of(tree, legality.spec.whole)
    # The legality of each threshold was checked separately, at its largest shape only.
    return tree if any(legality.breaches(moved)) else moved


class _Crossing:
    def __init__(self, matrix: TimingMatrix, legality: Legality) -> None:
        self._matrix, self._legality = matrix, legality
        self._places = {shape: place for place, shape in enumerate(matrix.problems)}

    def of(self, tree: Tree, box: Box) -> Tree:
        """A part of the tree with moved thresholds; `box` is its region."""
        if isinstance(tree, Leaf):
            return tree
        if _is_count(tree.axis):
            tree = self._moved(tree, box)
        low, high = halves(tree, box)
        return tree._replace(low=self.of(tree.low, low), high=self.of(tree.high, high))

    def _moved(self, cut: Split, box: Box) -> Split:
        gap = _gap(self._matrix, cut, box)
        threshold = gap and self._threshold(cut, gap, box)
        if not threshold:
            return cut
        moved = cut._replace(threshold=threshold)
        # The part above can only lose its smallest sizes, so it stays legal.
        below, _ = halves(moved, box)
        is_legal = all(self._legality.reaches(config, part.largest) for config, part in regions(cut.low, below))
        return moved if is_legal else cut

    def _threshold(self, cut: Split, gap: tuple[int, int], box: Box) -> int | None:
        """The threshold in a gap; None if the times do not cross."""
        low, high = gap
        # The other sizes of the region, with any counts.
        wide = box.with_interval(Interval(cut.axis, 1, MAX_ROWS))
        place = self._matrix.axes.index(cut.axis)
        lines: dict[Shape, list[Shape]] = defaultdict(list)
        for shape in self._matrix.problems:
            if wide.holds(shape):
                lines[shape[:place] + shape[place + 1 :]].append(shape)
        lower = upper = 0
        full: set[int] = set()
        for line in lines.values():
            ends = [(*line[0][:place], count, *line[0][place + 1 :]) for count in gap]
            configs = [
                choose(side, end, self._matrix.axes) for side, end in zip((cut.low, cut.high), ends, strict=True)
            ]
            excess = self._excess(configs, gap, line, place)
            lower, upper = lower + excess[0], upper + excess[1]
            for config in configs:
                full.update(self._full_wave(config, gap, ends))
        if lower >= upper:
            return None
        part = min(max((-2 * _PARTS * lower // (upper - lower) + 1) // 2, 0), _PARTS)
        crossing = max(_between(low, high, part), low + 1)
        if full:
            return min(full, key=lambda count: (Fraction(max(count, crossing), min(count, crossing)), count))
        least = max(_between(low, high, max(part - _NEAR, 0)), low + 1)
        most = max(_between(low, high, min(part + _NEAR, _PARTS)), least)
        return roundest(least, most, crossing**2)

    def _full_wave(self, config: Config, gap: tuple[int, int], ends: list[Shape]) -> list[int]:
        """The count in a gap at which a config has a program more than fills the GPU, once or several times.

        None if there are several, of which each is a small part of the time, or in a wide gap, in which it may lie far
        from where times cross.
        """
        if gap[1] > 2 * gap[0]:
            return []
        target = self._legality.target
        first, last = (self._legality.launch(config, end) for end in ends)
        warps = getattr(config, "num_warps", None)
        if first is None or last is None or not warps or last.grid <= first.grid:
            return []
        (low, high), wave = gap, target.sms * max(1, target.resident_threads // (warps * target.warp_size))
        counts = [number * wave * low // first.grid + 1 for number in range(first.grid // wave, last.grid // wave + 1)]
        inside = [count for count in counts if low < count <= high]
        return inside if len(inside) == 1 else []

    def _excess(self, configs: list[Config], gap: tuple[int, int], line: list[Shape], place: int) -> tuple[int, int]:
        """At each end of a gap, the weighted excess regret of the first config; 0 where it is unknown.

        `line` has the measured shapes of equal other sizes, whose counts are at `place`.
        """
        # By count the excess, and the weight of the shape.
        known: list[tuple[int, int, int]] = []
        for shape in sorted(line):
            index = self._places[shape]
            below, above = (self._matrix.loss(index, config) for config in configs)
            if below is not None and above is not None:
                known.append((shape[place], below - above, int(self._matrix.weight[index])))
        last = bisect_right(known, gap[0], key=itemgetter(0)) - 1
        first = bisect_left(known, gap[1], key=itemgetter(0))
        if last < 0 or first == len(known):
            return 0, 0
        (low, lower, one), (high, upper, other) = known[last], known[first]
        parts = (bisect_right(range(1, _PARTS + 1), count, key=partial(_between, low, high)) for count in gap)
        lower, upper = (lower * (_PARTS - part) + upper * part for part in parts)
        return lower * (one + other), upper * (one + other)


def _is_count(axis: str) -> bool:
    return comparison(axis) == ">=" and not is_derived(axis)


def _gap(matrix: TimingMatrix, cut: Split, box: Box) -> tuple[int, int] | None:
    """The measured counts of a box next to a threshold, below and above; None beyond them."""
    place = matrix.axes.index(cut.axis)
    counts = sorted({shape[place] for shape in matrix.problems if box.holds(shape)})
    above = bisect_left(counts, cut.threshold)
    return (counts[above - 1], counts[above]) if 0 < above < len(counts) else None


def _between(low: int, high: int, part: int) -> int:
    """The integer at or below low (high / low)^(part / _PARTS), for positive integers."""
    power = low ** (_PARTS - part) * high**part
    for _ in range(_HALVINGS):
        power = isqrt(power)
    return power
