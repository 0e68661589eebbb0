"""`examples/liger/change.py`: its diff applies to the installed Liger-Kernel, and its text has the measured times."""

import ast
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import normtune
from normtune.examples.liger import change
from normtune.kernels import load_file, operator
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.results.elsewhere import Elsewhere
from normtune.results.exchange.dataframe import evidence_of
from normtune.results.exchange.parquet_csv import write_parquet
from normtune.tests.heuristics.made_up import as_measured

EXAMPLES = Path(__file__).parents[3] / "examples"
# Found, not imported: that takes two seconds.
(LIGER,) = find_spec("liger_kernel").submodule_search_locations
SOURCE = Path(LIGER) / change.FILE
FORWARD, BACKWARD = (name for name, *_ in change.PASSES.values())
ROWS, HIDDEN = (1, 512, 8192), (64, 512, 2048)
pytestmark = pytest.mark.usefixtures("operators_forgotten")


@pytest.fixture
def frame():
    """Made-up times of today's config and three other ones of each operator at nine shapes."""
    load_file.load(EXAMPLES / "liger" / "rms_norm.py")
    forward, backward = (operator.operator(name).config for name in (FORWARD, BACKWARD))
    configs = {
        FORWARD: [forward(*one) for one in ((0, 4), (0, 8), (16, 32), (8, 16))],
        BACKWARD: [backward(*one) for one in ((0, 4, 1), (0, 8, 1), (16, 32, 1), (8, 16, 2))],
    }
    random = np.random.default_rng(0)
    rows = [
        (name, "bfloat16", rows, hidden, config, int(random.integers(2000, 9000)))
        for name in configs
        for rows in ROWS
        for hidden in HIDDEN
        for config in configs[name]
    ]
    return pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"])


def todays(config):
    """Liger's rule at these shapes; the example itself cannot be loaded twice."""
    return lambda problem, target: config(0, 4)


def measured(frame):
    return as_measured(evidence_of(frame, Elsewhere(name="NVIDIA H200", target="sm_90").device()))


def test_the_low_side_of_a_threshold_is_below_its_first_size() -> None:
    one, two = (Leaf((number, 4)) for number in range(2))
    assert [*change.branches(Split("rows", 8, one, two))] == [
        "    if n_rows < 8:",
        "        return 0, 4",
        "    return 1, 4",
    ]
    assert next(change.branches(Split("hidden", 8, one, two))) == "    if n_cols <= 8:"


@pytest.mark.slow
def test_the_diff_applies_and_the_text_has_the_times(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_parquet(measured(frame), Path("times.parquet"))
    monkeypatch.setattr(change, "import_module", lambda name: SimpleNamespace(todays=todays))
    monkeypatch.setattr(sys, "argv", ["change.py", "times.parquet", "--leaves", "4"])
    change.main()
    lines = SOURCE.read_text().splitlines(True)
    hunks = re.split(r"^@@ -(\d+).*@@.*\n", Path("liger.diff").read_text(), flags=re.M)
    for start, hunk in reversed([*zip(hunks[1::2], hunks[2::2], strict=True)]):
        body = hunk.splitlines(True)
        old = [line[1:] for line in body if line[0] in " -"]
        assert lines[int(start) - 1 :][: len(old)] == old
        lines[int(start) - 1 : int(start) - 1 + len(old)] = [line[1:] for line in body if line[0] in " +"]
    ast.parse("".join(lines))
    assert "BLOCK_ROW = 16\n" not in "".join(lines)
    text = Path("liger.md").read_text()
    assert "Forward, bfloat16, 9 shapes: " in text and "Backward, bfloat16, 9 shapes: " in text
    cell = re.search(r"^\| 512 \| (\d\.\d) → (\d\.\d) \|", text, re.M)
    times = frame[(frame.operator == FORWARD) & (frame.rows == 512) & (frame.hidden == 64)]
    chosen = normtune.fit("times.parquet", leaves=4, baseline="default").lookup(FORWARD, "bfloat16", 512, 64)
    both = [times[times.config == config].nanoseconds.item() / 1000 for config in ((0, 4), chosen)]
    assert cell and [float(cell[1]), float(cell[2])] == pytest.approx(both, abs=0.051)
    data = pd.read_csv("liger.csv")
    shape = data["extra_benchmark_config_str"].map(json.loads).map(lambda config: config["hidden_size"]) == 64
    found = data[shape & (data["x_value"] == 512) & (data["kernel_operation_mode"] == "forward")]
    assert found["kernel_provider"].tolist() == ["liger", "liger_fitted"] and len(data) == 2 * 2 * 9
    assert found["y_value_50"].tolist() == pytest.approx([time / 1000 for time in both], rel=1e-3)


@pytest.mark.slow
def test_the_committed_change_is_that_of_the_committed_times(tmp_path, monkeypatch) -> None:
    liger, out = EXAMPLES / "liger", tmp_path / "again.diff"
    monkeypatch.setattr(sys, "argv", ["change.py", str(liger / "rms_norm_h200.parquet"), "--out", str(out)])
    change.main()
    for suffix in (".diff", ".md", ".csv"):
        assert out.with_suffix(suffix).read_bytes() == (liger / "rms_norm_h200").with_suffix(suffix).read_bytes()


def test_another_form_of_the_file_is_refused(frame) -> None:
    table = normtune.fit(measured(frame), leaves=2)
    source = SOURCE.read_text()
    assert change.changed(source, table) != source
    for text in (source.replace(" or row_mode:", ":"), source.replace("def rms_norm_backward", "def other")):
        with pytest.raises(ValueError, match="has another form than in version"):
            change.changed(text, table)


def test_a_fit_of_other_operators_is_no_change_of_liger() -> None:
    load_file.load(EXAMPLES / "softmax.py")
    config = operator.operator("softmax").config
    rows = [("softmax", "bfloat16", rows, 64, config(count, 4), 2000 * count) for rows in ROWS for count in (1, 2)]
    frame = pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"])
    with pytest.raises(ValueError, match="the table has none of liger_rms_norm, liger_rms_norm_backward"):
        change.changed(SOURCE.read_text(), normtune.fit(measured(frame)))


@pytest.mark.parametrize(
    ("words", "message"),
    [(["missing.db"], "there is no store missing.db"), (["times.db", "--leaves", "0"], "leaves is 0")],
)
def test_bad_input_is_told_in_one_line(words, message, frame, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(change, "import_module", lambda name: SimpleNamespace(todays=None))
    monkeypatch.setattr(sys, "argv", ["change.py", *words])
    with pytest.raises(SystemExit, match=message):
        change.main()


def test_without_liger_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(change, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["change.py", "times.db"])
    with pytest.raises(SystemExit, match=r"pip install liger-kernel==0\.8\.5"):
        change.main()
