"""A package that a command needs and that is missing is told before anything is read or measured."""

import sys
from pathlib import Path

import pytest

import normtune
from normtune.errors import NormtuneError
from normtune.results.database.store import Store
from normtune.tests.commands import one_line, refused


@pytest.mark.parametrize(
    ("words", "missing", "told"),
    [
        ("report --out r.html", "altair", "altair is not installed: pip install 'normtune[report]'"),
        ("plot --out r.png", "vl_convert", "vl_convert is not installed: pip install 'normtune[report]'"),
        ("sweep --ray auto", "ray", "--ray needs Ray (it is not installed): pip install 'normtune[ray]'"),
    ],
)
def test_an_extra_is_asked_for_before_a_store_is_opened(
    words: str, missing: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "open", None)
    monkeypatch.setitem(sys.modules, missing, None)
    assert told in refused(*words.split(), kind=NormtuneError)


def test_a_fit_asks_for_ray_before_a_store_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "open", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with one_line(NormtuneError, "ray needs Ray "):
        normtune.fit("normtune.db", ray="auto")
