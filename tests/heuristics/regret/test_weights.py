from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.heuristics.regret.matrix import WEIGHT
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.results.evidence import Evidence

TINY, SMALL, MIDDLE, LARGER, HUGE = (1, 4), (1, 40), (1, 400), (10, 400), (1000, 4000)


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "mix.csv"
        path.write_text(text)
        return str(path)

    return write


def of(file: str, spec: OperatorSpec, shapes, variant: str = "", dtype: str = "bfloat16") -> list[int]:
    return Weighting(file).of(spec.key(dtype, variant), shapes).tolist()


def test_weights_are_equal_without_a_file() -> None:
    assert Weighting(None).of(Key.of("toy", "", "bfloat16"), [TINY, SMALL, HUGE]) is None


@given(weights=st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_weights_sum_to_exactly_as_much_and_none_is_nothing(tmp_path_factory, weights: list[int]) -> None:
    path = tmp_path_factory.mktemp("weights") / "mix.csv"
    path.write_text(
        "rows,hidden,weight\n" + "".join(f"{place},8,{weight}\n" for place, weight in enumerate(weights, 1))
    )
    found = Weighting(str(path)).of(Key.of("toy", "", "bfloat16"), [(place, 8) for place, _ in enumerate(weights, 1)])
    assert found is not None and found.dtype == np.int64
    assert found.sum() == WEIGHT * len(weights)
    assert found.min() >= 1


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
        return [place for place, weight in enumerate(weighting.of(spec.key(dtype, variant), shapes)) if weight > 1]

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
    assert Weighting(None).weighed(two_dtypes) is two_dtypes and Weighting(None).notes(two_dtypes) == []


def test_a_file_that_meets_nothing_is_refused(file, two_dtypes: Evidence) -> None:
    weighting = Weighting(file("rows,hidden,weight,operator\n1,4,1,toi\n"))
    with pytest.raises(UsageError, match=r"mix.csv has no measured shape, its first is 1 x 4 of 'toi'"):
        weighting.notes(two_dtypes)


def test_a_file_of_shapes_alone_weighs_each_line_the_same(file, spec: OperatorSpec) -> None:
    lines = file("rows,hidden\n1,4\n1,40\n"), file("rows,hidden,weight\n1,4,1\n1,40,1\n")
    one, other = (Weighting(path).of(spec.key("bfloat16"), [TINY, SMALL]).tolist() for path in lines)
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
