"""How much device memory a problem takes while it is measured.

In: a problem. Out: bytes. Pure, so that a plan can leave out what does not fit; what really does not fit is found out
by the device.
"""

from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.tuner.timing.protocol import timed_launches

# The reference in float64: inputs, results, tolerances and what is in between, bytes an element of the largest tensor.
# Measured as torch's peak on an H200.
_REFERENCE_BYTES = 80
# Context, loaded kernels, evicting read and sentinel of the timing, allocator's rest.
_FIXED_BYTES = 1 << 30


def peak_bytes(problem: Problem) -> int:
    """Device memory that gate, timing and check of a problem take at most, bytes."""
    spec = operator(problem.operator)
    footprint = spec.bytes_moved(problem)
    # A lead-in and the timed launches have slices of their own, and the copy beside them as many.
    timing = 2 * (1 + timed_launches(footprint)) * footprint
    return _FIXED_BYTES + timing + _REFERENCE_BYTES * problem.rows * problem.hidden
