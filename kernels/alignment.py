"""Alignment of row lengths for the compiler: accesses are only as wide as it can prove them to be aligned.

In: lengths in elements. Out: a power of two.
"""

from math import gcd


def alignment_of(*extents: int) -> int:
    """The largest power of two up to 16 that divides all extents (hidden and row strides, in elements)."""
    return gcd(16, *extents)
