"""Columns of numbers as short texts, which a page unpacks: a recording has tens of thousands of numbers.

A number is a whole multiple of the column's unit, counted from its least, and written in as many digits to the base of
an alphabet as its column needs; 0 stands for a missing one. page.js has the inverse.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Printable ASCII that neither JSON nor HTML writes in another way.
ALPHABET = "".join(character for character in map(chr, range(33, 127)) if character not in "\"\\<>&'`")
_BASE = len(ALPHABET)
# Levels of a deviation to either side.
HALF = (_BASE - 2) // 2
# Up to here levels of a deviation are even, beyond they widen in proportion to it.
FINE = 2e-3
_DIGITS = np.array(list(ALPHABET))


def packed(values: "Sequence[Any] | NDArray[Any] | pd.Series[Any]", unit: float = 1.0) -> dict[str, Any]:
    """A column: digits (of a number), least, unit and text; nan is a missing number."""
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
    """Numbers of at most `most`, either way, in one character each: finest around 0; nan is the last character."""
    codes = np.rint(np.arcsinh(values / FINE) / np.arcsinh(most / FINE) * HALF) + HALF
    return "".join(_DIGITS[np.where(np.isnan(codes), _BASE - 1, codes).astype(np.int64)].ravel().tolist())
