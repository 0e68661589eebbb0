"""Compresses columns of numbers to short texts for the page, which has tens of thousands of numbers.

A number is rounded to a multiple of the column's unit. Its distance from the column's minimum plus one, in units, is
written with a fixed number of digits, whose base is the size of `ALPHABET`; 0 is a missing number. page.js unpacks it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Printable ASCII that needs no escape in JSON or HTML.
ALPHABET = "".join(character for character in map(chr, range(33, 127)) if character not in "\"\\<>&'`")
_BASE = len(ALPHABET)
# Levels of a deviation on either side of 0.
HALF = (_BASE - 2) // 2
# Up to this deviation the levels are evenly spaced; beyond, their distance grows in proportion to the deviation.
FINE = 2e-3
_DIGITS = np.array(list(ALPHABET))


def packed(values: "Sequence[Any] | NDArray[Any] | pd.Series[Any]", unit: float = 1.0) -> dict[str, Any]:
    """A packed column: digits of a number, least (the minimum in units), unit and text; nan is a missing number."""
    numbers = np.asarray(values, np.float64)
    whole = np.rint(numbers / unit)
    known = np.isfinite(whole)
    least = int(whole[known].min()) if known.any() else 0
    codes = np.where(known, whole - least + 1, 0).astype(np.int64)
    digits = 1
    while codes.size and _BASE**digits <= codes.max():
        digits += 1
    places = (codes[:, None] // _BASE ** np.arange(digits - 1, -1, -1)) % _BASE
    return {"digits": digits, "least": least, "unit": unit, "text": "".join(_DIGITS[places].ravel().tolist())}


def deviations(values: NDArray[np.float64], most: float) -> str:
    """Numbers from -`most` to `most` in one character each, most precise around 0; nan is the last character."""
    codes = np.rint(np.arcsinh(values / FINE) / np.arcsinh(most / FINE) * HALF) + HALF
    return "".join(_DIGITS[np.where(np.isnan(codes), _BASE - 1, codes).astype(np.int64)].ravel().tolist())
