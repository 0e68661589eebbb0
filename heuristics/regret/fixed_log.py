"""Natural logarithms in log_ppm (millionths), as integers that are identical on every processor.

Only additions, multiplications and divisions of doubles are used, which IEEE 754 rounds identically everywhere; numpy's
logarithm depends on the processor's instructions and may differ in the last bit.
"""

import math

import numpy as np
from numpy.typing import NDArray

MILLION = 1_000_000
_LN2 = 0.6931471805599453
# |s| is at most 0.1716 below, so the tenth term of the series is under 1e-15 of the sum.
_TERMS = 10


def log_ppm(values: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
    """The natural logarithm of each value, in millionths, rounded to the nearest integer.

    Args:
        values: integers of at least 1, below 2**53, of any shape.

    Returns:
        int64 of the same shape. By log m = 2 artanh((m - 1) / (m + 1)), with m between sqrt(1/2) and sqrt(2).
    """
    mantissa, exponent = np.frexp(values.astype(np.float64))
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = exponent.astype(np.float64) - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(s, 1.0 / (2 * _TERMS + 1))
    for term in range(_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return np.rint((exponent * _LN2 + 2.0 * s * series) * MILLION).astype(np.int64)


def fraction(regret: float) -> float:
    """The slowdown of a log-regret in log_ppm as a fraction, 0.0192 for 1.92 %."""
    return math.expm1(regret / MILLION)


def percent(regret: int, digits: int = 2) -> str:
    """The slowdown of a log-regret in log_ppm as text, `1.92 %`."""
    value = round(100 * fraction(regret), digits)
    return f"{value or 0:.{digits}f} %"  # `or 0` prints -0.0 without a sign


def ratio(regret: int, up: bool = False) -> str:
    """A log-regret in log_ppm as a ratio of times, `1.1`, with at most four decimals; optionally rounded up."""
    value = math.exp(regret / MILLION)
    return f"{math.ceil(value * 10_000) / 10_000 if up else value:.4f}".rstrip("0").rstrip(".")


def ratio_in_words(log: float) -> str:
    """The logarithm of a ratio of times, in log_ppm, as words: `13 % faster than`."""
    ratio = math.exp(log / MILLION)
    if ratio >= 2:
        return f"{ratio:.1f} times as fast as"
    if round(100 * (ratio - 1)) == 0:
        return "as fast as"
    return f"{100 * (ratio - 1):.0f} % faster than" if ratio > 1 else f"{100 * (1 / ratio - 1):.0f} % slower than"


def percent_up(regret: int) -> str:
    """The same as `percent`, but rounded up, for a bound."""
    return f"{math.ceil(round(10_000 * fraction(regret), 6)) / 100 or 0:.2f} %"
