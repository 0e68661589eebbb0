"""A package that a command needs and that is missing is told before anything is read or measured."""

import sys
from pathlib import Path

import pytest

from normtune.errors import NormtuneError
from normtune.results.database.store import Store
from normtune.tests.commands import refused


@pytest.mark.parametrize(
    ("words", "missing", "told"),
    [
        ("report --out r.html", "altair", "altair is not installed: pip install 'normtune[report]'"),
        ("plot --out r.png", "vl_convert", "vl_convert is not installed: pip install 'normtune[report]'"),
        ("fit --ray auto", "ray", "--ray needs Ray (it is not installed): pip install 'normtune[ray]'"),
        ("sweep --device all --ray auto", "ray", "--ray needs Ray (it is not installed)"),
    ],
)
def test_an_extra_is_asked_for_before_a_store_is_opened(
    words: str, missing: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Store, "open", None)
    monkeypatch.setitem(sys.modules, missing, None)
    assert told in refused(*words.split(), kind=NormtuneError)
