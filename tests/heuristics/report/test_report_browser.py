"""The page in a real browser, the system's Chromium: nothing fails, all is seen, and the keyboard reaches all of it."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import normtune
from normtune.heuristics.api.report import Report
from normtune.heuristics.report.function_data import ListedConfig
from normtune.tests.heuristics.report.test_page import HOSTILE

pytestmark = pytest.mark.slow
WIDTHS = 380, 1600
DRAWN = "#chart-map svg", "#chart-measure svg", "#chart-samples svg"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium: `apt-get install chromium` for the test of the page in a browser")
    api = pytest.importorskip("playwright.sync_api", reason="there is no Playwright: pip install 'normtune[browser]'")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Shown:
    """A page in a window, and what its console said."""

    def __init__(self, browser: Any, file: Path, width: int = 1600, scheme: str = "light") -> None:
        self.said: list[str] = []
        self.page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.said.append(request.url) if "file:" not in request.url else None)
        self.page.goto(f"file://{file.resolve()}")
        self.drawn()

    def drawn(self) -> None:
        for chart in DRAWN:
            self.page.wait_for_selector(chart)
        self.page.wait_for_timeout(300)

    def texts(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).all_text_contents())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_all_is_seen_and_nothing_fails(browser: Any, made: Report, here: Path, width: int, scheme: str) -> None:
    made.save("page.html")
    shown = Shown(browser, here / "page.html", width, scheme)
    shown.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    shown.page.wait_for_selector("#timed")
    assert [line for line in shown.said if not line.startswith(("data:", "blob:"))] == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in DRAWN:
        box = shown.page.locator(chart).bounding_box()
        assert box["width"] > 300 and box["height"] > 100 and box["x"] >= 0 and box["x"] + box["width"] <= width + 1
    words = shown.texts("#chart-map svg text")
    assert "rows" in words and "hidden" in words and ("warps=4" in words or width == 380)
    ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]


def test_the_keyboard_reaches_everything(browser: Any, made: Report, here: Path) -> None:
    made.save("page.html")
    page = (shown := Shown(browser, here / "page.html")).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = "document.activeElement.name || document.activeElement.id || document.activeElement.tagName"
        reached.add(page.evaluate(focused))
    assert {"function", "measure", "rival", "shape", "A", "SUMMARY"} <= reached
    page.focus('input[name="measure"]:checked')
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        shown.drawn()
    assert page.locator('input[name="measure"]:checked').get_attribute("value") == "loss"
    assert "slower than the fastest" in shown.texts("#chart-measure svg text")
    before, samples = page.locator("#shape").input_value(), page.locator("#chart-samples").inner_html()
    page.focus("#shape")
    page.keyboard.press("ArrowUp" if page.evaluate("document.activeElement.selectedIndex") else "ArrowDown")
    shown.drawn()
    assert page.locator("#shape").input_value() != before
    assert page.locator("#chart-samples").inner_html() != samples
    page.locator(".configs summary").press("Enter")
    assert page.locator(".configs li").first.is_visible() and shown.said == []


def test_legends_name_what_is_drawn_and_samples_the_launch_of_the_table(browser: Any, made: Report, here: Path) -> None:
    made.save("page.html")
    page = (shown := Shown(browser, here / "page.html")).page
    shapes = page.evaluate("shapesOf(current(), 0, element('rival').value)")
    gaps = page.evaluate("gapsOf(current()).length")
    for chart, measure, column in (
        ("#chart-map", "loss", "loss"),
        ("#chart-measure", "loss", "loss"),
        ("#chart-measure", "copy", "copy_us"),
    ):
        page.locator(f'input[name="measure"][value="{measure}"]').check(force=True)
        shown.drawn()
        legend = shown.texts(f"{chart} svg text")
        unknown = sum(shape[column] is None or shape["loss"] is None for shape in shapes)
        assert ("config not measured" in legend or "not known" in legend) == (unknown > 0)
        assert ("shapes not measured" in legend) == (gaps > 0)
    launched = {i: shape["config"] for i, shape in enumerate(shapes) if shape["loss"] is not None}
    for i, config in list(launched.items())[:3]:
        page.select_option("#shape", str(i))
        shown.drawn()
        assert f"{config}, launched by" in shown.texts("#chart-samples svg text")


def test_pointing_at_a_shape_tells_of_it(browser: Any, made: Report, here: Path) -> None:
    made.save("page.html")
    page = Shown(browser, here / "page.html").page
    page.locator("#chart-measure svg").scroll_into_view_if_needed()
    box = page.locator("#chart-measure svg").bounding_box()
    before = page.locator("#shape").input_value()
    told = set()
    for share in (0.3, 0.7):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.6 * box["height"], steps=4)
        page.wait_for_selector("#vg-tooltip-element.visible")
        told.add(page.locator("#shape").input_value())
        assert "fastest" in page.locator("#vg-tooltip-element").inner_text()
    assert len(told - {before}) >= 1 and len(told) == 2


def test_names_of_others_do_nothing(browser: Any, made: Report, here: Path) -> None:
    (part,) = made.devices
    (function,) = part.functions
    configs = tuple(ListedConfig(HOSTILE + config.name, *config[1:]) for config in function.configs)
    regions = function.sides[0].regions.assign(label=HOSTILE)
    sides = (function.sides[0]._replace(name=HOSTILE, regions=regions), function.sides[1]._replace(name=HOSTILE))
    other = replace(function, title=f"{HOSTILE} {HOSTILE}", configs=configs, sides=sides)
    Report(HOSTILE, (part._replace(label=HOSTILE, functions=(other,), notes=(HOSTILE,)),)).save("page.html")
    page = (shown := Shown(browser, here / "page.html")).page
    page.on("dialog", lambda dialog: shown.said.append(dialog.message))
    page.locator("#chart-map svg").scroll_into_view_if_needed()
    box = page.locator("#chart-map svg").bounding_box()
    for share in (0.2, 0.4, 0.6, 0.8):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.wait_for_timeout(500)
    assert shown.said == [] and page.locator("img").count() == 0


@pytest.mark.usefixtures("operators_forgotten")
def test_a_third_size_is_folded(browser: Any, here: Path) -> None:
    from normtune.kernels.load_file import load

    examples = Path(__file__).parents[3] / "examples"
    load(examples / "matmul.py")
    normtune.report(str(examples / "matmul_h200.py")).save("page.html")
    shown = Shown(browser, here / "page.html")
    assert shown.page.locator(".fold output").text_content() == "1024"
    shapes = shown.page.locator("#shape option").count()
    shown.page.locator(".fold input").press("End")
    shown.drawn()
    assert shown.page.locator(".fold output").text_content() == "14336"
    assert "x 14336" in shown.texts("#shape option") and shapes == shown.page.locator("#shape option").count() == 28
    assert "m" in shown.texts("#chart-map svg text").split() and shown.said == []
