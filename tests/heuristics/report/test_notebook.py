"""Results show themselves in a notebook: what the command prints, and pictures; text of others is escaped."""

import base64
import sys
from pathlib import Path

import pytest

import normtune
from normtune.heuristics.writing.report import verdict
from normtune.tests.heuristics.report.conftest import parsed

pytestmark = pytest.mark.long


def pictures(text: str) -> list[str]:
    """The pictures of HTML, as SVG."""
    sources = [found["src"] or "" for found in parsed(text).all("img")]
    return [base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")).decode() for source in sources]


@pytest.mark.slow
def test_a_table_shows_its_verdict_and_map(store: str) -> None:
    table = normtune.fit(store)
    text = table._repr_html_()
    (picture,) = pictures(text)
    assert " ".join(" ".join(verdict(table.fit)).split()) in parsed(text).text
    assert "What is launched: fitted table" in picture and "toy bfloat16" in picture
    assert pictures(normtune.report(data=store)._repr_html_()) == [picture]


def test_a_comparison_shows_its_verdict(store: str) -> None:
    normtune.fit(store, leaves=1).save("<one>.py")
    found = normtune.diff("<one>.py", "<one>.py", store)
    text = found._repr_html_()
    assert "A is <one>.py" in parsed(text).text and "<one" not in text and pictures(text) == []


@pytest.mark.slow
def test_a_sweep_shows_what_it_did(tmp_path: Path) -> None:
    done = normtune.sweep("replay:nvidia-h200-qk-norm", rows=[64], hidden=[256], store=str(tmp_path / "a.db"))
    text = done._repr_html_()
    assert f"{done.summary.problems} problems measured" in parsed(text).text and pictures(text) == []


def test_without_the_extra_there_is_text_and_what_to_install(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = normtune.fit(store)
    monkeypatch.setitem(sys.modules, "altair", None)
    page = parsed(table._repr_html_())
    assert "pip install 'normtune[report]'" in page.text and page.all("img") == []
    assert " ".join(" ".join(verdict(table.fit)).split()) in page.text
