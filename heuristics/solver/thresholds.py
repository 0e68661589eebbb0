"""Threshold of a cut between two measured sizes: an integer that people recognise.

In: two neighbouring sizes of the grid. Out: the threshold. The data cannot tell which integer between them is best, so
the roundest is taken: a power of two, else a multiple of 1024, 512, 256, 128, 64, 100 or 10, else any; among equally
round ones the nearest to the geometric middle, and the smaller of two as near.

Some hidden sizes are unlike their neighbours: tiles fill a row of a power of two columns, and chunks one of a multiple
of 4096, without a remainder. What is true of such a size is true of it alone, so the gap beside it belongs to its other
end. (On the recorded H200 at 64 shapes of no grid, in three dtypes: with this rule 64 leaves lose 0.44 % backward, 6.6
% at worst; with the roundest integer of each gap 0.80 and 25 %.) Between two sizes that are both so, or both not, any
integer of the gap may be taken, because blocks of columns are powers of two: what is true of the smaller size ends
there. Rows have no such end. If all measured row counts are powers of two, the roundest integer of a gap is its end,
and all sizes between would go to one side. So row thresholds stay in the middle half of the gap, by ratio; `crossing`
moves those of the tree that was chosen.
"""

from math import isqrt

# Columns of the longest chunk.
_CHUNK = 4096
_ROUND = (1024, 512, 256, 128, 64, 100, 10, 1)


def hidden_threshold(low: int, high: int) -> int:
    """T of `hidden <= T`, with low <= T < high."""
    if _is_filled(low) != _is_filled(high):
        return low if _is_filled(low) else high - 1
    return roundest(low, high - 1, low * high)


def _is_filled(hidden: int) -> bool:
    """Whether tiles or chunks fill a row without a remainder."""
    return hidden & (hidden - 1) == 0 or hidden % _CHUNK == 0


def rows_threshold(low: int, high: int) -> int:
    """T of `rows >= T`, with low < T <= high, from the middle half of the gap if that has an integer."""
    least, most = middle_half(low, high)
    return roundest(least, most, low * high) if least <= most else roundest(low + 1, high, low * high)


def middle_half(low: int, high: int) -> tuple[int, int]:
    """The least and the largest integer from low (high / low)^(1/4) to low (high / low)^(3/4), for 0 < low < high.

    The first is greater than the second if there is none.
    """
    return isqrt(isqrt(low**3 * high - 1)) + 1, isqrt(isqrt(low * high**3))


def roundness(threshold: int) -> int:
    """Rank of an integer's roundness: 0 for a power of two, larger for less round ones."""
    if threshold & (threshold - 1) == 0:
        return 0
    return 1 + next(rank for rank, unit in enumerate(_ROUND) if threshold % unit == 0)


def roundest(least: int, most: int, middle_squared: int) -> int:
    """The roundest integer from `least` to `most`, ends included.

    Args:
        least: positive.
        most: at least as much.
        middle_squared: square of the preferred middle among equally round ones, at least 1.
    """
    powers = [1 << bit for bit in range(most.bit_length()) if least <= 1 << bit <= most]
    if powers:
        return _nearest(powers, middle_squared)
    middle = isqrt(middle_squared)
    for unit in _ROUND:
        first, last = -(-least // unit) * unit, most // unit * unit
        if first <= last:
            below = min(max(middle // unit * unit, first), last)
            return _nearest([below, min(below + unit, last)], middle_squared)
    raise ValueError(f"no integer from {least} to {most}")


def _nearest(candidates: list[int], middle_squared: int) -> int:
    """The candidate whose ratio to the middle is least; of ascending candidates, the first of equals."""
    best = candidates[0]
    for candidate in candidates[1:]:
        # Ratios of squares, compared as products to avoid rounding.
        near = max(candidate * candidate, middle_squared) * min(best * best, middle_squared)
        far = max(best * best, middle_squared) * min(candidate * candidate, middle_squared)
        if near < far:
            best = candidate
    return best
