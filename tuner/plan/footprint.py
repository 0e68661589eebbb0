"""Device memory of a problem during its measurement.

In: a problem. Out: bytes. Pure, so that a plan can leave out problems that do not fit. The device has the last word.
"""

from math import prod

from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.tuner.timing.protocol import timed_launches

# The reference in float64: inputs, results, tolerances and intermediates, bytes per element of the largest tensor.
# Measured as torch's peak on an H200.
_REFERENCE_BYTES = 80
# Context, loaded kernels, evicting read and sentinel of the timing, the allocator's overhead.
_FIXED_BYTES = 1 << 30


def peak_bytes(problem: Problem) -> int:
    """Most device memory of gate, timing and check of a problem, bytes."""
    spec = operator(problem.operator)
    footprint = spec.bytes_moved(problem)
    # The lead-in and timed launches have slices of their own; the copy beside them has as many.
    timing = 2 * (1 + timed_launches(footprint)) * footprint
    largest = max(prod(buffer.shape) for buffer in spec.buffers(problem))  # of qk_norm all heads of a token
    return _FIXED_BYTES + timing + _REFERENCE_BYTES * largest
