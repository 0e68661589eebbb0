"""Moves thresholds of counts, such as rows, to where the interpolated times of both sides are equal.

A threshold moves between the two measured counts beside it, so every measured shape keeps its config. Log-time is
interpolated linearly in log count between two measured counts. So is the excess regret of the configs below the
threshold over those above it, summed over the other sizes of its region: a at the smaller count, b at the larger. In
the first part -a / (b - a) of the gap, by ratio, the configs below lose less. The roundest integer near its end is
taken.
"""

from bisect import bisect_left
from math import isqrt

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.grid import roundest
from normtune.kernels.box import Box, Interval
from normtune.kernels.derived_size import is_derived
from normtune.kernels.problem import MAX_ROWS, Shape
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
        place = self._matrix.axes.index(cut.axis)
        # The other sizes of the region, with any counts.
        wide = box.with_interval(Interval(cut.axis, 1, MAX_ROWS))
        lines = sorted({(shape[:place], shape[place + 1 :]) for shape in self._matrix.problems if wide.holds(shape)})
        lower, upper = map(sum, zip(*(self._excess(cut, gap, *line) for line in lines), strict=True))
        if lower >= upper:
            return None
        part = min(max((-2 * _PARTS * lower // (upper - lower) + 1) // 2, 0), _PARTS)
        least = max(_between(low, high, max(part - _NEAR, 0)), low + 1)
        most = max(_between(low, high, min(part + _NEAR, _PARTS)), least)
        return roundest(least, most, _between(low, high, part) ** 2)

    def _excess(self, cut: Split, gap: tuple[int, int], before: Shape, behind: Shape) -> tuple[int, int]:
        """At each end of a gap, the weighted excess regret of the lower side's config; 0 unless all four are known.

        `before` and `behind` are the sizes of the axes before that of the gap and behind it.
        """
        ends = [(*before, count, *behind) for count in gap]
        axes = self._matrix.axes
        configs = [choose(side, end, axes) for side, end in zip((cut.low, cut.high), ends, strict=True)]
        places = [self._places[end] for end in ends if end in self._places]
        losses = [
            loss for place in places for config in configs if (loss := self._matrix.loss(place, config)) is not None
        ]
        if len(losses) < 4:
            return 0, 0
        weight = sum(int(self._matrix.weight[place]) for place in places)
        return (losses[0] - losses[1]) * weight, (losses[2] - losses[3]) * weight


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
