"""The bins in which trees are fitted: every cut between two measured sizes has one fixed threshold.

In: measured sizes and the largest size that can occur. Out: `Axis`: the bins of one axis, which cover all integers from
1 on. Because thresholds are fixed beforehand, the region of any rectangle of bins is known exactly.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from normtune.heuristics.thresholds import hidden_threshold, rows_threshold


class Axis(NamedTuple):
    """Bins of one axis.

    Attributes:
        name: `rows` or `hidden`.
        tops: the largest integer of each bin, ascending; bin i starts above the top of bin i - 1.
        beyond: whether the last bin lies beyond all measured sizes.
    """

    name: str
    tops: tuple[int, ...]
    beyond: bool

    def bin(self, size: int) -> int:
        """The bin of a size; the last one for what exceeds all tops."""
        return min(bisect_left(self.tops, size), len(self.tops) - 1)

    def threshold(self, cut: int) -> int:
        """The threshold between bins cut - 1 and cut, as the code compares it: `hidden <= T`, `rows >= T`."""
        return self.tops[cut - 1] + (self.name == "rows")

    def cut(self, threshold: int) -> int:
        """The cut of a threshold: the inverse of `threshold` for those of the axis, else the nearest cut below it."""
        return bisect_right(self.tops, threshold - (self.name == "rows"))

    def without_beyond(self) -> "Axis":
        """The same bins, where the last measured one answers for everything beyond."""
        return Axis(self.name, (*self.tops[:-2], self.tops[-1]), False) if self.beyond else self


def axis(name: str, sizes: Iterable[int], limit: int) -> Axis:
    """The axis of these measured sizes.

    Args:
        name: `rows` or `hidden`.
        sizes: measured, in any order, at least one, none above `limit`.
        limit: the largest size that can occur; where it exceeds the largest measured size, a last bin holds what lies
            beyond, and its threshold is right at the measured size.
    """
    values: Sequence[int] = sorted(set(sizes))
    tops = [
        hidden_threshold(low, high) if name == "hidden" else rows_threshold(low, high) - 1
        for low, high in pairwise(values)
    ]
    beyond = values[-1] < limit
    return Axis(name, (*tops, values[-1], limit) if beyond else (*tops, values[-1]), beyond)


def coarsened(rows: Axis, hidden: Axis, most: int) -> tuple[Axis, Axis]:
    """The axes with at most `most` pairs of bins: the bins of sizes that are nearest, as ratios, are joined first."""
    axes = {"rows": rows, "hidden": hidden}
    while len(axes["rows"].tops) * len(axes["hidden"].tops) > most:
        _, name, place = min(
            (Fraction(tops[place + 1], tops[place]), name, place)
            for name, (_, tops, beyond) in axes.items()
            # What lies beyond stays apart from what was measured.
            for place in range(len(tops) - 1 - beyond)
        )
        _, tops, beyond = axes[name]
        axes[name] = Axis(name, (*tops[:place], *tops[place + 1 :]), beyond)
    return axes["rows"], axes["hidden"]
