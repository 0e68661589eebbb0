"""Reports of the toy, and pages taken apart."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

import normtune
from normtune.heuristics.api.report import Report

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Parsed(HTMLParser):
    """What a page has: elements with their attributes, text outside of scripts, and whether tags are balanced."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        while self.open[-1] in ("th", "td", "tr") and self.open[-1] != tag:  # whose end tags may be left out
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.elements if name == tag and attributes.items() <= found.items()]


def parsed(text: str) -> Parsed:
    """A page, whose tags are balanced."""
    page = Parsed()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    """What the tests of a module have of the toy, whose operator is registered for one test at a time."""
    return {}


@pytest.fixture
def made(store: str, drawn: dict[str, Any]) -> Report:
    """The report of a fit of the toy."""
    if "report" not in drawn:
        drawn["report"] = normtune.report(data=store)
    return drawn["report"]


@pytest.fixture
def text(made: Report, drawn: dict[str, Any]) -> str:
    """Its page."""
    if "text" not in drawn:
        drawn["text"] = made.page()
    return drawn["text"]


@pytest.fixture
def page(text: str) -> Parsed:
    """Its page, taken apart."""
    return parsed(text)
