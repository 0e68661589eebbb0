"""`--json` of the commands: the frames that the Python functions return, and nothing else on stdout."""

import json
import math
from typing import Any

import pandas as pd
import pytest

import normtune
from normtune.tests.commands import main, refused


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as JSON has them: configs as objects, nan as null."""
    return [{name: plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def plain(value: object) -> object:
    if isinstance(value, normtune.Config):
        return json.loads(value.to_json())
    return None if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.slow
def test_a_fit_tells_its_figures_and_files(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitted = normtune.fit("nvidia-h200", operators="rms_norm_forward:no_rstd", leaves=4)
    words = ("fit", "--store", "nvidia-h200", "--operator", "rms_norm_forward:no_rstd", "--leaves", "4", "--json")
    done = main(*words, "--out", "table.py")
    (table,) = json.loads(done.stdout)["tables"]
    assert table["functions"] == rows_of(fitted.figures())
    assert (table["wrote"], table["device"]["name"]) == (["table.py"], "NVIDIA H200")
    assert [line for line in done.stderr.splitlines() if not line.startswith("normtune: ")] == []
    assert "both given" in refused(*words, "--details")
