"""The tables of other projects' pull requests: Markdown that follows from its JSON, cells that are measured once."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from normtune.benchmarks import beside, liger_table, places, sides, tilegym_table
from normtune.kernels.target import TARGETS
from normtune.results.records import Device

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

RESULTS = Path("benchmarks/results/nvidia_h200")
DEVICE = Device("Test GPU", "sm_90", 132, 60 << 20, 100 << 30, "GPU-1", "570.1")


@pytest.mark.parametrize(("name", "script"), [("liger_table", liger_table), ("tilegym_table", tilegym_table)])
def test_the_markdown_that_is_kept_is_that_of_the_times(root: Path, name: str, script) -> None:
    path = root / RESULTS / f"{name}.json"
    if not path.exists():
        assert not path.with_suffix(".md").exists()
        return
    assert path.with_suffix(".md").read_text() == script.markdown(json.loads(path.read_text())) + "\n"


def test_the_three_tables_of_liger_are_made_of_the_same_cells() -> None:
    cells = [
        {"operator": name, "rows": rows, "hidden": hidden, "single_row": single, "tuned": tuned, "control": single + 1}
        for name, single, tuned in (("rms_norm_forward", 1e6, 5e5), ("rms_norm_backward", 3e6, 1e6))
        for rows in liger_table.ROWS
        for hidden in liger_table.HIDDEN
    ]
    text = liger_table.markdown({"device": {"name": "GPU"}, "software": {"torch": "2", "triton": "3"}, "cells": cells})
    titles = re.findall(r"^(.*), ms:$", text, re.MULTILINE)
    assert titles == ["forward + backward", "backward", "forward"]
    full, backward, forward = (part.splitlines() for part in re.split(r"^.*, ms:\n\n", text, flags=re.MULTILINE)[1:])
    columns = len(liger_table.HIDDEN)
    for lines, before, after in (
        (full, "4.0000", "1.5000 (-62.5 %)"),
        (backward, "3.0000", "1.0000 (-66.7 %)"),
        (forward, "1.0000", "0.5000 (-50.0 %)"),
    ):
        row = lines[2]
        assert row.startswith("| 4096 |") and row.count(f"{before} → {after}") == columns
        assert row.endswith(f"| {before} → {before} (+0.0 %) |")


def test_throughput_counts_the_partial_sums_that_there_are() -> None:
    cell = {"dtype": "bfloat16", "rows": 4096, "hidden": 1024, "sides": {}}
    workspace = 264 * 1024
    cell["sides"]["normtune"] = {"version": "0", "workspace": workspace, "median_us": 10.0}
    cell["sides"]["torch"] = {"version": "2", "median_us": 25.0}
    cell["sides"]["liger"] = {"version": "0.8", "failed": "ValueError: no"}
    once = 3 * 4096 * 1024 * 2 + 4096 * 4 + 2 * 1024 * 2
    assert tilegym_table.nbytes(cell) == (once, 264 * 1024 * 8)
    lines = tilegym_table.table([cell])
    assert lines[0] == "| hidden | normtune | with partial sums | torch | liger | over torch |"
    assert (
        lines[2] == f"| 1024 | {once / 1e4:.0f} | {(once + 8 * workspace) / 1e4:.0f} | {once / 25e3:.0f} | - | 2.50 |"
    )
    cell["sides"]["normtune"]["workspace"] = 0
    assert tilegym_table.table([cell])[2].startswith(f"| 1024 | {once / 1e4:.0f} | {once / 1e4:.0f} |")


def test_a_table_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, int]] = []

    def measure(engine, key: tuple, there: dict) -> dict:
        name, dtype, rows, hidden = key
        measured.append((dtype, hidden))
        found = {
            side: {"version": part.version, "median_us": 2.0, "samples_ns": [2000]} for side, part in there.items()
        }
        found["normtune"] |= beside.identity(engine.target, name, dtype, rows, hidden)
        return {
            "pass": name,
            "dtype": dtype,
            "rows": rows,
            "hidden": hidden,
            "sides": found,
            "device": "",
            "software": {},
        }

    engine = SimpleNamespace(target=TARGETS["sm_90"], device=DEVICE, software={"torch": "2"}, close=lambda: None)
    monkeypatch.setattr("normtune.tuner.device.cuda.CudaEngine", lambda index: engine)
    monkeypatch.setattr(beside, "measure", measure)
    monkeypatch.setattr(places, "RESULTS", tmp_path)
    monkeypatch.setattr(
        tilegym_table, "installed", lambda case, names: {side: sides.Side("1", None) for side in ("normtune", "torch")}
    )
    monkeypatch.setattr(sys, "argv", ["tilegym_table.py"])
    tilegym_table.main()
    path = tmp_path / "test_gpu" / "tilegym_table.json"
    document = json.loads(path.read_text())
    assert len(measured) == len(document["cells"]) == 15
    assert path.with_suffix(".md").read_text() == tilegym_table.markdown(document) + "\n"
    assert "samples_ns" not in path.read_text()
    tilegym_table.main()
    assert len(measured) == 15
    document["cells"][3]["sides"]["normtune"]["kernels"] = "sha256:old"
    del document["cells"][7]
    path.write_text(json.dumps(document))
    tilegym_table.main()
    assert measured[15:] == [("bfloat16", 8192), ("float16", 4096)]
    assert len(json.loads(path.read_text())["cells"]) == 15
