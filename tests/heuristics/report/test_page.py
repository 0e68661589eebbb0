"""The page says what the fit says, in well-formed HTML, whatever the names of others are, and stays small."""

import re
from dataclasses import replace
from pathlib import Path

import altair as alt
import pytest
from jsonschema import ValidationError

import normtune
from normtune.heuristics.api.report import Report
from normtune.heuristics.report import charts, theme
from normtune.heuristics.report.function_data import ListedConfig
from normtune.tests.commands import one_line
from normtune.tests.heuristics.report.conftest import Parsed, parsed

pytestmark = pytest.mark.long

HOSTILE = "</script><img src=x onerror=\"alert('1')\"><!--\u2028&amp;"


def test_it_says_what_the_fit_says(made: Report, page: Parsed, store: str) -> None:
    data, table = page.data, normtune.fit(store)
    worst = f"{100 * table.figures()['worst'].max():.1f} % slower than the best, at "
    assert page.text.index("Verdict") < page.text.index("toy bfloat16") < page.text.index("Operator and dtype")
    assert worst in page.text and f"{table.figures()['leaves'].max()} regions of shapes" in page.text
    assert made.title in page.text and "300 measurements, 2026-11-20" in page.text
    (function,) = data["functions"]
    shapes = [*zip(function["shapes"]["x"], function["shapes"]["y"], strict=True)]
    own = [function["configs"][number][0] for number in function["sides"][0]["config"]]
    assert own == [str(table.lookup("toy", "bfloat16", *shape)) for shape in shapes] and len(shapes) == 35
    assert len(function["sides"][0]["regions"]["config"]) == table.figures()["leaves"].sum()
    assert [side["name"] for side in function["sides"]] == ["fitted table", "the default config"]


def test_it_needs_nothing_but_itself_and_works_by_keyboard(page: Parsed) -> None:
    sources = [value for _, found in page.elements for name, value in found.items() if name in ("src", "srcset")]
    links = [found["href"] for tag in ("a", "link") for found in page.all(tag)]
    assert sources == [] and all(link and link.startswith(("#", "data:")) for link in links)
    targets = {found["id"] for _, found in page.elements if found.get("id")}
    assert {link[1:] for link in links if link and link.startswith("#")} <= targets
    assert page.all("html", lang="en") and page.all("nav") and page.all("main") and page.all("a", **{"class": "skip"})
    assert page.all("meta", name="color-scheme", content="light dark") and page.all("meta", name="viewport")
    for name, count in (("function", 1), ("measure", len(charts.MEASURES))):
        buttons = page.all("input", type="radio", name=name)
        assert len(buttons) == count and sum("checked" in found for found in buttons) == 1
    assert [found["id"] for found in page.all("select")] == ["side", "rival", "shape"]


@pytest.mark.slow
def test_each_chart_is_one_of_vega_lite(page: Parsed) -> None:
    specs = page.data["specs"]
    assert specs.keys() == {"map", "samples", *charts.MEASURES}
    for spec in specs.values():
        alt.Chart.from_dict(spec)
    with pytest.raises(ValidationError):
        alt.Chart.from_dict(specs["map"] | {"layer": 1})


def test_names_of_others_are_text(made: Report) -> None:
    (part,) = made.devices
    (function,) = part.functions
    configs = tuple(ListedConfig(config.name + HOSTILE, *config[1:]) for config in function.configs)
    sides = tuple(side._replace(name=side.name + HOSTILE) for side in function.sides)
    verdict = ((HOSTILE, HOSTILE), (HOSTILE, HOSTILE))
    other = replace(function, title=f"{HOSTILE} {HOSTILE}", configs=configs, sides=sides, verdict=verdict)
    hostile = Report(HOSTILE, (part._replace(label=HOSTILE, notes=(HOSTILE,), functions=(other,)),))
    page = parsed(hostile.page())
    assert page.all("img") == [] and len(page.scripts) == 3
    assert [found for _, found in page.elements if any(name.startswith("on") for name in found)] == []
    assert page.text.count("alert('1')") >= 7
    assert HOSTILE in page.data["functions"][0]["title"] and "<" not in page.scripts[0]


def test_a_page_replaces_a_page_and_nothing_else(
    made: Report, text: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "page", lambda report: text)
    made.save("page.html")
    made.save("page.html")
    (here / "own.html").write_text("mine")
    with one_line(normtune.UsageError, "own.html: it exists and normtune did not write it; force overwrites it"):
        made.save("own.html")
    made.save("own.html", force=True)
    assert (here / "own.html").read_text() == (here / "page.html").read_text() == text
    with one_line(normtune.UsageError, "the folder nowhere does not exist"):
        made.save("nowhere/page.html")


@pytest.mark.slow
def test_the_recording_of_the_h200_is_a_page_of_about_four_megabytes() -> None:
    report = normtune.report("nvidia-h200", "nvidia-h200")
    text = report.page()
    assert len(text.encode()) < 4_200_000
    page = parsed(text)
    assert len(page.all("input", name="function")) == len(report.devices[0].functions) == 12
    committed = (Path(__file__).parents[3] / "docs/h200.html").read_text()
    assert parsed(committed).data == page.data, "normtune report nvidia-h200 --out docs/h200.html"


def test_what_is_not_known_is_not_a_number(made: Report) -> None:
    (function,) = made.devices[0].functions
    side = function.sides[0]
    left_out = replace(function, sides=(side._replace(loss=side.loss * float("nan")), *function.sides[1:]))
    rows = left_out.rows(rival=1)
    assert rows["loss"].isna().all() and rows["rival_loss"].notna().all()
    picture = theme.with_data(charts.MEASURES["faster"][1](function.plane), shapes=rows)["datasets"]["shapes"]
    assert all(row["loss"] is None for row in picture)
    for _, make in charts.MEASURES.values():
        assert re.search("not known", str(make(function.plane)))
