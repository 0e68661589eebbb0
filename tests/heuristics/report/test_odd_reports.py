"""Reports of what is unlike the recording: a stranger's times, one shape, 900 scattered ones, a search, an operator."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import normtune
from normtune.heuristics.api.report import Report
from normtune.heuristics.report.pictures import of_function
from normtune.kernels.load_file import load
from normtune.tests.heuristics.report.conftest import parsed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("operators_forgotten")]

EXAMPLES = Path(__file__).parents[3] / "examples"


def stranger(shapes: Iterable[tuple[int, int]], left_out: bool = False) -> Report:
    """The report of a table of another program's times, which may lack most configs at most shapes."""
    rows = [
        ("their_norm", "bfloat16", rows, hidden, warps, 2 + rows * hidden / 1e6 * (1 + 0.1 * abs(warps - hidden / 512)))
        for number, (rows, hidden) in enumerate(shapes)
        for warps in (1, 2, 4, 8)
        if warps == 4 or not left_out or number % 4 == 0
    ]
    frame = pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "num_warps", "microseconds"])
    table = normtune.fit(frame, name="Their GPU", target="sm_90", leaves=min(5, max(1, len(rows) // 40)))
    table.save("theirs.py", evidence="theirs.parquet", force=True)
    return normtune.report("theirs.py")


@pytest.mark.slow
def test_one_shape_has_a_page(here: Path) -> None:
    report = stranger([(64, 512)])
    (function,) = report.devices[0].functions
    assert len(function.shapes) == len(function.regions()) == 1 and function.shapes["ties"].isna().all()
    page = parsed(report.page())
    assert "1 region of shapes" in page.text
    assert "unpaired, not gated" in page.text
    assert [side["name"] for side in page.data["functions"][0]["sides"]] == ["theirs.py"]


@pytest.mark.slow
def test_900_scattered_shapes_have_a_page(here: Path) -> None:
    draw = np.random.default_rng(0)
    shapes = {(int(2**x), int(2**y)) for x, y in zip(draw.uniform(0, 16, 930), draw.uniform(6, 14, 930), strict=True)}
    report = stranger([*sorted(shapes)[:900]])
    (function,) = report.devices[0].functions
    assert len(function.shapes) == 900 and len(function.gaps) == 0
    assert len(report.page()) < 1_500_000


def test_what_a_search_left_out_is_shown_as_such(here: Path) -> None:
    (function,) = (
        stranger([(1 << x, 1 << y) for x in range(8) for y in range(6, 12)], left_out=True).devices[0].functions
    )
    share = function.shapes["timed"] / function.shapes["legal"]
    assert share.min() == 0.25 and share.max() == 1 and 0.25 < share.mean() < 0.5
    values = of_function(function, "measured", None, None, "")["datasets"]["shapes"]
    assert [row["timed"] / row["legal"] for row in values] == share.tolist()


@pytest.mark.slow
def test_an_operator_of_three_sizes_and_a_derived_one_has_a_page(here: Path) -> None:
    load(EXAMPLES / "matmul.py")
    report = normtune.report(str(EXAMPLES / "matmul_h200.py"))
    (function,) = report.devices[0].functions
    assert function.plane.axes == ("m", "n", "k") and not function.regions()["border"].any()
    report.plot("map.png", at=8192)
    with pytest.raises(normtune.UsageError, match="at is 7: expected one of the measured k, 1024, 4096, 8192, 14336"):
        report.plot("map.png", at=7)
    shapes = of_function(function, "map", None, 8192, "")["datasets"]["shapes"]
    assert len(shapes) == 28 and {row["z"] for row in shapes} == {8192}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "liger/rms_norm"])
def test_operators_of_strangers_have_pages(here: Path, name: str) -> None:
    load(EXAMPLES / f"{name}.py")
    report = normtune.report(str(EXAMPLES / f"{name}_h200.py"))
    page = parsed(report.page())
    assert len(page.data["functions"]) == len(report.devices[0].functions) >= 1
    assert all(len(function["sides"]) > 1 for function in page.data["functions"])
