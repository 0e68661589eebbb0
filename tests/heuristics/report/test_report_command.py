"""`normtune report` and `normtune plot`: files of the right kind, and errors of one line."""

import struct
import sys
from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.api.report import Report
from normtune.heuristics.report.pictures import KINDS
from normtune.tests.commands import main, one_line, refused, succeed
from normtune.tests.heuristics.report.conftest import parsed

pytestmark = pytest.mark.long


def test_a_store_becomes_a_page(store: str, here: Path) -> None:
    text = succeed("report", "--store", store)
    note, text = text.split("\n", 1)
    assert note == "normtune: fitting 300 measurements; a TABLE is shown at once"
    assert text.startswith("wrote report.html: fitted table on Test GPU, ")
    assert "toy bfloat16" in parsed((here / "report.html").read_text()).text


def test_a_table_is_shown_with_the_measurements_that_it_names(store: str, here: Path) -> None:
    normtune.fit(store, leaves=2).save("two.py", evidence="two.parquet")
    Path("none.db").touch()
    (part,) = normtune.report("two.py").devices
    (function,) = part.functions
    assert len(function.regions()) == 2 and ": 300 measurements, " in part.label


def test_two_tables_are_compared(store: str, here: Path) -> None:
    (here / "tables").mkdir()
    for leaves in (1, 3):
        normtune.fit(store, leaves=leaves).save(f"tables/t{leaves}.py")
    ((function,),) = (part.functions for part in normtune.report(["tables/t3.py", "tables/t1.py"], store).devices)
    difference = [*normtune.diff("tables/t3.py", "tables/t1.py", store).verdict()][2].partition(": ")[2]
    assert difference in dict(function.verdict).values()
    assert [side.name for side in function.sides][:2] == ["t3.py", "t1.py"]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("what", KINDS)
def test_each_chart_is_a_picture(store: str, here: Path, what: str) -> None:
    succeed("plot", "--store", store, "--what", what, "--out", f"{what}.png")
    content = (here / f"{what}.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 10_000
    width, height = struct.unpack(">II", content[16:24])
    assert 1500 < width < 1900 and 800 < height < 1500


@pytest.mark.slow
def test_pictures_are_svg_and_pdf_too(made: Report, here: Path) -> None:
    made.plot("map.svg")
    made.plot("map.pdf")
    text = (here / "map.svg").read_text()
    assert text.startswith("<svg") and "toy bfloat16, Test GPU" in text and "warps=4" in text and "hidden" in text
    assert (here / "map.pdf").read_bytes().startswith(b"%PDF-")


def test_wrong_calls_are_one_line(made: Report, store: str, here: Path) -> None:
    stored = "--store", store
    assert "expected a file that ends with .png, .svg, .pdf" in refused("plot", *stored, "--out", "map.gif")
    with one_line(UsageError, "has no third size"):
        made.plot("a.svg", at=3)
    with one_line(UsageError, "the chart is 'no': expected one of map, faster"):
        made.plot("a.svg", "no")
    with one_line(UsageError, "nothing is known of 'liger'"):
        made.plot("a.svg", against="liger")
    assert "is no file, rule or shipped table" in refused("report", "none.py", *stored, "--out", "a.html")
    assert "name the table that the report is about" in refused("report", "liger", *stored, "--out", "a.html")
    assert "nvidia-h200: no function was measured" in refused("report", "nvidia-h200", *stored, "--out", "a.html")
    assert "the page is a.txt: expected a file that ends with .html" in refused("report", *stored, "--out", "a.txt")
    assert "the folder no does not exist" in refused("report", *stored, "--out", "no/a.html")
    assert list(here.glob("a.*")) == []


@pytest.mark.parametrize("command", ["report", "plot"])
@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_the_extra_there_is_a_line(command: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    said = refused(command, "--out", "a.svg", kind=NormtuneError)
    assert said.endswith(f"{missing} is not installed: pip install 'normtune[report]'")
    assert main(command, "--out", "a.svg").exit_code == 1
