"""A size computed from others: its normal form and its values."""

import pytest

from normtune.kernels.box import Box
from normtune.kernels.sizes import is_derived, located, normal_form, size_along


@pytest.mark.parametrize(
    ("expression", "normal", "value"),
    [
        ("m*n", "m * n", 6500),
        ("cdiv(m, 64) * cdiv(n, 64)", "(m + 63) // 64 * ((n + 63) // 64)", 4),
        ("cdiv(m, 2) + n", "(m + 1) // 2 + n", 133),
        ("(m + 2) * 3 // 2", "(m + 2) * 3 // 2", 100),
        ("2 * m", "2 * m", 130),
    ],
)
def test_an_expression_is_written_as_python_and_has_its_value(expression, normal, value) -> None:
    assert normal_form(expression, ("m", "n")) == normal == normal_form(normal, ("m", "n"))
    assert size_along(normal, ("m", "n"), (65, 100)) == value == eval(normal, {"m": 65, "n": 100})
    assert located((65, 100), ("m", "n", normal)) == (65, 100, value)
    assert is_derived(normal) and not is_derived("m")


@pytest.mark.parametrize(
    "expression",
    [
        *("m", "m - n", "m ** n", "other * m", "m * 0", "m // n", "-m", "3", "m * True", "f(m)", "cdiv(m, n)", "m < n"),
        *("(", "m * " * 30 + "m", "(" * 500 + "m" + ")" * 500, "m; n", "__import__('os')"),
    ],
)
def test_what_may_fall_or_is_no_expression_is_refused(expression) -> None:
    with pytest.raises(ValueError, match="expected sums, products"):
        normal_form(expression, ("m", "n"))


def test_a_quotient_that_begins_at_0_is_refused() -> None:
    with pytest.raises(ValueError, match="is 0 at the smallest shape: expected cdiv"):
        normal_form("m // 64", ("m", "n"))


def test_a_box_bounds_derived_sizes_of_the_shapes_in_it() -> None:
    box = Box.of(**{"m": (1, 8), "n": (1, 8), "m * n": (1, 64)})
    low, high = box.cut("m * n", 32)
    assert low.holds((4, 7)) and not low.holds((4, 8)) and high.holds((4, 8)) and not high.holds((9, 8))
