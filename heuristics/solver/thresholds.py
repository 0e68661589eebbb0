"""Where a cut between two measured sizes is placed: at an integer that people recognise.

In: two neighbouring sizes of the grid. Out: the threshold. The data cannot tell which integer between them is best, so
the roundest is taken: a power of two, else a multiple of 1024, 512, 256, 128, 64, 100 or 10, else any; among equally
round ones the nearest to the geometric middle, and the smaller of two as near.

Some hidden sizes are unlike their neighbours: tiles fill a row of a power of two columns, and chunks one of a multiple
of 4096, without a rest. What is true of such a size is true of it alone, so the gap beside it goes with its other end.
(On the recorded H200 at 64 shapes of no grid, in three dtypes: 64 leaves lose 0.44 % backward so, 6.6 % at worst, and
0.80 and 25 % with the roundest integer of each gap.) Between two sizes that are both so, or both not, any integer of
the gap may be taken, as blocks of columns are powers of two: what is true of the smaller size ends there. Rows know no
such end, and where all measured row counts are powers of two the roundest integer of a gap is its end, so that
everything in between would go with one side. So row thresholds keep to the middle half of the gap, by ratio.
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
    """Whether tiles or chunks fill a row without a rest."""
    return hidden & (hidden - 1) == 0 or hidden % _CHUNK == 0


def rows_threshold(low: int, high: int) -> int:
    """T of `rows >= T`, with low < T <= high, of the middle half of the gap where that has an integer."""
    least, most = middle_half(low, high)
    return roundest(least, most, low * high) if least <= most else roundest(low + 1, high, low * high)


def middle_half(low: int, high: int) -> tuple[int, int]:
    """The least and the largest integer from low (high / low)^(1/4) to low (high / low)^(3/4), for 0 < low < high.

    The first is greater than the second where there is none.
    """
    return isqrt(isqrt(low**3 * high - 1)) + 1, isqrt(isqrt(low * high**3))


def roundness(threshold: int) -> int:
    """How round an integer is, 0 for a power of two, larger for what people recognise less."""
    if threshold & (threshold - 1) == 0:
        return 0
    return 1 + next(place for place, unit in enumerate(_ROUND) if threshold % unit == 0)


def roundest(least: int, most: int, middle_squared: int) -> int:
    """The integer from `least` to `most`, ends included, that people recognise best.

    Args:
        least: positive.
        most: at least as much.
        middle_squared: the square of what is nearest among equally round ones, at least 1.
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
    """The candidate whose ratio to the middle is least; ascending candidates, the first of equals."""
    best = candidates[0]
    for candidate in candidates[1:]:
        # Ratios of squares, compared as products so that no rounding decides.
        near = max(candidate * candidate, middle_squared) * min(best * best, middle_squared)
        far = max(best * best, middle_squared) * min(candidate * candidate, middle_squared)
        if near < far:
            best = candidate
    return best
