from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.heuristics.regret.fixed_log import log_ppm, percent

getcontext().prec = 30


@pytest.mark.slow
@given(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=20))
def test_micrologs_are_rounded_logarithms(values: list[int]) -> None:
    found = log_ppm(np.array(values, np.int64))
    for value, log in zip(values, found, strict=True):
        assert abs(Decimal(int(log)) - Decimal(value).ln() * 1_000_000) <= Decimal("0.500001")


def test_micrologs_keep_the_shape_and_are_integers() -> None:
    found = log_ppm(np.array([[1, 2], [4, 1000]], np.int32))
    assert found.dtype == np.int64
    assert found.tolist() == [[0, 693147], [1386294, 6907755]]


def test_percent_is_the_slowdown_and_never_minus_zero() -> None:
    assert percent(693147) == "100.00 %"
    assert percent(-20) == "0.00 %"
    assert percent(-5000) == "-0.50 %"
    assert percent(19803, 1) == "2.0 %"
