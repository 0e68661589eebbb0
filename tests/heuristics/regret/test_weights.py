from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics.regret.matrix import WEIGHT
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.operator import OperatorSpec

# `toy` in bfloat16 moves 2 bytes an element: 8 and 80 bytes, 800 and 8000, 8 MB.
from normtune.results.evidence import Evidence

TINY, SMALL, MIDDLE, LARGER, HUGE = (1, 4), (1, 40), (1, 400), (10, 400), (1000, 4000)


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "mix.csv"
        path.write_text(text)
        return str(path)

    return write


def of(choice: str, spec: OperatorSpec, shapes, variant: str = "", dtype: str = "bfloat16") -> list[int]:
    return Weighting(choice).of(spec, spec.key(dtype, variant), shapes).tolist()


def test_each_decade_of_bytes_counts_the_same(spec: OperatorSpec) -> None:
    # 200 to 800 bytes are one decade of four shapes, 8 MB another with one.
    found = of("decades", spec, [(1, 100), (1, 200), (2, 200), (1, 400), HUGE])
    assert found == [2560, 2560, 2560, 2560, 10240]


def test_a_decade_begins_at_a_power_of_ten_exactly(spec: OperatorSpec) -> None:
    # 998 bytes and 1000 bytes, and once more as 999998 and 1000000.
    for shapes in ([(1, 499), (1, 500)], [(1, 499999), (1, 500000)]):
        below, at = (of("decades", spec, [shape, shapes[0], (1, shapes[0][1] - 1)])[0] for shape in shapes)
        assert below == WEIGHT, "three of one decade count the same"
        assert at == pytest.approx(1.5 * WEIGHT, abs=2), "alone in its decade it counts as much as the other two"


def test_bytes_are_those_of_the_dtype(spec: OperatorSpec) -> None:
    shapes = [(1, 300), (1, 100), (1, 100000)]  # 600 or 1200 bytes, 200 or 400, 2e5 or 4e5
    assert of("decades", spec, shapes)[0] < WEIGHT
    assert of("decades", spec, shapes, dtype="float32") == [WEIGHT] * 3


def test_equal_is_equal(spec: OperatorSpec) -> None:
    assert of("equal", spec, [TINY, SMALL, HUGE]) == [WEIGHT] * 3


@given(sizes=st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**15)), min_size=1, max_size=40, unique=True))
def test_weights_sum_to_exactly_as_much_and_none_is_nothing(real: OperatorSpec, sizes) -> None:
    for choice in ("decades", "equal"):
        found = Weighting(choice).of(real, real.key("bfloat16"), sizes)
        assert found.dtype == np.int64
        assert found.sum() == WEIGHT * len(sizes)
        assert found.min() >= 1


@pytest.fixture(scope="session")
def real() -> OperatorSpec:
    from normtune.kernels.operator import operator

    return operator("rms_norm_forward")


def test_a_file_weighs_what_it_lists_and_the_others_next_to_nothing(file, spec: OperatorSpec) -> None:
    path = file("rows,hidden,weight\n1,4,1\n1,40,2.5\n1,40,.5\n")
    found = of(path, spec, [TINY, SMALL, HUGE])
    # 4095 x 3 in the proportion of 1 to 3 are 3071.25 and 9213.75.
    assert found == [3071 + 1, 9214 + 1, 0 + 1]
    assert sum(found) == 3 * WEIGHT


def test_a_line_may_name_operator_variant_and_dtype(file, spec: OperatorSpec) -> None:
    path = file(
        "operator,dtype,rows,hidden,weight\ntoy,,1,4,1\ntoy:no_keep,,1,40,5\n,float32,1,400,7\nanother,,1000,4000,9\n"
    )
    shapes = [TINY, SMALL, MIDDLE, HUGE]

    def heavy(variant: str, dtype: str) -> list[int]:
        weighting = Weighting(path)
        return [
            place for place, weight in enumerate(weighting.of(spec, spec.key(dtype, variant), shapes)) if weight > 1
        ]

    assert heavy("", "bfloat16") == [0]
    assert heavy("no_keep", "bfloat16") == [0, 1]
    assert heavy("", "float32") == [0, 2]


@pytest.fixture
def two_dtypes(measure, run) -> Evidence:
    """TINY and SMALL in two dtypes."""
    parts = (measure(lambda config, problem: 0.0, [TINY, SMALL], dtype=dtype) for dtype in ("bfloat16", "float32"))
    return Evidence.from_measurements([item for part in parts for item in part], [run])


def test_shapes_without_weight_are_left_out_and_lines_without_a_shape_are_told(file, two_dtypes: Evidence) -> None:
    path = file("rows,hidden,weight,dtype\n1,4,1,bfloat16\n1,40,0,\n9,9,1,\n9,10,1,\n")
    weighting = Weighting(path)
    rest = weighting.weighed(two_dtypes)
    assert [key.dtype for key in rest.function_keys()] == ["bfloat16"]
    assert {*zip(rest.frame["rows"], rest.frame["hidden"], strict=True)} == {TINY}
    assert 0 < len(rest.frame) == len(two_dtypes.frame) / 4
    assert weighting.notes(two_dtypes) == [
        f"2 lines of {path} match no measurement, the first is 9 x 9 ({path}, line 4)"
    ]
    assert Weighting("decades").weighed(two_dtypes) is two_dtypes and Weighting("decades").notes(two_dtypes) == []


def test_a_file_that_meets_nothing_is_refused(file, two_dtypes: Evidence) -> None:
    weighting = Weighting(file("rows,hidden,weight,operator\n1,4,1,toi\n"))
    with pytest.raises(UsageError, match=r"mix.csv has no measured shape, its first is 1 x 4 of 'toi'"):
        weighting.notes(two_dtypes)


def test_a_file_of_shapes_alone_weighs_each_line_the_same(file, spec: OperatorSpec) -> None:
    lines = file("rows,hidden\n1,4\n1,40\n"), file("rows,hidden,weight\n1,4,1\n1,40,1\n")
    one, other = (Weighting(path).of(spec, spec.key("bfloat16"), [TINY, SMALL]).tolist() for path in lines)
    assert one == other == [WEIGHT, WEIGHT]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rows,weight\n1,2\n", "no column 'hidden'"),
        ("rows,hidden,weight\n1,2,1\n0,2,1\n", "line 3: rows is '0', expected a positive integer"),
        ("rows,hidden,weight\n1,2,-1\n", "line 2: weight is '-1', expected a number of at least 0"),
        ("rows,hidden,weight\n1,2,nan\n", "line 2: weight is 'nan'"),
        ("rows,hidden,weight\n1,2,inf\n", "line 2: weight is 'inf'"),
        ("rows,hidden,weight\n1,2,1_0\n", "line 2: weight is '1_0'"),
        ("rows,hidden,weight\n1,2,\n", "line 2: weight is ''"),
        ("rows,hidden,weight\n1,2,0\n", "has no weight above 0"),
    ],
)
def test_wrong_files_are_told_by_line(file, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Weighting(file(text))


def test_a_choice_that_is_neither_a_name_nor_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="decade does not exist"):
        Weighting(str(tmp_path / "decade"))
